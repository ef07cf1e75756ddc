"""Train a research agent as PokeeResearch was trained: RLOO, with research and verification in
turns and AI feedback on the answer.

Every flag of `PokeeArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

from dataclasses import dataclass
from typing import Literal

from ..bundled import shipped
from ..errors import ConfigError
from ..flags import knob
from ..judges import Judge
from ..rewards import Mix, pokee_mix
from ..rollout.arguments import EnvironmentArguments
from ..training.starting import run_recipe
from .condensing import CondensingArguments, build_condenser
from .running import TrainingRecipe

DEFAULT_CONFIG = shipped("recipes/configs") / "pokee_tiny.yaml"


@dataclass
class PokeeArguments(CondensingArguments):
    """The questions, the reward of the answer, and whether the agent checks its answer."""

    dialect: str = knob(EnvironmentArguments, "dialect", default="pokee")
    verify: bool = knob(EnvironmentArguments, "verify", default=True)
    correctness: Literal["judge", "em", "f1"] = knob(pokee_mix, "metric")
    format_weight: float = knob(pokee_mix, "format_weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correctness == "judge" and not self.reads:
            raise ConfigError(
                "--correctness judge is feedback of a model that reads: give --judge endpoint, "
                "generator, nli or remote, or compare strings with --correctness em"
            )


def build_reward(script: PokeeArguments, judge: Judge | None = None) -> Mix:
    """The mix of AI feedback, or a comparison of strings, and the small reward of the format."""
    return pokee_mix(
        judge if script.correctness == "judge" else None,
        metric=script.correctness,
        format_weight=script.format_weight,
    )


RECIPE = TrainingRecipe(
    file="recipes/pokee.py",
    settings=PokeeArguments,
    config=DEFAULT_CONFIG,
    reward=lambda script, args, judge: build_reward(script, judge),
    condenser=build_condenser,
    trainer="faithful_search.training.arguments.PokeeConfig",
)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
