"""Was every source that the answer cites returned by a tool?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..citations import Reading, Referent, read_answer
from ..trajectory import NO_TRACE, Step, Trajectory
from .base import Result, Reward, Score

PLACES = "numbers count passages in the order in which they were returned"
RESULTS_UNKNOWN = "what the tools returned is not in the trajectory"
REPORT = "a report without a trace: what its writer's tools returned is not known"
REPORT_UNREAD = "a report without a trace: what it cites was not read (audit --fetch reads it)"
_SHOWN = 3


@dataclass(frozen=True)
class CitationReturned(Reward):
    """The share of the sources that the answer cites which a tool returned before the answer.

    ```
    citation_returned = |{different sources cited that were returned}| / |{different sources cited}|
    ```

    Ours. Citations are read in any form (`faithful_search.citations`), also from a list of sources
    at the answer's end and from what an API sent beside the text. A source counts once, however
    often and in however many ways it is cited. A citation that refers to nothing was never
    returned.

    A number refers to the entry of the answer's list of sources; without a list, to the result that
    was printed with this number; else to the passage of that place, counted over all results, as
    the reason then says.

    There is no value for an answer that cites nothing, for a report without a trace, and where it
    is not known what was returned: the trajectory holds no result of any call (an API ran the tools
    itself), or an API sent citations without its searches. Where only some calls have no result, a
    source that an API sent and that stands in no other result is not counted. A policy cannot write
    such a citation.

    `parts["sources"]` has the name of each other source, whether it was `returned`, and by what it
    was found (`by`, see `citations.sources.Referent`). `parts["unknown"]` is the number of sources
    that were not counted.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step
        >>> search = Step(evidence=(Evidence("Paris is the capital.", "Paris"),))
        >>> answer = "It is Paris [1], on the Seine [4]."
        >>> CitationReturned().score(Trajectory((search, Step(answer=answer)), answer=answer)).why
        'never returned: [4]; numbers count passages in the order in which they were returned'

    How to hack it: cite one passage that was returned, whatever it says; `CitationSupport` reads
    it.
    """

    name: ClassVar[str] = "citation_returned"
    results: ClassVar[Mapping[str, Result]] = {
        "citation_returned": Result(
            asks="which share of the sources that the answer cites did a tool return?",
            good="what the answer cites was returned",
            clean="a tool returned every source that the answer cites",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "citation_returned": "Cited sources that were returned",
    }

    def score(self, trajectory: Trajectory) -> Score:
        reading = read_answer(trajectory)
        sources = different(reading)
        if not sources:
            return Score(None, why_nothing_is_cited(trajectory))
        if is_report(trajectory):
            return Score(None, REPORT)
        if results_unknown(trajectory):
            return Score(None, RESULTS_UNKNOWN)
        unknown = unknown_sources(trajectory, reading)
        sources = [source for source in sources if source.key not in unknown]
        if not sources:
            return Score(None, RESULTS_UNKNOWN, {"unknown": len(unknown)})
        absent = [source.name for source in sources if not source.passages]
        reasons = []
        if absent:
            reasons.append(f"never returned: {shown(absent)}")
        if any(source.by == "place" for source in sources):
            reasons.append(PLACES)
        records = [
            {"name": source.name, "returned": bool(source.passages), "by": source.by}
            for source in sources
        ]
        value = 1 - len(absent) / len(sources)
        parts: dict[str, Any] = {"sources": records}
        if unknown:
            parts["unknown"] = len(unknown)
        return Score(value, "; ".join(reasons), parts)


def different(reading: Reading) -> list[Referent]:
    """The sources that a text cites, each once."""
    by_key: dict[str, Referent] = {}
    for source in reading.sources:
        by_key.setdefault(source.key, source)
    return list(by_key.values())


def results_unknown(trajectory: Trajectory) -> bool:
    """Whether something was searched of which the trajectory holds no result: tools were called, or
    an API sent citations of what it searched itself.
    """
    if any(step.evidence or step.note.strip() for step in trajectory.steps):
        return False
    called = any(step.call is not None for step in trajectory.steps)
    return called or any(step.citations for step in trajectory.steps)


def unknown_sources(trajectory: Trajectory, reading: Reading) -> frozenset[str]:
    """The sources, by their `key`, that an API says the answer cites and no result here holds,
    where a call has no result at all: what that returned, as an API's own search, is not known.
    """
    if not any(map(_has_no_result, trajectory.steps)):
        return frozenset()
    absent = []
    for citation, source in zip(reading.citations, reading.sources, strict=True):
        if citation.how == "api" and not source.passages:
            absent.append(source.key)
    return frozenset(absent)


def _has_no_result(step: Step) -> bool:
    """Whether a step calls a tool of which neither evidence nor a note is there."""
    return step.call is not None and not step.evidence and not step.note.strip()


def is_report(trajectory: Trajectory) -> bool:
    """Whether this is a report without a trace. `audit --fetch` may have read what it cites."""
    return any(issue.kind == NO_TRACE for issue in trajectory.issues)


def is_unread_report(trajectory: Trajectory) -> bool:
    """Whether this is a report without a trace, of whose sources none was read."""
    return is_report(trajectory) and not any(step.evidence for step in trajectory.steps)


def why_nothing_is_cited(trajectory: Trajectory) -> str:
    """Why an answer without citations has no value."""
    answered = (trajectory.answer or "").strip()
    return "the answer cites nothing" if answered else "no answer given"


def shown(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    listed = ", ".join(names[:_SHOWN])
    further = len(names) - _SHOWN
    return f"{listed} and {further} more" if further > 0 else listed
