"""Model cards that say how something was made and measured, and the way to the Hub."""

from .adapters import merged_card
from .command import command_line
from .datasets import stage_trajectories, stage_world
from .judge_card import judge_card, terms_of
from .policy_card import card_data, eval_results, model_card, usage
from .pushing import (
    merged_model,
    merged_repository,
    metric_folders,
    push,
    push_run,
    staged,
    staged_space,
    stays,
    takes_over,
)
from .repository import Repository

__all__ = [
    "Repository",
    "card_data",
    "command_line",
    "eval_results",
    "judge_card",
    "merged_card",
    "merged_model",
    "merged_repository",
    "metric_folders",
    "model_card",
    "push",
    "push_run",
    "stage_trajectories",
    "stage_world",
    "staged",
    "staged_space",
    "stays",
    "takes_over",
    "terms_of",
    "usage",
]
