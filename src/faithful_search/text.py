"""Answers compared as the papers compare them, text made safe to write, and known names
found in it.

There are three normalisers, whose scores are not comparable: name the one meant.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from .answer_tokens import UNSPACED, tokens
from .bundled import bundled_json
from .errors import ConfigError, DataError

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PUNCTUATION_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation, " "))
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# Answers that are right or wrong as a whole (HotpotQA)
_CLOSED = frozenset(("yes", "no", "noanswer"))
# White space after `.`, `!`, `?` or `…` (and closing quotes) and before a capital or a digit; line
# breaks; and the place after a full stop of Chinese and Japanese
_SENTENCE_END = re.compile(
    r"(?<=[.!?\u2026])[\"'\u201d\u2019)\]]*+\s+(?=[\"'\u201c\u2018(\[]?[A-Z0-9À-ÖØ-Þ])|\n+|(?<=[\u3002\uff01\uff1f])"
)
# An abbreviation or an initial at the end of a text, whose `.` ends no sentence
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Rev|Hon|vs|etc|No|Vol|Fig|Inc|Ltd|Co|Mt|approx|ca|cf|e\.g|i\.e)"
    r"|\b[A-Z](?:\.[A-Z])*)\.$"
)
_NAME_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(f"[{UNSPACED}]")  # a character of a script that is written without blanks
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


def exact_match(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """1.0 when the normalised prediction equals any normalised gold, else 0.0."""
    if prediction is None or not golds:
        return 0.0
    answer = normalize(prediction, how)
    if answer:
        return float(any(normalize(gold, how) == answer for gold in golds))
    # Nothing is left of an article or a sign: these are compared as they are, since some golds are
    # such ("A", "+").
    as_written = prediction.strip().lower()
    if not as_written:
        return 0.0
    return float(any(gold.strip().lower() == as_written for gold in golds))


def sub_exact_match(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """1.0 when the normalised prediction contains any (non-empty) normalised gold, else 0.0.

    `squad` and `pokee` look for the gold as characters, as published: `no` is in `unknown`.
    `unicode` looks for whole words, and for `yes` and `no` as the first or the last of them.

    Example:
        >>> sub_exact_match("Unknown", ["no"]), sub_exact_match("Unknown", ["no"], "unicode")
        (1.0, 0.0)
    """
    if prediction is None:
        return 0.0
    answer = normalize(prediction, how)
    for gold in golds:
        normalized_gold = normalize(gold, how)
        if normalized_gold and _contains(answer, normalized_gold, how):
            return 1.0
    return 0.0


def _contains(answer: str, gold: str, how: str) -> bool:
    """Whether a normalised answer contains a normalised gold; see `sub_exact_match`."""
    if how != "unicode":
        return gold in answer
    if gold in _CLOSED:  # "There is no source" does not answer no
        words = answer.split()
        return gold in (*words[:1], *words[-1:])
    return f" {gold} " in f" {answer} "


def f1(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """Token F1 = 2PR / (P + R), the best over golds.

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
    answer_words = answer.split()
    best = 0.0
    for gold in golds:
        normalized_gold = normalize(gold, how)
        gold_words = normalized_gold.split()
        if how == "pokee":
            answer_counts, gold_counts = Counter(set(answer_words)), Counter(set(gold_words))
        else:
            is_closed = answer in _CLOSED or normalized_gold in _CLOSED
            if is_closed and answer != normalized_gold:
                continue
            answer_counts, gold_counts = Counter(answer_words), Counter(gold_words)
        common = (answer_counts & gold_counts).total()
        if common:
            f1_of_gold = 2 * common / (answer_counts.total() + gold_counts.total())
            best = max(best, f1_of_gold)
    return best


