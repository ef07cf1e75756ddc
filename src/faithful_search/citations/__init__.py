"""What an answer or a thought cites: marks are found in any form, resolved to what was returned,
and taken out of the text before anybody judges it, since a mark claims nothing.

```
text ─ lists.own_list ──> entries ─┐
     └ marks.marks_of ──> marks ───┴─> Reading: the text without marks, its citations, their sources
```
"""

from functools import lru_cache

from ..trajectory import NO_TRACE, ToolCall, Trajectory
from .addresses import is_address, page_of, pages_in
from .reading import Reading, Sentence, may_cite, read
from .sources import Passage, Referent, Returned, ReturnedStep

__all__ = [
    "Passage",
    "Reading",
    "Referent",
    "Returned",
    "Sentence",
    "is_address",
    "page_of",
    "pages_in",
    "read",
    "read_answer",
    "read_thoughts",
    "returned_by",
    "without_marks",
]


def read_answer(trajectory: Trajectory) -> Reading:
    """What the trajectory's answer cites.

    Example:
        >>> from faithful_search.trajectory import Evidence
        >>> from faithful_search.trajectory import Step as Turn
        >>> search = Turn(evidence=(Evidence("Paris is the capital.", "Paris"),))
        >>> answer = "It is Paris [1], on the Seine [4]."
        >>> reading = read_answer(Trajectory((search, Turn(answer=answer)), answer=answer))
        >>> reading.plain
        'It is Paris, on the Seine.'
        >>> [(source.name, len(source.passages)) for source in reading.sources]
        [('[1]', 1), ('[4]', 0)]
    """
    answer = trajectory.answer or ""
    last = next((step for step in reversed(trajectory.steps) if step.answer is not None), None)
    sent = last.citations if last is not None and last.answer == answer else ()
    return read(answer, returned_by(trajectory), sent)


def read_thoughts(trajectory: Trajectory) -> list[Reading | None]:
    """What the thought of each step cites, of what tools had returned before it; `None` for a step
    without a thought. Where nothing was returned yet, a number in brackets is no citation.

    Example:
        >>> from faithful_search.trajectory import Evidence
        >>> from faithful_search.trajectory import Step as Turn
        >>> search = Turn(think="See [1].", evidence=(Evidence("Paris is the capital.", "Paris"),))
        >>> readings = read_thoughts(Trajectory((search, Turn(think="It is Paris [1].", answer="P"))))
        >>> [[len(source.passages) for source in reading.sources] for reading in readings]
        [[], [1]]
    """
    readings: list[Reading | None] = []
    for number, step in enumerate(trajectory.steps):
        returned = _returned_by(trajectory, number)
        readings.append(read(step.think, returned) if step.think else None)
    return readings


def without_marks(text: str, trajectory: Trajectory) -> str:
    """An answer or a thought of this trajectory without citation marks."""
    return read(text, returned_by(trajectory)).plain if may_cite(text) else text


def returned_by(trajectory: Trajectory) -> Returned:
    """What the trajectory's tools returned before its last answer."""
    number_of_last = len(trajectory.steps)
    for number, step in enumerate(trajectory.steps, start=1):
        if step.answer is not None:
            number_of_last = number
    return _returned_by(trajectory, number_of_last)


def _returned_by(trajectory: Trajectory, number: int) -> Returned:
    """What the tools of the first steps, so many, returned."""
    before = trajectory.steps[:number]
    question_and_golds = (trajectory.question or "", *trajectory.answers)
    returned = tuple(ReturnedStep(step.evidence, _addresses(step.call)) for step in before)
    # the writer of a report has not seen what was read afterwards, and cannot have counted it
    counted = all(issue.kind != NO_TRACE for issue in trajectory.issues)
    return _returned(question_and_golds, returned, counted)


@lru_cache(maxsize=64)
def _returned(
    question_and_golds: tuple[str, ...], steps: tuple[ReturnedStep, ...], counted: bool
) -> Returned:
    # the same trajectory is read for each of its metrics
    return Returned(question_and_golds, steps, counted)


def _addresses(call: ToolCall | None) -> tuple[str, ...]:
    """The addresses that a call names, as one that opens pages does."""
    if call is None:
        return ()
    addresses: list[str] = []
    for argument in call.arguments.values():
        values = argument if isinstance(argument, list) else [argument]
        for value in values:
            if isinstance(value, str) and is_address(value.strip()):
                addresses.append(value)
    return tuple(addresses)
