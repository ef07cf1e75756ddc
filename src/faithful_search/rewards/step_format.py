"""How many of its steps does the agent write as the protocol asks? A format reward that pays by the
step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..trajectory import Trajectory
from .base import Column, Reward, Score
from .format import step_problem
from .turns import asks_for_thoughts


@dataclass(frozen=True)
class StepFormat(Reward):
    """The share of the steps that have their thought and exactly one well-formed call or answer.

    ```
    R_f = mean over steps of (0.2 if the step is well formed, else 0)  =  0.2 · value
    ```

    Trajectory-level self-evaluation, section 2.2; the factor 0.2 is the weight that `self_eval_mix`
    gives it. Unlike `Format` it is no gate: one bad step costs its share, and a trajectory that
    ends without an answer costs nothing here. No step at all is 0.0.

    How to hack it: write many short steps; each well-formed one counts as much as the answer.
    """

    name: ClassVar[str] = "step_format"
    columns: ClassVar[Mapping[str, Column]] = {
        "step_format": Column("R_f/0.2", "share of well-formed steps"),
    }
    label: ClassVar[str] = "well-formed steps, R_f / 0.2"

    def score(self, trajectory: Trajectory) -> Score:
        if not trajectory.steps:
            return Score(0.0, "the trajectory has no steps")
        thinks = asks_for_thoughts(trajectory.dialect)
        problems = [step_problem(step, thinks) for step in trajectory.steps]
        first = next(
            (f"step {number}: {why}" for number, why in enumerate(problems, start=1) if why), ""
        )
        return Score(
            problems.count("") / len(problems),
            first,
            steps=tuple(float(not why) for why in problems),
        )
