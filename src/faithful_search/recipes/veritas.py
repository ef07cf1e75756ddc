"""Train a search agent with VERITAS's rewards, and evaluate it before and after. The exact match
counts from the beginning, and faithfulness is warmed up.

Every flag of `VeritasArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundled import shipped
from ..errors import ConfigError
from ..flags import flag
from ..hub.pushing import takes_over
from ..judges import Judge
from ..rewards import FAITHFULNESS, Mix, Warmup, veritas_mix
from ..tasks import load_tasks
from ..training.refusing import check_early
from ..training.starting import RunArguments, parse_run, run_recipe

if TYPE_CHECKING:
    from trl import ModelConfig

    from ..training.arguments import SearchGRPOConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "veritas_pairs.yaml"
RECIPE = "recipes/veritas.py"


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


def main(argv: Sequence[str] | None = None, recipe: str = RECIPE) -> dict[str, Any]:
    """Run the recipe with these arguments, by default those of the command line. Returns what
    `metrics.json` holds.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    check_early(VeritasArguments, arguments, DEFAULT_CONFIG)  # before torch is imported
    return run(parse(arguments), recipe, arguments)


def run(
    flags: "tuple[VeritasArguments, SearchGRPOConfig, ModelConfig]",
    recipe: str,
    argv: Sequence[str],
) -> dict[str, Any]:
    """Train with these flags. `recipe` and `argv` are for the card, which says how the recipe was
    called.
    """
    from ..analysis.results import leave
    from ..training.runs import trained

    script, args, _ = flags
    repository = takes_over(args)
    with trained(flags, lambda judge: build_reward(script, args, judge)) as record:
        return leave(record, recipe, argv, repository)


def parse(
    argv: Sequence[str] | None = None, default: Path = DEFAULT_CONFIG
) -> "tuple[VeritasArguments, SearchGRPOConfig, ModelConfig]":
    """The values of the flags. Raises `ConfigError` for weights that reward nothing, and for values
    that contradict each other.
    """
    return parse_run(VeritasArguments, argv, default)


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


if __name__ == "__main__":
    run_recipe(main)
