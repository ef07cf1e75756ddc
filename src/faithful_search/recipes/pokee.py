"""Train a research agent as PokeeResearch was trained: RLOO, with research and verification in
turns and AI feedback on the answer.

Every flag of `PokeeArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

from dataclasses import dataclass
from typing import Any, cast

from ..bundled import shipped
from ..errors import ConfigError
from ..flags import check_choices, flag
from ..judges import Judge
from ..rewards import Mix, pokee_mix
from ..training.starting import RunArguments, run_recipe
from .running import TrainingRecipe

DEFAULT_CONFIG = shipped("recipes/configs") / "pokee_tiny.yaml"


@dataclass
class PokeeArguments(RunArguments):
    """The questions, the reward of the answer, and whether the agent checks its answer."""

    dialect: str = flag("pokee", "Dialect that the policy writes.")
    verify: bool = flag(True, "Let the agent check its answers, and search on after INCORRECT.")
    answer_reward: str = flag(
        "judge",
        "Reward of the answer: 'judge' (AI feedback after an exact match), 'em' or 'f1'.",
    )
    format_weight: float = flag(0.1, "Reward of a valid format. A right answer's reward is 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"answer_reward": ("judge", "em", "f1")})
        if self.answer_reward == "judge" and not self.reads:
            raise ConfigError(
                "--answer_reward judge is feedback of a model that reads: give --judge endpoint, "
                "generator, nli or remote, or compare strings with --answer_reward em"
            )


def build_reward(script: PokeeArguments, judge: Judge | None = None) -> Mix:
    """The mix of AI feedback, or a comparison of strings, and the small reward of the format."""
    answer_judge = judge if script.answer_reward == "judge" else None
    return pokee_mix(
        answer_judge, metric=cast(Any, script.answer_reward), format_weight=script.format_weight
    )


RECIPE = TrainingRecipe(
    file="recipes/pokee.py",
    settings=PokeeArguments,
    config=DEFAULT_CONFIG,
    reward=lambda script, args, judge: build_reward(script, judge),
    trainer="faithful_search.training.arguments.PokeeConfig",
)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
