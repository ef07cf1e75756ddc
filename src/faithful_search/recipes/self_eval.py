"""Train a search agent that scores itself (trajectory-level self-evaluation), and evaluate it
before and after.

The policy is its own judge, so that it must have learnt to score first: see
`scripts/policies/sft_self_eval_tiny.yaml`. Every flag of `SelfEvalArguments`, `SearchGRPOConfig`
and TRL's `ModelConfig` may stand in the YAML file or on the command line, which wins.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import suites
from ..analysis.figures import self_preference
from ..bundled import shipped
from ..flags import flag, knob
from ..measure.behaviour import error_rows
from ..measure.evaluation import Record
from ..measure.report import aligned
from ..measure.writing import write_metrics
from ..rewards import (
    Correctness,
    Mix,
    Reward,
    SelfCorrectness,
    SelfRubric,
    WorldRubric,
    self_eval_mix,
)
from ..rewards.self_asked import SelfAsked
from ..rollout.arguments import EnvironmentArguments
from ..training.starting import RunArguments, run_recipe
from .running import TrainingRecipe

DEFAULT_CONFIG = shipped("recipes/configs") / "self_eval_tiny.yaml"


@dataclass
class SelfEvalArguments(RunArguments):
    """The questions, the rewards, and how the policy judges itself."""

    dialect: str = knob(EnvironmentArguments, "dialect", default="self_eval")
    triples: str = flag(
        "none", "Facts of the tool knowledge_graph. The default dialect can only search."
    )
    observation_tokens: int = knob(EnvironmentArguments, "observation_tokens", default=500)
    reward: Literal["trajectory", "answer_only"] = flag(
        "trajectory",
        "Reward: 'trajectory' (equation 3), or 'answer_only' (equation 2, the baseline).",
    )
    correctness: Literal["self", "em", "f1"] = flag(
        "self",
        "How R_a is measured: 'self' (the policy's own verdict, as in the paper), 'em' or 'f1'.",
    )
    self_temperature: float = knob(SelfAsked, "temperature")
    rubric_tokens: int = knob(SelfRubric, "reply_tokens")

    @property
    def self_rubric(self) -> SelfRubric:
        """R_t."""
        return SelfRubric(temperature=self.self_temperature, reply_tokens=self.rubric_tokens)

    @property
    def self_correctness(self) -> SelfCorrectness:
        """R_a by the policy's own verdict."""
        return SelfCorrectness(temperature=self.self_temperature)


def build_reward(script: SelfEvalArguments) -> Mix:
    """Equation 3 of the paper, or equation 2. On the bundled world its rubric is logged beside the
    policy's own scores.
    """
    correctness: Reward = script.self_correctness
    if script.correctness != "self":
        correctness = Correctness(script.correctness)
    trajectory = script.reward == "trajectory"
    watched = trajectory and suites.facts_are_known(script.questions)
    return self_eval_mix(
        trajectory,
        correctness=correctness,
        rubric=script.self_rubric,
        watched_by=WorldRubric() if watched else None,
    )


def build_metrics(script: SelfEvalArguments) -> dict[str, Reward]:
    """The policy's own verdicts, and on the bundled world those of its facts."""
    metrics: dict[str, Reward] = {
        "self_rubric": script.self_rubric,
        "self_correctness": script.self_correctness,
    }
    if suites.facts_are_known(script.eval_questions):
        metrics["world_rubric"] = WorldRubric()
    return metrics


def show_failures(record: Record) -> None:
    """Print why episodes failed, and write it to `errors.json`. If a rule's scores are known, draw
    `self_preference.png`.
    """
    out = Path(record.folder)
    runs = {"before": record.before, "after": record.after}
    counts = {when: run.errors for when, run in runs.items() if run and run.errors}
    write_metrics(out / "errors.json", counts)
    if counts:
        print(f"\n{aligned(error_rows(counts))}")
    if any("self_gap" in row for row in record.history):
        self_preference(record.history, out / "self_preference.png")


RECIPE = TrainingRecipe(
    file="recipes/self_eval.py",
    settings=SelfEvalArguments,
    config=DEFAULT_CONFIG,
    reward=lambda script, args, judge: build_reward(script),
    metrics=build_metrics,
    report=show_failures,
)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
