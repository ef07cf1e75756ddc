"""Recipes as a user would start them, and as modules."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

from paths import RECIPES, ROOT
from trl import GRPOConfig, ModelConfig, SFTConfig

from faithful_search.training.ppo import PPOConfig


def call(recipe: str, *flags: str) -> dict:
    """The recipe's `main` in this process: to start one that imports torch costs seconds."""
    module = evaluate_recipe() if recipe == "evaluate" else importlib.import_module(recipe)
    return module.main([*flags])


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def evaluate_recipe():
    """The recipe under another name than the package `evaluate`'s."""
    spec = importlib.util.spec_from_file_location("evaluate_recipe", RECIPES / "evaluate.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CPU = ["--bf16", "false", "--use_cpu", "true"]


def flags_of(recipe: str) -> tuple[tuple[type, ...], list[str]]:
    """The dataclasses of the recipe that a configuration's name begins with, and what a test has to say beside it."""
    import pokee
    import pou
    import reward_model
    import self_eval
    import sft
    import veritas

    recipe = {"hack": "pou", "self": "self_eval"}.get(recipe, recipe)
    return {
        "pou": ((pou.PoUArguments, GRPOConfig, ModelConfig), ["--questions", "world", *CPU]),
        "pokee": ((pokee.PokeeArguments, GRPOConfig, ModelConfig), ["--questions", "world", *CPU]),
        "ppo": ((veritas.VeritasArguments, PPOConfig, ModelConfig), ["--questions", "world", *CPU]),
        "self_eval": ((self_eval.SelfEvalArguments, GRPOConfig, ModelConfig), ["--questions", "world", *CPU]),
        "veritas": ((veritas.VeritasArguments, GRPOConfig, ModelConfig), ["--questions", "world", *CPU]),
        "sft": ((sft.ExpertArguments, SFTConfig, ModelConfig), ["--questions", "world", *CPU]),
        "rm": ((reward_model.RewardModelArguments, SFTConfig, ModelConfig), CPU),
        "eval": ((evaluate_recipe().EvaluationArguments,), ["--questions", "world"]),
    }[recipe]
