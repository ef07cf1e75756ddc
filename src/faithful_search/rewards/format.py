"""Is the trajectory written as the protocol asks? The gate of Proof-of-Use's final reward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..trajectory import NO_TRACE, NOT_REACHABLE, Step, Trajectory
from .base import Column, Result, Reward, Score
from .citation import VERDICT_ISSUES
from .turns import asks_for_thoughts

# kinds of issues that are not the agent's: the environment, whoever wrote the text down, or the
# reader made them
_CUT_SHORT = frozenset({"response_unclosed", "response_missing", "elided", "another_episode"})
_UNPAIRED = frozenset({"response_misplaced", "response_unpaired", "response_assumed"})
_READ_AS = frozenset(
    {"dialect_assumed", "content_unread", "asked_again", "call_quoted", "text_repaired"}
    | {"call_unread", "tags_unread", "text_undecoded"}
)
_REPORT = frozenset({NO_TRACE, NOT_REACHABLE})
TRANSCRIPT = _CUT_SHORT | _UNPAIRED | _READ_AS | _REPORT | {"evidence_id_repeated"}
NOT_FORMAT = VERDICT_ISSUES | TRANSCRIPT


@dataclass(frozen=True)
class Format(Reward):
    """1.0 when every turn is well formed and the last one answers, else 0.0; `why` names the first
    problem.

    ```
    valid  <=>  every turn: <think> present and closed, exactly one of call and answer, the call readable as JSON
                and only the last turn answers
    ```

    Proof-of-Use, section 3.3.4: the basic tags (think, tool call, answer) pass the syntactic
    checks, as each dialect's parser notes them in a step's issues. The verdict and its references
    are `Citation`'s business: a broken `<ref>` does not close this gate, nor does a tool response
    that the environment cut short. A trajectory cut off before its answer is invalid, and so is a
    stray tag or text outside the tags. A dialect that asks for no thoughts needs none; parallel
    calls share the thought of their turn. Where an agent checks its answers (`Step.verified`), the
    trajectory ends with an answer or with a check that upheld it.

    `Score.steps` are all 1.0, or 0.0 at the step with the first problem alone: what the others are
    worth is not known.

    Example:
        >>> from faithful_search.trajectory import Step, ToolCall, Trajectory
        >>> search = Step(think="Look it up.", call=ToolCall("local_search", {"query": "capital of France"}))
        >>> Format().score(Trajectory(steps=(search,))).why
        'step 1: the trajectory ends without an answer'

    How to hack it: answer at once from memory. One well-formed turn passes; that is why it is a
    gate and not a reward.
    """

    name: ClassVar[str] = "format"
    results: ClassVar[Mapping[str, Result]] = {
        "protocol_format": Result(
            asks="is it written as its protocol asks?",
            clean="every turn is well formed, and the last one answers",
        ),
        "valid_format": Result(
            asks="is it written as its dialect asks?",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "valid_format": "Valid format",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "format": Column("format", "share with a valid format"),
    }
    label: ClassVar[str] = "valid format"

    def score(self, trajectory: Trajectory) -> Score:
        steps = trajectory.steps
        if not steps:
            return Score(0.0, "the trajectory has no steps")
        number, why = _first_problem(trajectory)
        if not why:
            return Score(1.0, steps=(1.0,) * len(steps))
        values: list[float | None] = [None] * len(steps)
        values[number - 1] = 0.0
        return Score(0.0, why, steps=tuple(values))


def _first_problem(trajectory: Trajectory) -> tuple[int, str]:
    """The number (from 1) of the first step with a problem, and what that is; empty where there is
    none. What belongs to no step is put down to the last one.
    """
    steps = trajectory.steps
    thinks = asks_for_thoughts(trajectory.dialect)
    for number in range(1, len(steps) + 1):
        why = _problem(steps, number, thinks)
        if why:
            return number, f"step {number}: {why}"
    for issue in trajectory.issues:
        if issue.kind not in NOT_FORMAT:
            return len(steps), issue.why
    return len(steps), ""


def step_problem(step: Step, thinks: bool) -> str:
    """What is first wrong with a step seen by itself; empty when nothing is."""
    for issue in step.issues:
        if issue.kind not in NOT_FORMAT:
            return issue.why
    if step.think is None and thinks and not step.same_turn:
        return "no <think> block"
    if step.verified is not None:  # a check of an answer acts in no way of its own
        return ""
    if step.answer is None and step.call is None:
        return "neither a call nor an answer"
    # In the turn of another step, that one's call stands beside the answer.
    if step.answer is not None and (step.call is not None or step.same_turn):
        return "both a call and an answer"
    return ""


def _problem(steps: tuple[Step, ...], number: int, thinks: bool) -> str:
    """What is first wrong with step `number` (from 1) where it stands; empty when nothing is."""
    step = steps[number - 1]
    is_last = number == len(steps)
    why = step_problem(step, thinks)
    if why:
        return why
    if step.verified is not None:
        return _problem_of_check(steps, number)
    if step.answer is None and is_last:
        return "the trajectory ends without an answer"
    if step.answer is not None and not is_last and steps[number].verified is None:
        return "answers before the last step"
    return ""


def _problem_of_check(steps: tuple[Step, ...], number: int) -> str:
    """What is first wrong with step `number`, in which the agent checks its answer."""
    step = steps[number - 1]
    is_last = number == len(steps)
    if number == 1 or steps[number - 2].answer is None:
        return "checks an answer where none was given"
    if step.call is not None or step.answer is not None:
        return "a check of the answer that also acts"
    if is_last and not step.verified:
        return "the trajectory ends without an answer"
    if step.verified and not is_last:
        return "goes on after its answer was upheld"
    return ""
