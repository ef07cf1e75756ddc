"""`faithful-search train` and `eval`: the recipes, from an installed package.

A recipe reads its own flags, so that they are the same here and in `accelerate launch
recipes/pou.py`: this file only says which recipe is meant.
"""

from importlib import import_module

import click

from .options import DEBUG


class Recipe(click.Command):
    """A command that hands all its arguments to the `main` of a module of `recipes/`."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name, help=help, add_help_option=False)
        self.module = module

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--debug" in args:
            ctx.meta[DEBUG] = True
        ctx.args = [arg for arg in args if arg != "--debug"]
        return ctx.args

    def invoke(self, ctx: click.Context) -> None:
        from ..training.starting import run_recipe

        def main() -> None:
            recipe = import_module(f"..recipes.{self.module}", __package__)
            recipe.main(ctx.args, ctx.command_path)

        if ctx.meta.get(DEBUG):
            main()
        else:
            run_recipe(main)


@click.group()
def train() -> None:
    """Train a policy or a judge with one of the recipes.

    `faithful-search train RECIPE --help` lists the recipe's own flags, `--help-all` also those of
    the trainer. Settings may stand in a YAML file: `--config pou_smollm2-135m.yaml` takes one that
    comes with the package. On several GPUs: accelerate launch -m faithful_search.recipes.pou.
    """


for recipe in (
    Recipe("pou", "pou", "GRPO with Proof-of-Use's rewards: is evidence really used?"),
    Recipe("veritas", "veritas", "GRPO with VERITAS's rewards: thoughts, calls, answer agree."),
    Recipe("ppo", "ppo", "PPO with VERITAS's rewards, as in the paper."),
    Recipe("self-eval", "self_eval", "GRPO with scores that the policy gives itself."),
    Recipe("pokee", "pokee", "RLOO with AI feedback on the answer, as PokeeResearch."),
    Recipe("sft", "sft", "Supervised start: a policy that writes the dialect."),
    Recipe("rejection", "rejection", "Rejection sampling: train on rollouts that are right."),
    Recipe("reward-model", "reward_model", "Distil a small judge from labelled pairs."),
):
    train.add_command(recipe)

evaluate = Recipe("eval", "evaluate", "Measure a policy on held-out questions.")
