"""Train a search agent with VERITAS's rewards by PPO, as the paper does: a value of every state,
and its advantages.

The reward and all flags are those of `veritas.py`; `--advantages ppo` does the same in the other
recipes, with their rewards and groups of rollouts.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..bundled import shipped
from ..training.refusing import check_early
from ..training.starting import run_recipe
from . import veritas

if TYPE_CHECKING:
    from trl import ModelConfig

    from ..training.arguments import SearchGRPOConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "ppo_tiny.yaml"
RECIPE = "recipes/ppo.py"


def main(argv: Sequence[str] | None = None, recipe: str = RECIPE) -> dict[str, Any]:
    arguments = list(sys.argv[1:] if argv is None else argv)
    check_early(veritas.VeritasArguments, arguments, DEFAULT_CONFIG)  # before torch is imported
    return veritas.run(parse(arguments), recipe, arguments)


def parse(
    argv: Sequence[str] | None = None,
) -> "tuple[veritas.VeritasArguments, SearchGRPOConfig, ModelConfig]":
    """As `veritas.parse`, with PPO's embedded default."""
    return veritas.parse(argv, DEFAULT_CONFIG)


if __name__ == "__main__":
    run_recipe(main)
