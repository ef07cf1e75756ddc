"""Answers compared as the papers compare them, and text made safe to show or write.

There are two normalisers, whose scores are not comparable: name the one meant.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from .errors import ConfigError

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
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_MARKUP = re.compile(r"[\\`*\[\]<>!#|~&]")
_FUNCTION_WORDS = """
a an the and or but nor if then than that this these those there here it its he she they them his her their we you i
me my our your us him is are was were be been being am do does did done have has had having will would shall should
can could may might must not no yes of in on at by for from to with as into about over under after before between
during through against per via up down out off so such very also just only too own same who whom whose which what
when where why how all any each both few more most other some while because until again once s t
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English words that carry no content of their own, lower-cased."""


def _squad(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def _pokee(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION_TO_SPACE).split())


_NORMALISERS: dict[str, Callable[[str], str]] = {"squad": _squad, "pokee": _pokee}


def normalize(text: str, how: str = "squad") -> str:
    """Lower-case and simplify. Raises `ConfigError` for another `how`.

    `squad` (Search-R1, SQuAD): delete ASCII punctuation, drop a / an / the, collapse blanks.
    `pokee` (PokeeResearch, DeepResearcher): punctuation becomes a space, articles stay.
    """
    return _normaliser(how)(text)


def exact_match(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """1.0 when the normalised prediction equals any normalised gold, else 0.0."""
    if prediction is None or not golds:
        return 0.0
    norm = _normaliser(how)
    said = norm(prediction)
    if not said:  # an article or a sign, as some golds are, and as an answer without content is
        return float(any(gold.strip().lower() == prediction.strip().lower() for gold in golds if prediction.strip()))
    return float(any(norm(gold) == said for gold in golds))


def sub_exact_match(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """1.0 when the normalised prediction contains any (non-empty) normalised gold, as characters, else 0.0."""
    if prediction is None:
        return 0.0
    norm = _normaliser(how)
    said = norm(prediction)
    return float(any(simple in said for simple in map(norm, golds) if simple))


def f1(prediction: str | None, golds: Sequence[str], how: str = "squad") -> float:
    """Token F1 = 2PR / (P + R), the best over golds.

    `squad` counts tokens as often as they occur, and gives 0 where one side is `yes`, `no` or `noanswer` and the other
    is not the same (HotpotQA's rule). `pokee` compares sets of tokens.

    Example:
        >>> f1("Ada King Lovelace", ["Ada Lovelace"])
        0.8
    """
    if prediction is None:
        return 0.0
    norm = _normaliser(how)
    said = norm(prediction)
    return max((_f1(said, norm(gold), how) for gold in golds), default=0.0)


def sentences(text: str) -> list[str]:
    """Split at `.`, `!`, `?` before a capital or a digit and line breaks, but not after abbreviations and initials."""
    found: list[str] = []
    held = 0
    for match in _SENTENCE_END.finditer(text):
        before = text[max(held, match.start() - 12) : match.start()]
        if "\n" not in match[0] and _ABBREVIATION.search(before.rstrip()):
            continue
        found.append(text[held : match.end()].strip())
        held = match.end()
    found.append(text[held:].strip())
    return [sentence for sentence in found if sentence]


def content_words(text: str) -> list[str]:
    """The lower-cased words of `text` in order, without English function words."""
    return [word for word in _WORD.findall(text.lower()) if word not in FUNCTION_WORDS]


def well_formed(text: str) -> str:
    """`text` with `?` for each half of a surrogate pair, which JSON may hold but no tokenizer or file takes."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """`text` with control characters spelled out, so that a terminal shows and does not obey them.

    Line breaks and tabs stay. Marks that turn the direction of writing are spelled out, too: a line may read otherwise.

    Example:
        >>> print(printable("a\\x1b[2Jb"))
        a\\x1b[2Jb
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def as_markdown(text: str) -> str:
    """`text` as one line of Markdown that shows it as it is, without markup, links, HTML or table cells of its own."""
    return _MARKUP.sub(r"\\\g<0>", printable(" ".join(text.split())))


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, the last one an ellipsis where something was cut off."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _normaliser(how: str) -> Callable[[str], str]:
    if how not in _NORMALISERS:
        raise ConfigError(f"unknown normaliser {how!r}; there are: {', '.join(_NORMALISERS)}")
    return _NORMALISERS[how]


def _f1(said: str, gold: str, how: str) -> float:
    ours, theirs = Counter(said.split()), Counter(gold.split())
    if how != "squad":
        ours, theirs = Counter(set(ours)), Counter(set(theirs))
    elif said != gold and (said in _CLOSED or gold in _CLOSED):
        return 0.0
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total()) if common else 0.0
