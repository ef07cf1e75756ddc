"""Recipes as a user would start them, and as modules."""

import importlib
import importlib.util
import sys
from typing import Any

from paths import RECIPES
from trl import ModelConfig

from faithful_search.training.arguments import SearchSFTConfig
from faithful_search.training.starting import parse_recipe

CPU = ("--bf16", "false", "--use_cpu", "true")
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
"""Sizes of a model that `sft` makes: `--tiny`."""
WORLD = ("--questions", "world", "--eval_questions", "world", "--corpus", "world")


def parse(recipe: str, *flags: str) -> tuple[Any, ...]:
    """The settings of a recipe, on a CPU, checked as the recipe checks them."""
    if recipe == "evaluate":
        return parse_recipe((evaluate_recipe().EvaluationArguments,), flags)
    module = importlib.import_module(recipe)
    if recipe == "reward_model":
        return parse_recipe(
            (module.RewardModelArguments, SearchSFTConfig, ModelConfig), [*flags, *CPU]
        )
    return module.parse([*flags, *CPU])


def call(recipe: str, *flags: str) -> dict:
    """The recipe's `main` in this process: to start one that imports torch costs seconds."""
    module = evaluate_recipe() if recipe == "evaluate" else importlib.import_module(recipe)
    return module.main([*flags])


def evaluate_recipe():
    """The recipe under another name than the package `evaluate`'s."""
    spec = importlib.util.spec_from_file_location("evaluate_recipe", RECIPES / "evaluate.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
