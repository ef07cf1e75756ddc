"""Answers compared as the papers compare them, text made safe to write, and known names
found in it.

There are three normalisers, whose scores are not comparable: name the one meant.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from unicodedata import category

from .answer_tokens import UNSPACED, tokens
from .bundled import bundled_json
from .errors import ConfigError, DataError

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PUNCTUATION_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation, " "))
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = frozenset(("yes", "no", "noanswer"))
_SENTENCE_END = re.compile(
    r"(?<=[.!?\u2026])[\"'\u201d\u2019)\]]*+\s+(?=[\"'\u201c\u2018(\[]?[A-Z0-9À-ÖØ-Þ])|\n+|(?<=[\u3002\uff01\uff1f])"
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|vs|etc|No|Vol|Fig|Inc|Ltd|Co|Mt|approx|ca|cf|e\.g|i\.e)"
    r"|\b[A-Z](?:\.[A-Z])*)\.$"
)
_NAME_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
FUNCTION_WORDS = frozenset[str](bundled_json("function_words.json"))
"""English words that carry no content of their own, lower-cased."""


def normalize(text: str, how: str = "squad") -> str:
    """Lower-case and simplify. Raises `ConfigError` for another `how`.

    `squad` (Search-R1, SQuAD): delete ASCII punctuation, drop a / an / the, collapse blanks.
    `pokee` (PokeeResearch, DeepResearcher): punctuation becomes a space, articles stay.
    `unicode` (ours): what differs in typography only is the same, what differs in a number's sign
    or decimals is not; for all scripts (`answer_tokens.tokens`).
    """
    if how == "squad":
        return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())
    if how == "pokee":
        return " ".join(text.lower().translate(_PUNCTUATION_TO_SPACE).split())
    if how == "unicode":
        return " ".join(tokens(text))
    raise ConfigError(f"unknown normaliser {how!r}; there are: squad, pokee, unicode")


def title_key(title: str) -> str:
    """A title as titles are compared: two spellings have one key. One of signs alone is its own, so
    that it is not taken for that of a passage without a title.

    Example:
        >>> title_key("Belt, Harbour"), title_key("!!!")
        ('belt harbour', '!!!')
    """
    return normalize(title, "pokee") or title.strip()


def exact_match(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """1.0 when the normalised prediction equals any normalised gold, else 0.0."""
    if prediction is None or not golds:
        return 0.0
    answer = normalize(prediction, how)
    if answer:
        return float(any(normalize(gold, how) == answer for gold in golds))
    # An article or a sign, as some golds are, and as an answer without content is
    normalized = prediction.strip().lower()
    return float(bool(normalized) and any(gold.strip().lower() == normalized for gold in golds))


def sub_exact_match(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """1.0 when the normalised prediction contains any (non-empty) normalised gold, else 0.0; of an
    answer without content (an article, a sign) what `exact_match` gives.

    `squad` and `pokee` look for the gold as characters, as published: `no` is in `unknown`.
    `unicode` looks for whole words, and for `yes` and `no` as the first or the last of them; an
    answer that has both there says neither.

    Example:
        >>> sub_exact_match("Unknown", ["no"]), sub_exact_match("Unknown", ["no"], "unicode")
        (1.0, 0.0)
    """
    if prediction is None:
        return 0.0
    answer = normalize(prediction, how)
    if not answer:
        return exact_match(prediction, golds, how)
    for gold in golds:
        gold_answer = normalize(gold, how)
        if gold_answer and _contains(answer, gold_answer, how):
            return 1.0
    return 0.0


def _contains(answer: str, gold: str, normaliser: str) -> bool:
    """Whether one normalised text contains another, as `sub_exact_match` says."""
    if normaliser != "unicode":
        return gold in answer
    if gold in _CLOSED:  # "There is no source" does not answer no
        words = answer.split()
        verdicts = _CLOSED.intersection((*words[:1], *words[-1:]))
        return verdicts == {gold}  # "Yes, or no" answers neither
    return f" {gold} " in f" {answer} "


def f1(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """Token F1 = 2PR / (P + R), the best over golds; of an answer without content (an article, a
    sign) what `exact_match` gives.

    `squad` and `unicode` count tokens as often as they occur, and give 0 where one side is `yes`,
    `no` or `noanswer` and the other is not the same (HotpotQA's rule). `pokee` compares sets of
    tokens. In scripts without blanks the tokens of `unicode` are characters.

    Example:
        >>> f1("Ada King Lovelace", ["Ada Lovelace"])
        0.8
    """
    if prediction is None:
        return 0.0
    answer = normalize(prediction, how)
    if not answer:
        return exact_match(prediction, golds, how)
    best = 0.0
    for gold in (normalize(gold, how) for gold in golds):
        ours, theirs = Counter(answer.split()), Counter(gold.split())
        if how == "pokee":
            ours, theirs = Counter(set(ours)), Counter(set(theirs))
        elif answer != gold and (answer in _CLOSED or gold in _CLOSED):
            continue
        if common := (ours & theirs).total():
            best = max(best, 2 * common / (ours.total() + theirs.total()))
    return best


def sentences(text: str) -> list[str]:
    """Split at `.`, `!`, `?` before a capital or a digit and line breaks, but not after
    abbreviations and initials.
    """
    pieces: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        before = text[max(start, match.start() - 12) : match.start()]
        if "\n" not in match[0] and _ABBREVIATION.search(before.rstrip()):
            continue
        pieces.append(text[start : match.end()].strip())
        start = match.end()
    pieces.append(text[start:].strip())
    return [sentence for sentence in pieces if sentence]


def content_words(text: str) -> list[str]:
    """The lower-cased words of `text` in order, without English function words."""
    return [word for word in _WORD.findall(text.lower()) if word not in FUNCTION_WORDS]


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: it has no characters but blanks and those without width.

    Example:
        >>> is_blank("\u200b \ufeff"), is_blank("\u200bVeldt")
        (True, False)
    """
    return all(character.isspace() or category(character) == "Cf" for character in text)


def well_formed(text: str) -> str:
    """`text` with `?` for each half of a surrogate pair, which JSON may hold but no tokenizer or
    file takes.
    """
    return text.encode("utf-8", "replace").decode()


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, the last one an ellipsis where something was cut off."""
    return text if len(text) <= most else text[: most - 1] + "…"


class NameFinder:
    """Finds known names in text: whole words only, the longest first, left to right.

    A text takes one pass over its words, with a dictionary from first words to the names that they
    open.

    Example:
        >>> NameFinder({"Ann": "person", "Ann Lee": "person"}).sub(str.upper, "Ann Lee met Ann, not Annie.")
        'ANN LEE met ANN, not Annie.'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        # The names that begin with a word, each with the place of that word in it
        by_first_word: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for name in sorted(names, key=len, reverse=True):  # "Ann Lee" is found before "Ann"
            first = _NAME_WORD.search(name)
            if first is None:
                raise DataError(
                    f"the name {name!r} has no letter or digit, so it cannot be found in text"
                )
            by_first_word[first.group()].append((name, first.start()))
        self._by_first_word = dict(by_first_word)
        # The same passages are looked through again and again.
        self.segments = lru_cache(maxsize=65536)(self._segments)

    def sub(self, image: Callable[[str], str], text: str) -> str:
        """`text` with every name replaced by `image(name)`."""
        return "".join(
            image(part) if number % 2 else part for number, part in enumerate(self.segments(text))
        )

    def find(self, text: str) -> tuple[str, ...]:
        """The names in `text`, in order, repeats included."""
        return self.segments(text)[1::2]

    def _segments(self, text: str) -> tuple[str, ...]:
        """Text between names and names, alternating; joined they are `text` again."""
        parts: list[str] = []
        end = 0
        for match in _NAME_WORD.finditer(text):
            for name, offset in self._by_first_word.get(match.group(), ()):
                start = match.start() - offset
                stands_here = start >= end and text.startswith(name, start)
                if stands_here and _is_apart(text, start, start + len(name)):
                    parts += (text[end:start], name)
                    end = start + len(name)
                    break
        return (*parts, text[end:])


def holds(text: str, name: str) -> bool:
    """Whether `name` stands in `text` as a whole; one without a letter or digit never does.

    Example:
        >>> holds("Ada lives in Veldt.", "Veldt"), holds("Ada lives in Veldtham.", "Veldt")
        (True, False)
        >>> holds("利马是秘鲁的首都。", "利马")
        True
    """
    start = text.find(name) if _NAME_WORD.search(name) else -1
    while start >= 0 and not _is_apart(text, start, start + len(name)):
        start = text.find(name, start + 1)
    return start >= 0


def unqualified(title: str) -> str:
    """A title without a bracketed qualifier at its end, case kept."""
    name, opening, qualifier = title.rstrip().rpartition("(")
    closed = opening and qualifier.endswith(")") and ")" not in qualifier[:-1]
    return name.rstrip() if closed else title


def plain(title: str) -> str:
    """Case-folded, one space between words, without a qualifier: an annotation names a page with or
    without it.
    """
    return " ".join(unqualified(title).casefold().split())


def _is_apart(text: str, start: int, end: int) -> bool:
    """Whether no word goes on over the ends of `text[start:end]`."""
    return _divides_words(text, start) and _divides_words(text, end)


def _divides_words(text: str, place: int) -> bool:
    if place in (0, len(text)):
        return True
    return not (_in_word(text[place - 1]) and _in_word(text[place]))


def _in_word(character: str) -> bool:
    """Whether it makes one word with such a character beside it. In scripts without blanks nothing
    shows where a word ends.
    """
    if character.isascii():
        return character.isalnum() or character == "_"
    return character.isalnum() and _UNSPACED.match(character) is None
