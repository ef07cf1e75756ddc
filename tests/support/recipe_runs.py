"""Recipes as a user would start them, and as modules."""

import importlib
from types import ModuleType
from typing import Any

CPU = ("--bf16", "false", "--use_cpu", "true")
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
"""Sizes of a model that `sft` makes: `--tiny`."""
WORLD = ("--questions", "world", "--eval_questions", "world", "--corpus", "world")


def recipe_module(recipe: str) -> ModuleType:
    return importlib.import_module(f"faithful_search.recipes.{recipe}")


def parse(recipe: str, *flags: str) -> tuple[Any, ...]:
    """The settings of a recipe, on a CPU, checked as the recipe checks them."""
    module = recipe_module(recipe)
    if recipe in ("evaluate", "rejection"):
        return (module.parse(flags),)
    return module.parse([*flags, *CPU])


def call(recipe: str, *flags: str) -> Any:
    """The recipe's `main` in this process: to start one that imports torch costs seconds."""
    return recipe_module(recipe).main([*flags])
