"""The judges that compare words: is the hypothesis written in the premise, or how much of what it claims?"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import ClassVar

import msgspec

from ..text import FUNCTION_WORDS, normalize
from .base import Pair, Task, Verdict

# where p must be, by task, and for the others: thoughts and queries also say what is still to be found
THRESHOLDS: Mapping[Task, float] = {"info_think": 0.5, "think_search": 0.5}
SUPPORTED = 0.75
# by task, what a word counts that stands in the question already; as much as any other for the other tasks
QUESTION_WEIGHTS: Mapping[Task, float] = {"support": 0.5, "info_think": 0.0}
NAME_WEIGHT = 2.0  # what names and numbers count; other words count 1

_NO_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNSPACED = re.compile(f"[{_NO_BLANKS}]")
_MARKS = "\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_STRESS = re.compile("[\u0300-\u036f]")
# "1,200" and "1200" are one number
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_WRITTEN = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|[^\W_]+")
_OPENING = r"[\s\"'*#(\[\u201c\u2018-]"
# words that say nothing: function words, and those that one talks about searching with
_EMPTY = FUNCTION_WORDS.union(
    (files(__package__) / "search_words.txt").read_text(encoding="utf-8").split()
)


class _Script:
    """The patterns of a word, of one with a capital, and of such a one where a text or a sentence begins."""

    def __init__(self, letter: str, capital: str, unspaced: str = "") -> None:
        capitalised = f"{capital}(?:{letter})*"
        self.word = re.compile(f"{unspaced}(?:{letter})+")
        self.capitalised = re.compile(rf"{capital}(?<!(?:{letter}){capital})(?:{letter})*")
        self.first = re.compile(rf"{_OPENING}{{0,12}}+{capitalised}")
        self.initial = re.compile(rf"[.!?:;\n]{_OPENING}{{0,11}}+{capitalised}")


_PLAIN = _Script("[0-9A-Za-z]", "[A-Z]")
_ANY = _Script(rf"[^\W_{_NO_BLANKS}]|[{_MARKS}]", rf"[^\W_0-9a-z{_NO_BLANKS}]", f"[{_NO_BLANKS}]+|")


class Word(msgspec.Struct, frozen=True):
    """A word that claims something: as it was written, and whether it is a name or a number."""

    written: str
    marked: bool


@dataclass(frozen=True)
class LexicalJudge:
    """Supported when the normalised hypothesis occurs, on word boundaries, in one paragraph of the normalised premise;
    p is 1 or 0.

    Paragraphs are separated by blank lines, so that no match spans two documents. It is meant for short answers: a
    paraphrase or a whole sentence is rarely found, an empty hypothesis never is, and "yes" or "no" gets p = 0.
    """

    name: ClassVar[str] = "lexical"
    lexical: ClassVar[bool] = True
    reads_queries: ClassVar[bool] = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for pair in pairs:
            wanted, found = normalize(pair.hypothesis), False
            if not wanted:
                why = "nothing to look for"
            elif wanted in ("yes", "no"):
                why = f"{wanted!r} cannot be judged by containment"
            else:
                found = any(
                    f" {wanted} " in f" {normalize(part)} " for part in pair.premise.split("\n\n")
                )
                why = f"{wanted!r} is {'' if found else 'not '}in the evidence"
            verdicts.append(Verdict(float(found), found, why, self.name))
        return verdicts


@dataclass(frozen=True)
class GroundingJudge:
    """Supported when enough of the words that the hypothesis says something with occur in the premise.

    ```
    p     = Σ weight(w) over the words w that occur in the premise / Σ weight(w) over all words w
    label = p ≥ threshold
    ```

    Each word counts once. Function words and the words one talks about searching with (English) count nothing. Names
    (capitalised inside a sentence) and numbers count double and must occur as they are, but for case, accents and a
    final s; of other words the first six letters. Words of the question count half for support, and nothing for a
    thought: to repeat the question is not to consider the evidence. A hypothesis with nothing left has p = 0. Weights
    and thresholds were chosen on the train side of `measure.agreement.labelled`.

    Limits: words, not meaning. A claim that turns the evidence's own words round is supported, a paraphrase is not.
    Scripts written without blanks (Chinese, Japanese, Thai, …) are compared by pairs of characters, which overlap more
    by chance, and have no capitals. Between languages only names and numbers can be shared.

    Args:
        threshold: for all tasks; `None` for 0.5 where a thought or a query is judged and 0.75 elsewhere.

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
        said = claims(pair.hypothesis)
        factor = QUESTION_WEIGHTS.get(pair.task, 1.0) if pair.question else 1.0
        asked = {_singular(word) for word in _held(pair.question)[0]} if factor != 1 else set()
        weights = {
            key: (NAME_WEIGHT if word.marked else 1.0) * (factor if key in asked else 1)
            for key, word in said.items()
        }
        total = sum(weights.values())
        bar = THRESHOLDS.get(pair.task, SUPPORTED) if self.threshold is None else self.threshold
        if not total:
            return Verdict(0.0, bar <= 0, "it claims nothing of its own", self.name)
        missing = _missing(said, *_held(pair.premise))
        p = 1 - sum(weights[key] for key in missing) / total
        counted = [key for key in missing if weights[key]]
        # names and numbers first: they are what a reader checks
        shown = [
            repr(said[key].written)
            for key in sorted(counted, key=lambda key: not said[key].marked)[:3]
        ]
        return Verdict(
            p, p >= bar, f"not in the premise: {', '.join(shown)}" if shown else "", self.name
        )


