"""Does every verdict say what it rests on? Proof-of-Use's citation reward."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from ..evidence import supporting
from ..trajectory import Evidence, Step, Trajectory
from .base import Column, Result, Reward, Score

UNPARSED = frozenset(
    (
        "verdict_missing",
        "verdict_not_first",
        "verdict_invalid",
        "verdict_unclosed",
        "verdict_multiple",
        "ref_missing",
        "ref_unclosed",
        "ref_empty",
    )
)
"""The kinds of issues that make parse_ok false."""
MIXED = "ref_null_mixed"
"""The kind that makes consistency_ok false: `null` beside ids."""
VERDICT_ISSUES = UNPARSED | {MIXED, "verdict_unexpected"}
"""The kinds that concern `<helpful>` and `<ref>` alone."""
CHECKS = ("parse_ok", "consistency_ok", "ids_valid")


@dataclass(frozen=True)
class Citation(Reward):
    """R_cite: the mean over steps 2..T of +1 for a valid verdict and citation, -1 for any other.

    ```
    R_cite^t = +1 if parse_ok ∧ consistency_ok ∧ ids_valid else -1
    R_cite   = Σ_{t=2..T} R_cite^t / (T - 1),   0 when T = 1
    ```

    Proof-of-Use, section 3.3.1, equation 2. `parse_ok`: the tags are there, closed, and lower-case
    yes or no; `consistency_ok`: no comes with `null` and yes with at least one id (`null` beside
    ids is neither); `ids_valid`: every id is in the tool response of the *previous* step. After a
    response without evidence the only valid verdict is no. At T = 1 the value is 0.0 with
    `parts["applies"]` False. `parts` holds the three checks, each over t = 2..T.

    Args:
        dialects: those that ask for verdicts. A trajectory of another one gets `None`; one that
            names none is judged.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
        >>> search = Step(call=ToolCall("local_search"), evidence=(Evidence("Paris is the capital.", id="E1"),))
        >>> Citation().score(Trajectory(steps=(search, Step(helpful=True, refs=("E9",), answer="Paris")))).why
        'step 2: cites E9, which the previous response does not hold'

    How to hack it: say no and null at every step; `EvidenceSensitivity` and `AnswerSupport` pay for
    real use.
    """

    dialects: tuple[str, ...] = ("pou",)

    name: ClassVar[str] = "citation"
    results: ClassVar[Mapping[str, Result]] = {
        "citation_validity": Result(
            asks="does each step cite only passages that it had just received?",
            good="citations name passages that were returned",
            clean="every verdict cites only passages that it had just received",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "citation_validity": "Citation validity",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "citation": Column("cite", "citations"),
    }
    label: ClassVar[str] = "citation, R_cite"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def covers(self, dialect: str) -> bool:
        return not dialect or dialect in self.dialects

    def score(self, trajectory: Trajectory) -> Score:
        if not self.covers(trajectory.dialect):
            return Score(None, f"dialect {trajectory.dialect!r} has no verdicts to check")
        checks = step_checks(trajectory)
        if not checks:
            return Score(0.0, "no step after a tool response", {"applies": False})
        values = [1.0 if all(check) else -1.0 for check in checks]
        why = ""
        if -1.0 in values:
            index = values.index(-1.0)  # of the check; the step itself is the next one
            previous = trajectory.steps[index]
            step = trajectory.steps[index + 1]
            why = f"step {index + 2}: {_problem(previous, step, checks[index])}"
        parts: dict[str, Any] = {"applies": True}
        for place, name in enumerate(CHECKS):
            parts[name] = [check[place] for check in checks]
        return Score(sum(values) / len(values), why, parts, (None, *values))

    def measure(self, score: Score) -> float | None:
        """The share of steps with R_cite^t = +1: (R_cite + 1) / 2."""
        value = super().measure(score)
        return None if value is None else (value + 1) / 2


def _problem(previous: Step, step: Step, check: tuple[bool, ...]) -> str:
    """What is wrong with a step that fails one of the checks."""
    is_parsed, is_consistent, _ = check
    if not is_parsed:
        reasons = [issue.why for issue in step.issues if issue.kind in UNPARSED]
        return reasons[0] if reasons else "no readable verdict"
    if not is_consistent:
        reasons = [issue.why for issue in step.issues if issue.kind == MIXED]
        if reasons and reasons[0]:
            return reasons[0]
        return "says yes but cites nothing" if step.helpful else "says no but cites evidence"
    ids = {passage.id for passage in previous.evidence}
    absent = next(ref for ref in step.refs if ref not in ids)
    return f"cites {absent}, which the previous response does not hold"


def step_checks(trajectory: Trajectory) -> list[tuple[bool, bool, bool]]:
    """The three `CHECKS` of steps 2..T."""
    checks = []
    for previous, step in pairwise(trajectory.steps):
        is_parsed = step.helpful is not None
        is_consistent = step.helpful is bool(step.refs)
        if step.issues:  # most steps have none, and this runs on every step of a corpus
            kinds = {issue.kind for issue in step.issues}
            is_parsed = is_parsed and kinds.isdisjoint(UNPARSED)
            is_consistent = is_consistent and MIXED not in kinds
        ids_are_valid = True
        if step.refs:
            ids = {passage.id for passage in previous.evidence}
            ids_are_valid = ids.issuperset(step.refs)
        checks.append((is_parsed, is_consistent, ids_are_valid))
    return checks


def step_validity(trajectory: Trajectory) -> list[bool]:
    """Whether R_cite^t = +1, for t = 2..T (empty when T ≤ 1)."""
    return [all(checks) for checks in step_checks(trajectory)]


def cited_evidence(trajectory: Trajectory) -> tuple[Evidence, ...]:
    """The evidence that valid yes-steps cite, as far as it can support something, in order of first
    citation, each once.

    Of passages with one id in a response the first is meant.
    """
    cited: dict[tuple[str, str], Evidence] = {}
    # not strict: there is one pair less than steps
    for previous, step, valid in zip(
        trajectory.steps, trajectory.steps[1:], step_validity(trajectory), strict=False
    ):
        if valid and step.refs:
            by_id = {passage.id: passage for passage in reversed(supporting(previous))}
            for ref in step.refs:
                if ref in by_id:
                    cited.setdefault((ref, by_id[ref].text), by_id[ref])
    return tuple(cited.values())
