"""The rubric of trajectory-level self-evaluation, applied by the bundled world's facts instead of a
model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..evidence import supporting_passages
from ..text import exact_match, normalize
from ..trajectory import Trajectory
from ..world import Change, chains_of, world_of
from .base import Result, Reward, Score
from .self_rubric import RUBRIC
from .turns import short_answer

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

    Of an answer in a box or another form, only what stands in it counts. In a changed world the
    facts of that world count. A question that is not of the bundled world has no value.
    `parts["error"]` names the error, and `why` explains it in the words of `EXPLANATIONS`. Ours:
    the policy learns to score itself from this reward, and is compared with it while it trains.

    How to hack it: search until the fact is there by chance, whatever the queries say.
    """

    name: ClassVar[str] = "world_rubric"
    results: ClassVar[Mapping[str, Result]] = {
        "world_rubric": Result(
            asks="how does the research score by the bundled world's facts?",
        ),
    }
    label: ClassVar[str] = "rubric score by the world's facts"

    def score(self, trajectory: Trajectory) -> Score:
        if trajectory.question not in chains_of() or not trajectory.answers:
            return Score(None, "the question is not one of the bundled world")
        error = _gravest_error(trajectory)
        return Score(RUBRIC[_ERRORS[error][0]], explained(error, trajectory), {"error": error})


def _gravest_error(trajectory: Trajectory) -> str:
    """The name of the error, by the table of `WorldRubric`."""
    change = Change.of(trajectory.meta)
    world = world_of(change)
    question = trajectory.question or ""
    answer = short_answer(trajectory)
    chain = chains_of()[question]
    fact_asked = chain[-1] if change is None else change.asked
    is_stated = False
    texts = [question]
    for passage in supporting_passages(trajectory):
        texts += [passage.title, passage.text]
        statement = world.stated(passage.text)
        if statement is not None and (statement.subject, statement.relation) == fact_asked:
            is_stated = True
    if normalize(answer) in ("", "unknown"):
        return "silent" if is_stated else "early"
    is_right = bool(exact_match(answer, trajectory.answers))
    has_extras = not is_right and any(_holds(answer, gold) for gold in trajectory.answers)
    # An answer with extras is worded by the agent: only its right part can stand in the evidence
    names = trajectory.answers if has_extras else (answer,)
    if not any(_holds(text, name) for text in texts for name in names):
        return "memory"
    if is_right or has_extras:
        if not is_stated:
            return "early"
        return "none" if is_right else "extras"
    subjects = {normalize(fact.subject) for fact in (*chain, fact_asked)}
    if normalize(answer) in subjects or _holds(question, answer):
        return "lost"
    return "misread" if is_stated else "early"


def explained(error: str, trajectory: Trajectory) -> str:
    """The error in words, with the trajectory's answer and its gold answer."""
    gold = trajectory.answers[0]
    answer = short_answer(trajectory) or "missing"
    # Answer and reference come first: a small model that has just written both can compare them
    return f"The answer is {answer}, the reference {gold}. {EXPLANATIONS[error]}"


def _holds(text: str, name: str) -> bool:
    """Whether the text holds the name as whole words."""
    return f" {normalize(name)} " in f" {normalize(text)} "
