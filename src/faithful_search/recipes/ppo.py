"""Train a search agent with VERITAS's rewards by PPO, as the paper does: a value of every state,
and its advantages.

The reward and all flags are those of `veritas.py`; `--advantages ppo` does the same in the other
recipes, with their rewards and groups of rollouts.
"""

from dataclasses import replace

from ..bundled import shipped
from ..training.starting import run_recipe
from . import veritas

DEFAULT_CONFIG = shipped("recipes/configs") / "ppo_tiny.yaml"
RECIPE = replace(veritas.RECIPE, file="recipes/ppo.py", config=DEFAULT_CONFIG)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
