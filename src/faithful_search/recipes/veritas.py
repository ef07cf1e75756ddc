"""Train a search agent with VERITAS's rewards, and evaluate it before and after. The exact match
counts from the beginning, and faithfulness is warmed up.

Every flag of `VeritasArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..bundled import shipped
from ..flags import flag, knob
from ..judges import Judge
from ..rewards import FAITHFULNESS, Mix, Warmup, veritas_mix
from ..rollout.arguments import EnvironmentArguments
from ..tasks import load_tasks
from ..training.starting import RunArguments, run_recipe
from .running import TrainingRecipe

if TYPE_CHECKING:
    from ..training.arguments import SearchGRPOConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "veritas_pairs.yaml"


class StepOrEpoch(str):
    """A step, as 15, which files write as a number, or an epoch, as 1.0ep."""


@dataclass
class VeritasArguments(RunArguments):
    """The questions, the rewards with their curriculum, and the judge."""

    dialect: str = knob(EnvironmentArguments, "dialect", default="search_r1")
    triples: str = flag(
        "none", "Facts of the tool knowledge_graph. Search-R1's dialect can only search."
    )
    turns: int = knob(EnvironmentArguments, "turns", default=5)
    turn_tokens: int = knob(EnvironmentArguments, "turn_tokens", default=500)
    observation_tokens: int = knob(EnvironmentArguments, "observation_tokens", default=500)
    force_answer: bool = knob(EnvironmentArguments, "force_answer", default=True)
    w_exact_match: float = knob(veritas_mix, "exact_match")
    w_info_think: float = knob(veritas_mix, "info_think")
    w_think_search: float = knob(veritas_mix, "think_search")
    w_think_answer: float = knob(veritas_mix, "think_answer")
    curriculum_start: StepOrEpoch = flag(
        "0",
        "T1: the step until which only the exact match counts, as 15, or the epoch, as 1.0ep.",
    )
    curriculum_end: StepOrEpoch = flag(
        "0",
        "T2: the step or epoch from which the faithfulness weights count fully. 0 for both lets "
        "them count fully from the beginning.",
    )
    soft: bool = knob(veritas_mix, "soft")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mix()  # refuses its weights

    def mix(self, judge: Judge | None = None, warmup: Warmup | None = None) -> Mix:
        """VERITAS's objective with these weights."""
        return veritas_mix(
            judge,
            exact_match=self.w_exact_match,
            info_think=self.w_info_think,
            think_search=self.w_think_search,
            think_answer=self.w_think_answer,
            warmup=warmup,
            soft=self.soft,
        )


def build_reward(
    script: VeritasArguments, args: "SearchGRPOConfig", judge: Judge | None = None
) -> Mix:
    """VERITAS's objective with its curriculum, or one of its ablations.

    Raises:
        ConfigError: when the curriculum is neither in steps nor in epochs, or ends before it
            starts.
        DataError: for questions that cannot be read.
    """
    epoch = args.steps_per_epoch(len(load_tasks(script.questions)))
    warmup = Warmup.parse(FAITHFULNESS, script.curriculum_start, script.curriculum_end, epoch)
    return script.mix(judge, warmup if warmup.end else None)


RECIPE = TrainingRecipe(
    file="recipes/veritas.py",
    settings=VeritasArguments,
    config=DEFAULT_CONFIG,
    reward=build_reward,
)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
