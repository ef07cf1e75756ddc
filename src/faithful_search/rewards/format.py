"""Is the trajectory written as the protocol asks? The gate of Proof-of-Use's final reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..trajectory import Trajectory
from .base import Reward, Score
from .citation import VERDICT_ISSUES

VALID = Score(1.0)
NOT_FORMAT = VERDICT_ISSUES | {"response_unclosed"}


@dataclass(frozen=True)
class Format(Reward):
    """1.0 when every turn is well formed and the last one answers, else 0.0; `why` names the first problem.

    ```
    valid  <=>  every turn: <think> present and closed, exactly one of call and answer, the call readable as JSON
                and only the last turn answers
    ```

    Proof-of-Use, section 3.3.4: the overall format is valid only when the basic tags (think, tool call, answer) pass
    the syntactic checks. The verdict and its references are `Citation`'s business: a broken `<ref>` costs citation
    reward but does not close this gate. Nor does a tool response that the environment cut short. A trajectory cut off
    before its answer is invalid, and so is a stray tag or text outside the tags.

    Example:
        >>> from faithful_search.trajectory import Step, ToolCall, Trajectory
        >>> search = Step(think="Look it up.", call=ToolCall("local_search", {"query": "capital of France"}))
        >>> Format().score(Trajectory(steps=(search, Step(think="Found.", answer="Paris")))).value
        1.0
        >>> Format().score(Trajectory(steps=(search,))).why
        'step 1: the trajectory ends without an answer'

    How to hack it: answer at once from memory. One well-formed turn passes; that is why it is a gate and not a reward.
    """

    name: ClassVar[str] = "format"

    def score(self, trajectory: Trajectory) -> Score:
        why = first_problem(trajectory)
        return Score(0.0, why) if why else VALID


def first_problem(trajectory: Trajectory) -> str:
    """What is first wrong with the basic format; empty when nothing is."""
    steps = trajectory.steps
    if not steps:
        return "the trajectory has no steps"
    last = len(steps)
    for number, step in enumerate(steps, start=1):
        if step.issues:
            for issue in step.issues:
                if issue.kind not in NOT_FORMAT:
                    return f"step {number}: {issue.why}"
        if step.think is None:
            return f"step {number}: no <think> block"
        if step.answer is not None and (step.call is not None or number < last):
            what = "both a call and an answer" if step.call else "answers before the last step"
            return f"step {number}: {what}"
        if step.answer is None and (step.call is None or number == last):
            what = "the trajectory ends without an answer" if step.call else "neither a call nor an answer"
            return f"step {number}: {what}"
    return next((issue.why for issue in trajectory.issues), "") if trajectory.issues else ""
