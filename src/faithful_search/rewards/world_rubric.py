"""The rubric of trajectory-level self-evaluation, applied by the bundled world's facts instead of a model."""

from dataclasses import dataclass
from typing import ClassVar

from ..text import exact_match, normalize
from ..trajectory import Trajectory
from ..world import Change, chains_of, world_of
from .base import Reward, Score
from .self_rubric import RUBRIC

_ERRORS = {
    "none": ("none", "It is right, and the evidence states it."),
    "extras": ("minor", "The evidence states it, but the answer says more than was asked."),
    "misread": ("moderate", "The evidence states the reference."),
    "silent": ("moderate", "The evidence states the reference."),
    "early": ("major", "The search stopped before the evidence stated it."),
    "lost": ("major", "That is not what was asked."),
    "memory": ("critical", "No evidence holds the answer."),
}
"""By the name of an error, its class in the rubric and what is wrong with the trajectory."""
EXPLANATIONS = {error: explanation for error, (_, explanation) in _ERRORS.items()}


@dataclass(frozen=True)
class WorldRubric(Reward):
    """The score that the rubric gives, read off the facts of the question's chain.

    The first line that applies decides:

    | the answer | the evidence | error | score |
    |---|---|---|---|
    | none, or "unknown" | states the fact that was asked for | silent | 0.4 |
    | none, or "unknown" | does not | early | 0.2 |
    | stands neither in the evidence nor in the question | | memory | 0.0 |
    | right, or right with extras | does not state the fact | early | 0.2 |
    | right | states it | none | 1.0 |
    | right with extras | states it | extras | 0.7 |
    | a name of the question, or of an earlier fact of the chain | | lost | 0.2 |
    | any other | states the fact | misread | 0.4 |
    | any other | does not | early | 0.2 |

    Questions that are not of the bundled world have no value. In a changed world its own facts count. `parts["error"]`
    names the error, `why` explains it in the words of `EXPLANATIONS`. Ours: it teaches the policy to score itself, and
    checks it while it trains.

    How to hack it: search until the fact is there by chance, whatever the queries say.
    """

    name: ClassVar[str] = "world_rubric"

    def score(self, trajectory: Trajectory) -> Score:
        if trajectory.question not in chains_of() or not trajectory.answers:
            return Score(None, "the question is not one of the bundled world")
        error = _gravest_error(trajectory)
        return Score(RUBRIC[_ERRORS[error][0]], explained(error, trajectory), {"error": error})


def _gravest_error(trajectory: Trajectory) -> str:
    change = Change.of(trajectory.meta)
    chain = chains_of()[trajectory.question or ""]
    asked = change.asked if change else chain[-1]
    evidence = [item for step in trajectory.steps for item in step.evidence]
    statements = filter(None, (world_of(change).stated(item.text) for item in evidence))
    stated = any((statement.subject, statement.relation) == asked for statement in statements)
    question, answer = trajectory.question or "", trajectory.answer or ""
    if normalize(answer) in ("", "unknown"):
        return "silent" if stated else "early"
    right = bool(exact_match(answer, trajectory.answers))
    partly = not right and any(_holds(answer, gold) for gold in trajectory.answers)
    told = [text for item in evidence for text in (item.title, item.text)]
    # of an answer with extras, the right part must stand in the evidence: the whole is worded by the agent
    claimed = trajectory.answers if partly else (answer,)
    if not any(_holds(text, name) for text in (*told, question) for name in claimed):
        return "memory"
    if right or partly:
        return "early" if not stated else "none" if right else "extras"
    earlier = {normalize(fact.subject) for fact in (*chain, asked)}
    if normalize(answer) in earlier or _holds(question, answer):
        return "lost"
    return "misread" if stated else "early"


def explained(error: str, trajectory: Trajectory) -> str:
    """The error in words, with the trajectory's own names."""
    # answer and reference come first: a small model that has just written both can compare them
    gold, answer = trajectory.answers[0], trajectory.answer or "missing"
    return f"The answer is {answer}, the reference {gold}. {EXPLANATIONS[error]}"


def _holds(text: str, name: str) -> bool:
    return f" {normalize(name)} " in f" {normalize(text)} "
