"""The judge that compares words: how many of the words of the hypothesis stand in the premise?"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import ClassVar

import msgspec

from ..answer_tokens import UNSPACED
from ..text import FUNCTION_WORDS
from .base import Judge, Pair, Task, Verdict

THRESHOLDS: Mapping[Task, float] = {"info_think": 0.5, "think_search": 0.5}
"""The smallest p at which a pair is supported, by task. It is lower where the hypothesis is a
thought or a query, which also say what is still to be found.
"""
SUPPORTED = 0.75
"""The smallest p at which a pair is supported in all other tasks."""
QUESTION_WEIGHTS: Mapping[Task, float] = {"support": 0.5, "info_think": 0.0}
"""The factor on the weight of a word that the question holds, too, by task; 1 in all other tasks.
"""
NAME_WEIGHT = 2.0
"""The weight of names and numbers; other words have the weight 1."""
_BEGINNING = 6
"""Words that are neither names nor numbers are compared by so many letters."""
_FEW = 8
_SHORTEST = 3
"""At most `_FEW` words, of at least `_SHORTEST` letters each, are searched for in the premise one
by one, which is much faster than to split a long premise into words.
"""

_UNSPACED = re.compile(f"[{UNSPACED}]")
_MARKS = "\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_STRESS = re.compile("[\u0300-\u036f]")
# "1,200" and "1200" are one number
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
# "1 200 300" is one number, too; "5 200" may be one number or two
_GROUPS = re.compile(r"(?<![\w.,])[0-9]{1,3}(?: [0-9]{3}){2,}(?![\w,])")
# "5kg" is the same as "5 kg"
_UNIT = re.compile(
    r"([0-9])((?:[kcm]?m|[km]?g|[cm]?l|ft|mi|lbs?|oz|mph|km/h|[kmg]?hz|[kmg]?wh?|[kmgt]b|[ap]m|bn)"
    r"(?:\b|[\u00b2\u00b3]))",
    re.IGNORECASE,
)
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
# Pages have soft hyphens within words, to say where a line may break
_WITHIN_WORDS = "\u00ad\u2060\ufeff"
_INVISIBLE = re.compile(f"[{_WITHIN_WORDS}]")
_WRITTEN = re.compile(
    r"\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3}){2,}(?!\w)"
    rf"|[^\W_]++(?:[{_WITHIN_WORDS}]++[^\W_]++)*+"
)
_OPENING = r"[\s\"'*#(\[\u201c\u2018-]"
# Words that claim nothing: function words, and those with which an agent talks about its search
_EMPTY = FUNCTION_WORDS.union(
    (files(__package__) / "search_words.txt").read_text(encoding="utf-8").split()
)


class _ScriptPatterns:
    """The patterns of a script: for a word (`word`), a word with a capital (`capitalised`), and
    such a word where a text (`first`) or a sentence (`initial`) begins.
    """

    def __init__(self, letter: str, capital: str, unspaced: str = "") -> None:
        capitalised = f"{capital}(?:{letter})*+"
        self.word = re.compile(f"{unspaced}(?:{letter})++")
        self.capitalised = re.compile(rf"{capital}(?<!(?:{letter}){capital})(?:{letter})*+")
        self.first = re.compile(rf"{_OPENING}{{0,12}}+{capitalised}")
        self.initial = re.compile(rf"[.!?:;\n]{_OPENING}{{0,11}}+{capitalised}")


_PLAIN = _ScriptPatterns("[0-9A-Za-z]", "[A-Z]")
_ANY = _ScriptPatterns(
    rf"[^\W_{UNSPACED}]|[{_MARKS}]", rf"[^\W_0-9a-z{UNSPACED}]", f"[{UNSPACED}]+|"
)


class Word(msgspec.Struct, frozen=True):
    """A word that claims something. `written` is its spelling, and `marked` says whether it is a
    name or a number.
    """

    written: str
    marked: bool


@dataclass(frozen=True)
class GroundingJudge(Judge):
    """Supports a hypothesis if enough of its words occur in the premise.

    ```
    p     = Σ weight(w) over the words w that occur in the premise / Σ weight(w) over all words w
    label = p ≥ threshold
    ```

    Each word of the hypothesis counts once:

    - Names (words capitalised inside a sentence) and numbers have the weight 2. They must occur as
      they are, apart from case, accents and a final s.
    - All other words have the weight 1. Only their first six letters must occur.
    - Function words have the weight 0, and so have English words with which an agent talks about
      its search, such as "found" and "confirms".
    - Words that the question holds, too, have half their weight where support is judged, and the
      weight 0 in a thought: repeating the question is no reading of the evidence.

    A hypothesis whose weights are all 0 has p = 0. Weights and thresholds were chosen on the train
    split of `measure.agreement.labelled`.

    Limits: words are compared, not meaning. A claim that uses the words of the evidence to say
    something else is supported, a paraphrase is not. Scripts written without blanks (Chinese,
    Japanese, Thai, …) are compared by pairs of characters, which overlap more by chance, and have
    no capitals. Between languages only names and numbers can be shared.

    Args:
        threshold: the smallest p at which a pair is supported, in all tasks. `None` takes 0.5 where
            a thought or a query is judged, and 0.75 elsewhere.

    Example:
        >>> pair = Pair("The tower stands in Paris since 1889.", "Built in 1887, the tower is in Paris.")
        >>> verdict = GroundingJudge().judge_batch([pair])[0]
        >>> verdict.p, verdict.label, verdict.why
        (0.5, False, "not in the premise: '1887', 'Built'")
    """

    threshold: float | None = None

    name: ClassVar[str] = "lexical"
    lexical: ClassVar[bool] = True
    reads_queries: ClassVar[bool] = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._judge(pair) for pair in pairs]

    def _judge(self, pair: Pair) -> Verdict:
        claimed, missing = _compared(pair.hypothesis, pair.premise)
        weights = _weights(claimed, pair)
        total = sum(weights.values())
        threshold = self.threshold
        if threshold is None:
            threshold = THRESHOLDS.get(pair.task, SUPPORTED)
        if not total:
            return Verdict(0.0, threshold <= 0, "it claims nothing of its own", self.name)
        p = 1 - sum(weights[key] for key in missing) / total
        missed = [key for key in missing if weights[key]]
        # Names and numbers first, since a reader checks them first
        missed.sort(key=lambda key: not claimed[key].marked)
        listed = ", ".join(repr(claimed[key].written) for key in missed[:3])
        why = f"not in the premise: {listed}" if listed else ""
        return Verdict(p, p >= threshold, why, self.name)


def _weights(claimed: Mapping[str, Word], pair: Pair) -> dict[str, float]:
    """The weight of each word of the hypothesis, by its key."""
    question_weight = QUESTION_WEIGHTS.get(pair.task, 1.0)
    question_words: frozenset[str] = frozenset()
    if pair.question and question_weight != 1:
        question_words = _question_keys(pair.question)
    weights: dict[str, float] = {}
    for key, word in claimed.items():
        weight = NAME_WEIGHT if word.marked else 1.0
        if key in question_words:
            weight *= question_weight
        weights[key] = weight
    return weights


def claims(text: str) -> dict[str, Word]:
    """The words of a text that claim something, in order, each by its key: the form in which words
    are compared.
    """
    folded = _fold(text)
    script = _script(folded)
    words = list(dict.fromkeys(_words(folded, script)))
    marked = _names_of(folded, script) + [word for word in words if word[0].isdigit()]
    spellings: dict[str, str] = {}  # of names and numbers, by their keys
    for key, spelling in zip(_keys(marked), marked, strict=True):
        spellings.setdefault(key, spelling)  # the first spelling of a key stays
    words_by_key: dict[str, Word] = {}
    for key, word in zip(_keys(words), words, strict=True):
        if key and key not in words_by_key:
            words_by_key[key] = Word(spellings.get(key, word), key in spellings)
    return words_by_key


def _names_of(folded: str, script: _ScriptPatterns) -> list[str]:
    """The words with a capital that does not begin a text or a sentence, each once."""
    first = script.first.match(folded)
    after_first = folded[first.end() :] if first else folded
    inside_sentences = script.initial.sub(" ", after_first)
    capitalised = dict.fromkeys(script.capitalised.findall(inside_sentences))
    return [word for word in capitalised if word[0].isupper()]


def terms(text: str) -> set[str]:
    """The keys of `claims(text)`, for half the work."""
    folded = _fold(text)
    words = set(_words(folded, _script(folded)))
    return set(_keys(words)) - {""}


def stems(text: str) -> list[tuple[int, int, str]]:
    """The words of a text, each with its place (start, end) and its stem. The stem is the key of a
    word with digits, else the first six letters of the key; it is empty for words that claim
    nothing.

    Example:
        >>> stems("He stood in Rome.")
        [(0, 2, ''), (3, 8, 'stood'), (9, 11, ''), (12, 16, 'rome')]
    """
    matches = list(_WRITTEN.finditer(text))
    keys = _keys(_fold(match[0]).strip() or match[0] for match in matches)
    words = []
    for match, key in zip(matches, keys, strict=True):
        has_digit = any(map(str.isdigit, key))
        stem = key if has_digit else key[:_BEGINNING]
        words.append((match.start(), match.end(), stem))
    return words


def pieces(text: str, premise: str) -> list[tuple[str, bool]]:
    """The text in pieces; True marks words that claim something and do not occur in the premise.

    Example:
        >>> pieces("It stood in Lyon.", "The tower stands in Paris.")
        [('It ', False), ('stood', True), (' in ', False), ('Lyon', True), ('.', False)]
    """
    _, missing_keys = _compared(text, premise)
    missing = set(missing_keys)
    if not missing:
        return [(text, False)] if text else []
    parts: list[tuple[str, bool]] = []
    end = 0
    for word in _WRITTEN.finditer(text):
        # "5kg" is one word as it is written, and two as it is compared.
        compared_words = _numbers_apart(_fold(word[0])).split()
        if not missing.isdisjoint(_keys(compared_words)):
            parts.append((text[end : word.start()], False))
            parts.append((word[0], True))
            end = word.end()
    parts.append((text[end:], False))
    return [(part, is_missing) for part, is_missing in parts if part]


def _compared(hypothesis: str, premise: str) -> tuple[Mapping[str, Word], list[str]]:
    """The claims of the hypothesis, and the keys of those that the premise does not hold."""
    claimed = _cached_claims(hypothesis)
    missing = _missing(claimed, premise)
    missing_numbers = [key for key in missing if key[0].isdigit()]
    if missing_numbers and _other_notation(missing_numbers, hypothesis, premise):
        # Compared again with all numbers in one notation; only then, since it takes time
        claimed = _cached_claims(_numbers_apart(hypothesis))
        missing = _missing(claimed, _numbers_apart(premise))
    return claimed, missing


def _other_notation(numbers: Sequence[str], hypothesis: str, premise: str) -> bool:
    """Whether some of these numbers may stand in the premise in another notation: in groups of
    digits, or joined to a unit.
    """
    if any(len(number) > 6 for number in numbers):
        return True
    if _UNIT.search(hypothesis) or _GROUPS.search(hypothesis):
        return True
    return any(_before_a_letter(number, premise) for number in numbers)


def _before_a_letter(number: str, text: str) -> bool:
    """Whether the number stands in the text with a letter right after it, as in "5kg"."""
    place = text.find(number)
    while place >= 0:
        end = place + len(number)
        if text[end : end + 1].isalpha():
            return True
        place = text.find(number, end)
    return False


def _numbers_apart(text: str) -> str:
    """The text without blanks inside numbers, and with one between a number and its unit."""
    if "\u00a0" in text or "\u202f" in text:  # blanks that keep the groups of a number together
        text = unicodedata.normalize("NFKC", text)
    text = _GROUPS.sub(lambda match: match[0].replace(" ", ""), text)
    return _UNIT.sub(r"\1 \2", text)


@lru_cache(maxsize=256)
def _cached_claims(hypothesis: str) -> Mapping[str, Word]:
    return MappingProxyType(claims(hypothesis))


@lru_cache(maxsize=256)
def _question_keys(question: str) -> frozenset[str]:
    """The keys of a question's words, also of those that claim nothing."""
    return frozenset(_singular(word) for word in _words_of(question)[0])


