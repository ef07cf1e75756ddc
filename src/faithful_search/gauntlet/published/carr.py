"""CaRR's rubrics along the chain of evidence, as C-GRPO weighs them."""

from dataclasses import dataclass
from typing import ClassVar

from ...counterfactual import Link
from ...errors import ConfigError
from ...judges import Judge
from ...rewards import Correctness, Mix, Reward, Score
from ...text import holds, normalize
from ...trajectory import Trajectory
from ..gold import cited_sources, facts_of, stated_in

DIALECT = "pou"


@dataclass(frozen=True)
class ChainRubric(Reward):
    """The share of the chain's facts that are named, cited and connected to the answer.

    A question that is not of the bundled world has no value.
    """

    name: ClassVar[str] = "chain_rubric"

    def score(self, trajectory: Trajectory) -> Score:
        facts = facts_of(trajectory)
        if not facts:
            return Score(None, "the question is not one of the bundled world")
        connected = 0
        why = ""
        # from the answer back: a fact is connected as long as all those after it are upheld
        for fact in reversed(facts):
            why = _problem(fact, trajectory)
            if why:
                break
            connected += 1
        return Score(connected / len(facts), why, {"facts": len(facts), "connected": connected})


def _problem(fact: Link, trajectory: Trajectory) -> str:
    """Why a fact's rubric is not fulfilled; empty where it is."""
    written = [trajectory.question or "", trajectory.answer or ""]
    written += [step.think or "" for step in trajectory.steps]
    texts = list(map(normalize, written))
    for name in (fact.object, fact.subject):
        if not any(holds(text, normalize(name)) for text in texts):
            return f"{name!r} is not named"
    passages = [passage for source in cited_sources(trajectory) for passage in source.passages]
    if fact.asked in stated_in(passages, trajectory):
        return ""
    return f"no cited passage states the {fact.relation} of {fact.subject}"


def carr(weight: float = 0.3, judge: Judge | None = None) -> Mix:
    """CaRR's rubric reward, which counts on right answers only (C-GRPO).

    ```
    R        = (1 - α)·R_answer + α·R_answer·R_rubric
    R_rubric = |{rubrics fulfilled}| / |{rubrics}|
    ```

    A rubric is one fact that leads to the answer. It is fulfilled when all its entities are named,
    a cited passage states it, and a chain of such facts connects it to the answer.

    "Chaining the Evidence" (arXiv 2601.06021), and THUDM/CaRR:
    `deepsearch_rm_with_rubrics/launch_server.py`; α = 0.3 is that of
    `scripts/training/training_run_4b-C-GRPO-rubric0.3.sh`. Simplified: the rubrics are the facts of
    the bundled world, which say what is stated, where the original asks a model three times;
    entities may be named anywhere in the question, the thoughts or the answer, where the original
    reads the last message; R_rubric is not normalised within the group, as C-GRPO's is.

    Args:
        weight: α, between 0 and 1.
        judge: says whether the answer is right; by default it must be an exact match.

    How to hack it: remember the answer, search for the question and cite all that comes back
    (`cite_all`): 1 - α is paid for the answer alone, and rubrics of one fact are met by chance.
    """
    if not 0 <= weight <= 1:
        raise ConfigError(f"carr: weight must be in [0, 1], got {weight}")
    correctness = Correctness() if judge is None else Correctness("judge", judge=judge)
    return Mix(
        {"correctness": correctness, "chain_rubric": ChainRubric()},
        {"correctness": 1 - weight, "chain_rubric": weight},
        gate=None,
        only_right=("chain_rubric",),
    )
