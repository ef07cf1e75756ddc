"""Does an answer say that it has none? Abstentions and refusals in some forty languages.

Such an answer claims nothing, so that nothing can support it: it is neither faithful nor
unfaithful.
"""

import re
import unicodedata
from functools import lru_cache

from .bundled import bundled_json
from .text import sentences

_LONGEST = 400
"""Characters of the longest sentence that may say so: a longer one says more than that."""
_STRESS = re.compile("[\u0300-\u036f]")
_LETTERS = str.maketrans("\u0131\u0142\u0111\u00f8", "ildo")  # which no mark can be taken from
_APOSTROPHES = re.compile("['\u2019\u02bc`]")
_BREAKS = re.compile(
    r"[^\w\u0900-\u0d7f\u0e00-\u0e7f]+|_"
)  # marks of Indic and Thai vowels are kept
_CLAUSE = re.compile("[,;:\u3001\uff0c\u061b\u060c]")
_DIGIT = re.compile(r"\d")
_BEGINS_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")


class _Language:
    """How abstentions are written in one language, or in several alike.

    `whole` are whole sentences, `holds` what may stand anywhere in one that claims nothing else,
    `but` the words behind which something is claimed after all.
    """

    def __init__(
        self, but: str, whole: list[str] | None = None, holds: list[str] | None = None
    ) -> None:
        self._whole = {_plain(text) for text in whole or ()}
        phrases = holds or ["(?!)"]  # which is found nowhere
        self._holds = re.compile("|".join(map(_folded, phrases)))
        # scripts without blanks have no edges of words to look for
        self._but = re.compile(rf"(?:^|\b)(?:{_folded(but)})(?:\b|$)|{_unspaced(but)}")

    def declines(self, sentence: str) -> bool:
        plain = _plain(sentence)
        if plain in self._whole:
            return True
        if self._holds.search(plain) is None or _DIGIT.search(plain):
            return False
        return self._but.search(plain) is None


class _English:
    """English, by how a sentence opens: sentences that claim something may hold a negation."""

    def __init__(self, opens: list[str], leads: str, aside: str, but: str) -> None:
        self._opens = re.compile(f"(?:{'|'.join(opens)})$")
        self._lead = re.compile(rf"(?:{leads})\b")
        self._short = re.compile(r"(?:sorry|unfortunately|regrettably|honestly|well)\b\W*")
        self._ended = re.compile(r"\bbut\b")
        self._joined = re.compile(r"\W*+(?:but\b\W*+)?+")
        self._aside = re.compile(rf"(?:{aside})\b")
        self._but = re.compile(rf"\b(?:{but})\b")

    def declines(self, sentence: str) -> bool:
        plain = _plain(self._without_lead(_folded(sentence)))
        opening = self._opens.match(plain)
        return opening is not None and self._but.search(opening[0]) is None

    def is_aside(self, sentence: str) -> bool:
        """Whether the sentence only goes with an abstention: an apology, or advice."""
        return self._aside.match(_plain(sentence)) is not None

    def _without_lead(self, folded: str) -> str:
        """The sentence without "Sorry, but", "Based on the search results," and the like."""
        sentence = folded.lstrip()
        while (lead := self._lead.match(sentence)) is not None:
            ends = [pattern.search(sentence, lead.end()) for pattern in (_CLAUSE, self._ended)]
            places = [match.end() for match in ends if match is not None]
            short = self._short.match(sentence)
            if places:
                end = min(places)
            elif short is not None:
                end = short.end()
            else:
                break
            end = self._joined.match(sentence, end).end()  # type: ignore[union-attr]
            sentence = sentence[end:]
        return sentence


def declines(answer: str | None) -> bool:
    """Whether there is no answer, or one that says that there is none: "unknown", "I do not know",
    "The sources do not say.", "Je ne sais pas."

    Each sentence must say so: an answer that goes on to claim something claims it. Words are
    compared, so an unusual way of declining is not seen.

    Example:
        >>> [declines(text) for text in ("I don't know.", "不知道", "Unknown Pleasures")]
        [True, True, False]
        >>> declines("I could not find the date. It was composed in Vienna.")
        False
    """
    sentences_of_answer = sentences((answer or "").strip())
    if not any(map(_plain, sentences_of_answer)):
        return True
    kinds = list(map(_kind, sentences_of_answer))
    return "declines" in kinds and "claims" not in kinds


def claims_of(text: str) -> list[str]:
    """The sentences of a text without those that say that there is no answer.

    Example:
        >>> claims_of("The sources do not say when. He was born in Ulm.")
        ['He was born in Ulm.']
    """
    return [sentence for sentence in sentences(text) if _kind(sentence) != "declines"]


@lru_cache(maxsize=4096)
def _kind(sentence: str) -> str:
    """Whether a sentence "declines", "claims" something, is an "aside" or says "nothing"."""
    if not _plain(sentence):
        return "nothing"
    if len(sentence) > _LONGEST:
        return "claims"
    english, other_languages = _languages()
    if english.declines(sentence):
        return "declines"
    if any(language.declines(sentence) for language in other_languages):
        return "declines"
    return "aside" if english.is_aside(sentence) else "claims"


@lru_cache(maxsize=1)
def _languages() -> tuple[_English, list[_Language]]:
    """English, and all other languages."""
    phrases = bundled_json("abstentions.json")
    english = _English(**phrases.pop("english"))
    return english, [_Language(**language) for language in phrases.values()]


def _folded(text: str) -> str:
    """Lower-cased, without stress marks and apostrophes."""
    decomposed = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS))
    return _APOSTROPHES.sub("", unicodedata.normalize("NFC", _STRESS.sub("", decomposed)))


def _plain(text: str) -> str:
    """The words, folded, with one blank between them."""
    return " ".join(_BREAKS.sub(" ", _folded(text)).split())


def _unspaced(words: str) -> str:
    """Those of the words that are written without blanks around them."""
    unspaced = filter(_BEGINS_UNSPACED.match, words.split("|"))
    return "|".join(map(_folded, unspaced)) or "(?!)"