@lru_cache(maxsize=256)
def _words_of(premise: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a premise, and the first six letters of each."""
    folded = _fold(premise).lower()
    words = frozenset(_words(folded, _script(folded)))
    if not folded.isascii():
        words = words.union(_UNSPACED.findall(folded))
    return words, frozenset([word[:_BEGINNING] for word in words])


def _script(folded: str) -> _ScriptPatterns:
    """The patterns that a text needs."""
    if folded.isascii():
        return _PLAIN
    # The plain patterns are several times as fast, and do for curly quotes and dashes
    beyond_ascii = "".join(_BEYOND_ASCII.findall(folded))
    return _PLAIN if _ANY.word.search(beyond_ascii) is None else _ANY


def _words(folded: str, script: _ScriptPatterns) -> list[str]:
    """The words in order, of scripts without blanks each two neighbouring characters."""
    matches = script.word.findall(folded)
    if script is _PLAIN or _UNSPACED.search(folded) is None:
        return matches
    words = []
    for word in matches:
        if len(word) > 2 and _UNSPACED.match(word):
            words += [word[start : start + 2] for start in range(len(word) - 1)]
        else:
            words.append(word)
    return words


def _missing(claimed: Mapping[str, Word], premise: str) -> list[str]:
    """The keys of the words that a premise does not hold."""
    if len(claimed) <= _FEW and all(len(key) >= _SHORTEST for key in claimed):
        folded = _fold(premise).lower()
        if _script(folded) is _PLAIN:
            return [key for key, word in claimed.items() if not _holds(folded, key, word)]
    words, beginnings = _words_of(premise)
    missing = []
    for key, word in claimed.items():
        occurs = key in words or key + "s" in words
        if not word.marked:
            occurs = occurs or key[:_BEGINNING] in beginnings
        if not occurs:
            missing.append(key)
    return missing


def _holds(folded: str, key: str, word: Word) -> bool:
    """Whether a word stands in a text of the plain script. The same as looking it up in
    `_words_of`, without splitting the text into words.
    """
    if _stands(folded, key, whole_word=True) or _stands(folded, key + "s", whole_word=True):
        return True
    return not word.marked and _stands(folded, key[:_BEGINNING], whole_word=False)


def _stands(folded: str, letters: str, whole_word: bool) -> bool:
    """Whether a word of the text is these letters or, without `whole_word`, begins with them."""
    # Fewer letters than a beginning has are all that a word has
    whole_word = whole_word or len(letters) < _BEGINNING
    if _PLAIN.word.fullmatch(letters) is None:
        return False
    start = folded.find(letters)
    while start >= 0:
        end = start + len(letters)
        begins_word = not _is_letter(folded[start - 1 : start])
        ends_word = not _is_letter(folded[end : end + 1])
        if begins_word and (ends_word or not whole_word):
            return True
        start = folded.find(letters, start + 1)
    return False


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _keys(words: Iterable[str]) -> list[str]:
    """The keys of words: in small letters and without a final s; empty for words that claim
    nothing.
    """
    # One comprehension, which calls a function for few words only: much of an audit's time is here
    return [
        "" if word in _EMPTY else _singular(word) if word[-1] == "s" else word
        for word in map(str.lower, words)
    ]


def _singular(word: str) -> str:
    """A word without a final s, where it may be that of a plural."""
    if word[-1] == "s" and len(word) > 3 and word[-2] != "s":
        return word[:-1]
    return word


def _fold(text: str) -> str:
    """The text without accents (of Latin, Greek and Cyrillic letters), compatibility forms, soft
    hyphens and separators of thousands.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
        text = unicodedata.normalize("NFC", _STRESS.sub("", unicodedata.normalize("NFKD", text)))
    return _THOUSANDS.sub("", text)