def claims(text: str) -> dict[str, Word]:
    """The words of a text that say something, by what they are compared by, in order."""
    folded = _fold(text)
    script = _script(folded)
    words = list(dict.fromkeys(_words(folded, script)))
    # names and numbers by what they are compared by, each as it is first written where it is one
    first = script.first.match(folded)
    inside = script.initial.sub(" ", folded[first.end() :] if first else folded)
    names = [
        name for name in dict.fromkeys(script.capitalised.findall(inside)) if name[0].isupper()
    ]
    numbers = [word for word in words if word[0].isdigit()]
    last_first = (names + numbers)[
        ::-1
    ]  # so that the first spelling of a key is the one that stays
    marked = dict(zip(_keys(last_first), last_first, strict=True))
    found: dict[str, Word] = {}
    for key, written in zip(_keys(words), words, strict=True):
        if key and key not in found:
            found[key] = Word(marked.get(key, written), key in marked)
    return found


def terms(text: str) -> set[str]:
    """The keys of `claims(text)`, for half the work."""
    folded = _fold(text)
    return set(_keys(set(_words(folded, _script(folded))))) - {""}


def pieces(text: str, known: str) -> list[tuple[str, bool]]:
    """The text in pieces; True are the words that say something and that `known` does not hold.

    Example:
        >>> pieces("It stood in Lyon.", "The tower stands in Paris.")
        [('It ', False), ('stood', True), (' in ', False), ('Lyon', True), ('.', False)]
    """
    missing = set(_missing(claims(text), *_held(known)))
    found: list[tuple[str, bool]] = []
    at = 0
    for word in _WRITTEN.finditer(text) if missing else ():
        folded = _fold(word[0])
        if folded and _keys([folded])[0] in missing:
            found += [(text[at : word.start()], False), (word[0], True)]
            at = word.end()
    return [piece for piece in (*found, (text[at:], False)) if piece[0]]


@lru_cache(maxsize=256)
def _held(premise: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a premise, and the first six letters of each."""
    folded = _fold(premise).lower()
    words = frozenset(_words(folded, _script(folded)))
    if not folded.isascii():
        words = words.union(_UNSPACED.findall(folded))
    return words, frozenset([word[:6] for word in words])


def _script(folded: str) -> _Script:
    # the simple patterns are several times as fast; a curly quote or a dash alone needs no others
    plain = folded.isascii() or _ANY.word.search("".join(_BEYOND_ASCII.findall(folded))) is None
    return _PLAIN if plain else _ANY


def _words(folded: str, script: _Script) -> list[str]:
    """The words in order; scripts without blanks as pairs of characters."""
    found = script.word.findall(folded)
    if script is _PLAIN or _UNSPACED.search(folded) is None:
        return found
    words = []
    for word in found:
        pairs = len(word) > 2 and _UNSPACED.match(word)
        words += [word[i : i + 2] for i in range(len(word) - 1)] if pairs else [word]
    return words


def _missing(
    said: Mapping[str, Word], words: Collection[str], beginnings: Collection[str]
) -> list[str]:
    return [
        key
        for key, word in said.items()
        if key not in words
        and key + "s" not in words
        and (word.marked or key[:6] not in beginnings)
    ]


def _keys(words: Iterable[str]) -> list[str]:
    """What words are compared by; empty for those that say nothing."""
    # inlined for speed: most words do not end in s and need no further call
    return [
        "" if low in _EMPTY else _singular(low) if low[-1] == "s" else low
        for low in map(str.lower, words)
    ]


def _singular(word: str) -> str:
    return word[:-1] if word[-1] == "s" and len(word) > 3 and word[-2] != "s" else word


def _fold(text: str) -> str:
    """Without accents (of Latin, Greek and Cyrillic letters), compatibility forms and separators of thousands."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _STRESS.sub("", unicodedata.normalize("NFKD", text)))
    return _THOUSANDS.sub("", text)
