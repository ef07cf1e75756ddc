"""Train a search agent with VERITAS's rewards, and evaluate it before and after. The exact match
counts from the beginning, and faithfulness is warmed up.

Every flag of `VeritasArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..bundled import shipped
from ..errors import ConfigError
from ..flags import flag
from ..judges import Judge
from ..rewards import FAITHFULNESS, Mix, Warmup, veritas_mix
from ..tasks import load_tasks
from ..training.starting import RunArguments, run_recipe
from .running import TrainingRecipe

if TYPE_CHECKING:
    from ..training.arguments import SearchGRPOConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "veritas_pairs.yaml"


@dataclass
class VeritasArguments(RunArguments):
    """The questions, the rewards with their curriculum, and the judge."""

    dialect: str = flag("search_r1", "Dialect that the policy writes.")
    triples: str = flag(
        "none", "Facts of the tool knowledge_graph. Search-R1's dialect can only search."
    )
    turns: int = flag(5, "Maximum number of turns in an episode before the forced answer.")
    turn_tokens: int = flag(500, "Maximum number of tokens in a turn.")
    observation_tokens: int = flag(
        500, "Maximum number of tokens in a tool response; 0 for no limit."
    )
    force_answer: bool = flag(
        True, "Force an answer after the last turn if the policy has not given one."
    )
    w_exact_match: float = flag(1.0, "Weight of the answer's exact match.")
    w_info_think: float = flag(0.05, "Weight of information-think faithfulness.")
    w_think_search: float = flag(0.0, "Weight of think-search faithfulness.")
    w_think_answer: float = flag(0.02, "Weight of think-answer faithfulness.")
    curriculum_start: str = flag(
        "0",
        "T1: the step until which only the exact match counts, as 15, or the epoch, as 1.0ep.",
    )
    curriculum_end: str = flag(
        "0",
        "T2: the step or epoch from which the faithfulness weights count fully. 0 for both lets "
        "them count fully from the beginning.",
    )
    soft: bool = flag(False, "Reward the judge's probabilities instead of its labels.")

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (self.w_exact_match, self.w_info_think, self.w_think_search, self.w_think_answer)
        if not all(0 <= weight < math.inf for weight in weights) or max(weights) == 0:
            raise ConfigError(
                f"weights are 0 (the part is left out) or more, and one must be more, not {weights}"
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
    return veritas_mix(
        judge,
        exact_match=script.w_exact_match,
        info_think=script.w_info_think,
        think_search=script.w_think_search,
        think_answer=script.w_think_answer,
        warmup=warmup if warmup.end else None,
        soft=script.soft,
    )


RECIPE = TrainingRecipe(
    file="recipes/veritas.py",
    settings=VeritasArguments,
    config=DEFAULT_CONFIG,
    reward=build_reward,
)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
