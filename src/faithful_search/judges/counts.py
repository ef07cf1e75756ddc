"""Numbers that say where in the evidence the words of a hypothesis stand, and whether they stand
together. The judge `counted` weighs them.

| of a claim (`support`) | |
|---|---|
| `words` | p of the comparison of words (`GroundingJudge`) |
| `together` | the largest share of its words that two neighbouring sentences hold |
| `halves` | the same for each half of the claim; the smaller of the two |
| `beyond_question` | in those two sentences, the share of its words that the question lacks |
| `neighbours` | the share of its pairs of neighbouring words that are neighbours in the evidence |
| `missing_names` | how many of its names and numbers stand nowhere |
| `denies_alone` | 1 if it has a negation ("not", "wasn't", "never", …) and the evidence has none |
| `speaks` | 1 if it says "I", "my", "me", "we" or "you" |
| `length`, `length_squared` | x = log(1 + words of the evidence), and (x - 4)² |

A sentence of a thought *denies* if it says that something was not found, *searches* if it names a
search to come, *plans* if it says what is to be done, and is a *finding* otherwise. What stands
before "but I couldn't" is a finding, too. A thought goes on if a sentence denies or searches. How
near words are is the largest share of them that two neighbouring sentences of the evidence hold.

| of a thought (`info_think`) | |
|---|---|
| `words` | as above |
| `dates_missing` | 1 if it gives full dates, and none of them stands in the evidence |
| `dates_found` | how many do, at most 2 |
| `asked_is_near` | if it goes on: how near those words of the question are that no finding has |
| `denied_is_near` | if it denies: how near the question's words are |
| `sought_is_near` | if it only searches: the same of its searches and plans, in one sentence |
| `first_names` | the largest share in one passage of the names in its first finding with names |
| `first_together` | how near the words of its first finding are |
| `findings` | the mean over its findings of the largest share of their words in one passage |
| `finds_nothing` | 1 if it states no finding |

Shares are between 0 and 1: where there are no words to look for, 0 for `together` and `neighbours`,
and 1 for the other counts of claims and of findings. Words are compared as `lexical.stems` has
them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from ..bundled import bundled_json
from ..text import sentences
from .base import Pair, Task
from .lexical import GroundingJudge, claims, stems

Stems = frozenset[str]
_BY_WORDS = GroundingJudge()
_MONTH = "|".join(bundled_json("statement_edits.json")["months"])
_DATE = re.compile(
    rf"\b(?:(?P<month>{_MONTH}) (?P<day>\d{{1,2}})"
    rf"|(?P<day_before>\d{{1,2}}) (?P<month_behind>{_MONTH})),? "
    r"(?P<year>\d{4})\b"
)
_DENIES = re.compile(
    r"\b(?:no|not|cannot|\w+n't) (?:\w+ ){0,4}?(?:find|found|mention(?:s|ed)?|specific|information"
    r"|direct(?:ly)?|provide[sd]?|explicit(?:ly)?|clear(?:ly)?)\b|\bunknown\b",
    re.IGNORECASE,
)
_SEARCHES = re.compile(
    r"\b(?:search query|another search|I(?:'ll| will) search|query to search|search for|find out)",
    re.IGNORECASE,
)
_PLANS = re.compile(
    r"^\W*(?:Step \d|Now,? (?:I|let)\b|Next,|I need|Let me|Let's|I should)"
    r"|\bI'll |\bI will |\bquery",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"(?:,? (?:and|but) )?\bI (?:could not|couldn't|did not|didn't|cannot)\b")
_SHORTEST_FINDING = 20
_MOST_DATES = 2
_USUAL_LENGTH = 4.0
_NEGATION = re.compile(r"\b(?:not|no|never|nor|without|none|cannot|\w+n't)\b", re.IGNORECASE)
_SPEAKER = re.compile(r"(?<!\bWar )\bI\b|\b(?:[Yy]ou|[Mm]y|[Mm]e|[Ww]e)\b")


def counts(pair: Pair) -> dict[str, float]:
    """What is counted of a pair, by name; empty for tasks in which nothing is."""
    counting = _COUNTING.get(pair.task)
    if counting is None:
        return {}
    pair = replace(pair, premise=_plain(pair.premise), hypothesis=_plain(pair.hypothesis))
    [verdict] = _BY_WORDS.judge_batch([pair])
    return {"words": verdict.p or 0.0, **counting(pair)}


def goes_on(thought: str) -> bool:
    """Whether a thought searches on, or says that something was not found.

    Example:
        >>> goes_on("I couldn't find specific information about her school.")
        True
    """
    thought = _plain(thought)
    return bool(_DENIES.search(thought) or _SEARCHES.search(thought))


def searches(sentence: str) -> bool:
    """Whether a sentence of a thought says that it will search."""
    return _SEARCHES.search(_plain(sentence)) is not None


def dates_of(text: str) -> set[tuple[int, str, int]]:
    """Year, month and day of the full dates in a text.

    Example:
        >>> dates_of("From May 3, 1902 to 4 June 1911.") == {(1902, "May", 3), (1911, "June", 4)}
        True
    """
    dates = set()
    for match in _DATE.finditer(text):
        month = match["month"] or match["month_behind"]
        day = match["day"] or match["day_before"]
        dates.add((int(match["year"]), month, int(day)))
    return dates


def _of_claim(pair: Pair) -> dict[str, float]:
    """The counts of the first table above."""
    words = _stem_list(pair.hypothesis)
    claimed = frozenset(words)
    evidence_words = _stem_list(pair.premise)
    windows = _windows(_by_sentence(pair.premise))
    best_window = max(windows, key=lambda window: _share(claimed, window))

    middle = max(1, len(words) // 2)
    halves = [frozenset(half) for half in (words[:middle], words[middle:]) if half]
    shares_of_halves = [_most(half, windows) for half in halves]

    pairs = list(pairwise(words))
    pairs_in_evidence = set(pairwise(evidence_words))
    neighbours = sum(words_of_pair in pairs_in_evidence for words_of_pair in pairs)

    names = _names(pair.hypothesis)
    has_negation = _NEGATION.search(pair.hypothesis) is not None
    evidence_has_negation = _NEGATION.search(pair.premise) is not None
    length = math.log(1 + len(evidence_words))
    return {
        "together": _share(claimed, best_window),
        "halves": min(shares_of_halves, default=1.0),
        "beyond_question": _share(claimed - _stems(pair.question), best_window, empty=1.0),
        "neighbours": neighbours / max(len(pairs), 1),
        "missing_names": float(len(names.difference(evidence_words))),
        "denies_alone": float(has_negation and not evidence_has_negation),
        "speaks": float(_SPEAKER.search(pair.hypothesis) is not None),
        "length": length,
        "length_squared": (length - _USUAL_LENGTH) ** 2,
    }


def _of_thought(pair: Pair) -> dict[str, float]:
    """The counts of the second table above."""
    statements = sentences(pair.hypothesis)
    denials = [sentence for sentence in statements if _DENIES.search(sentence)]
    seeking = [sentence for sentence in statements if searches(sentence)]
    plans = [sentence for sentence in statements if _PLANS.search(sentence)]
    findings = _findings(statements)
    thought_goes_on = bool(denials or seeking)

    stems_of_findings = []
    names_of_findings = []
    for finding in findings:
        stems_of_finding = _stems(finding)
        if stems_of_finding:
            stems_of_findings.append(stems_of_finding)
        # A capital says nothing at the beginning of a sentence; findings often begin with a name
        names = _names(f"in {finding}")
        if names:
            names_of_findings.append(names)

    evidence = _by_sentence(pair.premise)
    windows = _windows(evidence)
    passages = [_stems(passage) for passage in pair.premise.split("\n\n")]
    shares_of_findings = [_most(finding, passages) for finding in stems_of_findings]

    of_question = _stems(pair.question)
    unsaid = of_question.difference(*stems_of_findings)
    sought: Stems = frozenset().union(*(_stems(sentence) for sentence in [*seeking, *plans]))
    dates = dates_of(pair.hypothesis)
    dates_in_evidence = dates & dates_of(pair.premise)

    counted = {
        "dates_missing": float(bool(dates) and not dates_in_evidence),
        "dates_found": float(min(len(dates_in_evidence), _MOST_DATES)),
        "asked_is_near": _most(unsaid, windows) if thought_goes_on else 0.0,
        "denied_is_near": _most(of_question, windows) if denials else 0.0,
        "sought_is_near": _most(sought, evidence) if seeking and not denials else 0.0,
        # Where there are no such findings, these stay.
        "first_names": 1.0,
        "first_together": 1.0,
        "findings": 1.0,
        "finds_nothing": float(not findings),
    }
    if names_of_findings:
        counted["first_names"] = _most(names_of_findings[0], passages)
    if stems_of_findings:
        counted["first_together"] = _most(stems_of_findings[0], windows)
        counted["findings"] = sum(shares_of_findings) / len(shares_of_findings)
    return counted


_COUNTING: Mapping[Task, Callable[[Pair], dict[str, float]]] = {
    "support": _of_claim,
    "info_think": _of_thought,
}


def _findings(statements: Sequence[str]) -> list[str]:
    """What a thought says it found, in its order."""
    findings = []
    for sentence in statements:
        if _DENIES.search(sentence):
            denial = _DENIAL.search(sentence)
            if denial is not None and denial.start() >= _SHORTEST_FINDING:
                findings.append(sentence[: denial.start()])
        elif not searches(sentence) and not _PLANS.search(sentence):
            findings.append(sentence)
    return findings


def _plain(text: str) -> str:
    """The text with straight apostrophes, as the forms above have them."""
    return text.replace("\u2019", "'")


def _stem_list(text: str) -> list[str]:
    return [stem for _, _, stem in stems(text) if stem]


def _stems(text: str) -> Stems:
    return frozenset(_stem_list(text))


def _names(text: str) -> Stems:
    """The stems of the names and numbers of a text."""
    names = [key for key, word in claims(text).items() if word.marked]
    return _stems(" ".join(names))


def _by_sentence(text: str) -> list[Stems]:
    return [_stems(sentence) for sentence in sentences(text)] or [frozenset()]


def _windows(evidence: Sequence[Stems]) -> list[Stems]:
    """The stems of each two neighbouring sentences, and of each sentence alone."""
    neighbours = [first | second for first, second in pairwise(evidence)]
    return [*neighbours, *evidence]


def _share(words: Stems, there: Stems, empty: float = 0.0) -> float:
    """The share of the words that stand there; `empty` where there are no words."""
    if not words:
        return empty
    return len(words & there) / len(words)


def _most(words: Stems, places: Sequence[Stems]) -> float:
    """The largest share of the words that one of the places holds."""
    return max((_share(words, there) for there in places), default=0.0)
