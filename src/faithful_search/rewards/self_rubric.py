"""How good does the policy itself find its search? The trajectory reward of trajectory-level
self-evaluation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar

from .. import dialects
from ..dialects.fence import Fence
from ..trajectory import Trajectory
from .base import Column, Result
from .self_asked import SelfAsked

# the paper's scores by the gravest error of a trajectory
RUBRIC = {"none": 1.0, "minor": 0.7, "moderate": 0.4, "major": 0.2, "critical": 0.0}
LABEL = "rubric"
"""The entry in `meta` of a scored trajectory: `{"score": 0.4, "why": "…"}`, with the name of the
"error" where the world's facts gave the score.
"""
# not what is of another scale, such as 1/5 or 1%
_SCORE = re.compile(
    r"score[\s:*_=\"']{1,8}([01](?:\.[0-9]+)?|\.[0-9]+)(?!\s*[/%]|[0-9]|\.[0-9])", re.IGNORECASE
)


@dataclass(frozen=True)
class SelfRubric(SelfAsked):
    """R_t: the policy's own score of its trajectory, by a rubric and given the reference answer.

    ```
    1.0 no error
    0.7 minor:    partly right, or with irrelevant extras
    0.4 moderate: the evidence is there but misread
    0.2 major:    another question answered, or the search stopped too early
    0.0 critical: answered from memory, even if right
    ```

    Trajectory-level self-evaluation, section 2.2 (the prompt is ours; the paper does not print its
    own). The last score in the reply counts, and any other number than these five is none.

    How to hack it: rate yourself well; `WorldRubric` or a judge from outside shows it, see
    docs/self-evaluation.md.
    """

    name: ClassVar[str] = "self_rubric"
    results: ClassVar[Mapping[str, Result]] = {
        "self_rubric": Result(
            asks="how does the policy score its own research?",
            direction=0,
        ),
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "self_rubric": Column("R_t", "the policy's rubric score"),
    }
    label: ClassVar[str] = "the policy's rubric score, R_t"
    opening: ClassVar[str] = "Rate this search."
    block: ClassVar[str] = "trajectory"
    instructions: ClassVar[str] = (
        (files(__package__) / "self_rubric.txt").read_text(encoding="utf-8").strip()
    )

    def shown(self, trajectory: Trajectory, fence: Fence) -> str:
        return f"<trajectory>\n{fence.escape(shown_text(trajectory))}\n</trajectory>"

    def read(self, reply: str) -> float | None:
        score, _ = read_rubric(reply)
        return score


def shown_text(trajectory: Trajectory) -> str:
    """The trajectory as whoever scores it reads it: as it was written."""
    if trajectory.text:
        return trajectory.text
    return dialects.load(trajectory.dialect or "self_eval").render(trajectory)


def read_rubric(reply: str) -> tuple[float | None, str]:
    """The score in a reply, `None` where there is none of the rubric's, and the explanation before
    it.

    Example:
        >>> read_rubric("It stopped too early.\\nScore: 0.2"), read_rubric("Score: 0.5")
        ((0.2, 'It stopped too early.'), (None, ''))
    """
    # the last one: an explanation may weigh other scores before it decides
    scores = list(_SCORE.finditer(reply))
    if not scores:
        return None, reply.strip()
    value = float(scores[-1][1])
    explanation = reply[: scores[-1].start()].rstrip(" *_\"'#\n\t")
    return value if value in RUBRIC.values() else None, explanation.strip()


def rubric_reply(explanation: str, score: float) -> str:
    """A reply as `SelfRubric` reads it, to teach with."""
    return f"{explanation}\nScore: {score:.1f}"
