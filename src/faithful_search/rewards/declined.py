"""Does the answer say that it has none? The share of abstentions, which are neither right nor
unfaithful.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .. import answer_forms
from ..abstention import declines
from ..text import exact_match
from ..trajectory import Trajectory
from .base import Result, Reward, Score
from .turns import answer_of, short_answer

CLAIMS_NOTHING = "the answer claims nothing: it says that it has none"
"""Why nothing is measured of such an answer."""


@dataclass(frozen=True)
class Declined(Reward):
    """1 when the answer says that there is none ("I do not know"), else 0.

    ```
    declined = 1 if every sentence of the answer says so and it is no gold answer, else 0
    ```

    Ours. Words are compared, in the languages of `abstention`. A form around the answer (a box,
    JSON) and how sure the agent is are no matter. It has no value without an answer.
    Neither end of it is good: an honest abstention is better than a wrong answer and worse than a
    right one.

    How to hack it: it is no reward to be earned. A policy that is paid for it answers nothing.
    """

    name: ClassVar[str] = "declined"
    results: ClassVar[Mapping[str, Result]] = {
        "declined": Result(
            asks="does the answer say that it has none?",
            direction=0,
            clean="the answer claims something",
        ),
    }

    def score(self, trajectory: Trajectory) -> Score:
        if not (trajectory.answer or "").strip():
            return Score(None, "no answer given")
        if declined(trajectory):
            return Score(1.0, CLAIMS_NOTHING)
        return Score(0.0)


def declined(trajectory: Trajectory) -> bool:
    """Whether there is no answer, or one that says so and is not what the gold answers say, too."""
    return says_none(trajectory) and not exact_match(short_answer(trajectory), trajectory.answers)


def says_none(trajectory: Trajectory) -> bool:
    r"""Whether there is no answer, or one that says so in every sentence, in whatever form.

    Example:
        >>> answers = (r"\boxed{unknown}", "Unknown.\nConfidence: 5%", r"Unknown, or \boxed{Veldt}")
        >>> [says_none(Trajectory(answer=answer)) for answer in answers]
        [True, True, False]
    """
    answer = answer_of(trajectory)
    compared = short_answer(trajectory)
    # An answer that says nothing but how sure the agent is does not say that there is none
    claims = answer_forms.claimed(answer).strip() or answer
    return declines(claims) and (compared == answer or declines(compared))


def names_nothing(trajectory: Trajectory) -> bool:
    r"""Whether what is compared with gold answers says that there is none, whatever stands beside
    it: `He was a painter. \boxed{unknown}`.
    """
    return declines(short_answer(trajectory)) or says_none(trajectory)