def sentences(text: str) -> list[str]:
    """Split at `.`, `!`, `?` before a capital or a digit and line breaks, but not after
    abbreviations and initials.
    """
    parts: list[str] = []
    start = 0  # of the sentence that is being read
    for match in _SENTENCE_END.finditer(text):
        # An abbreviation has at most so many characters.
        before = text[max(start, match.start() - 12) : match.start()]
        if "\n" not in match[0] and _ABBREVIATION.search(before.rstrip()):
            continue
        parts.append(text[start : match.end()].strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def content_words(text: str) -> list[str]:
    """The lower-cased words of `text` in order, without English function words."""
    return [word for word in _WORD.findall(text.lower()) if word not in FUNCTION_WORDS]


def well_formed(text: str) -> str:
    """`text` with `?` for each lone surrogate: JSON may hold them, no tokenizer or file takes them."""
    return text.encode("utf-8", "replace").decode()


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, the last one an ellipsis where something was cut off."""
    return text if len(text) <= most else text[: most - 1] + "…"


class NameFinder:
    """Finds known names in text: whole words only, the longest first, left to right. A text takes
    one pass over its words.

    Args:
        names: each with its type, which is only kept here for callers.

    Example:
        >>> finder = NameFinder({"Ann": "person", "Ann Lee": "person"})
        >>> finder.sub(str.upper, "Ann Lee met Ann, not Annie.")
        'ANN LEE met ANN, not Annie.'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        # By its first word, each name, and how many characters of it stand before that word
        by_first_word: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for name in sorted(names, key=len, reverse=True):  # "Ann Lee" is found before "Ann"
            first_word = _NAME_WORD.search(name)
            if first_word is None:
                raise DataError(
                    f"the name {name!r} has no letter or digit, so it cannot be found in text"
                )
            by_first_word[first_word.group()].append((name, first_word.start()))
        self._by_first_word = dict(by_first_word)
        # Remembered, since the same passages are looked through again and again.
        self.segments = lru_cache(maxsize=65536)(self._segments)

    def sub(self, image: Callable[[str], str], text: str) -> str:
        """`text` with every name replaced by `image(name)`."""
        parts = list(self.segments(text))
        for place in range(1, len(parts), 2):
            parts[place] = image(parts[place])
        return "".join(parts)

    def find(self, text: str) -> tuple[str, ...]:
        """The names in `text`, in order, repeats included."""
        return self.segments(text)[1::2]

    def _segments(self, text: str) -> tuple[str, ...]:
        """What stands before the first name, that name, what stands before the next, and so on to
        the end of the text; joined they are `text` again.
        """
        parts: list[str] = []
        end = 0  # of the last name
        for match in _NAME_WORD.finditer(text):
            for name, offset in self._by_first_word.get(match.group(), ()):
                start = match.start() - offset
                if start < end or not text.startswith(name, start):
                    continue
                if _whole(text, start, start + len(name)):
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
    if not _NAME_WORD.search(name):
        return False
    start = text.find(name)
    while start >= 0 and not _whole(text, start, start + len(name)):
        start = text.find(name, start + 1)
    return start >= 0


def unqualified(title: str) -> str:
    """A title without a bracketed qualifier at its end, case kept."""
    name, bracket, qualifier = title.rstrip().rpartition("(")
    is_qualified = bracket and qualifier.endswith(")") and ")" not in qualifier[:-1]
    return name.rstrip() if is_qualified else title


def plain(title: str) -> str:
    """A title by which pages are compared: case-folded, one space between words, and without a
    qualifier, since annotations name a page with or without it.
    """
    return " ".join(unqualified(title).casefold().split())


def _whole(text: str, start: int, end: int) -> bool:
    """Whether no word goes on over either end of this part of the text."""
    if start > 0 and _in_word(text[start - 1]) and _in_word(text[start]):
        return False
    return end == len(text) or not (_in_word(text[end - 1]) and _in_word(text[end]))


def _in_word(character: str) -> bool:
    """Whether two such characters beside each other belong to one word. Those of scripts without
    blanks do not count: there nothing shows where a word ends.
    """
    if character.isascii():
        return character.isalnum() or character == "_"
    return character.isalnum() and _UNSPACED.match(character) is None
