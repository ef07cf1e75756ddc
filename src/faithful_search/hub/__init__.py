"""Model cards that say how something was made and measured, and the way to the Hub."""

from .card import judge_card
from .datasets import stage_trajectories, stage_world
from .policy_card import merged_card, model_card
from .pushing import Repository, push, push_run, stays, takes_over

__all__ = [
    "Repository",
    "judge_card",
    "merged_card",
    "model_card",
    "push",
    "push_run",
    "stage_trajectories",
    "stage_world",
    "stays",
    "takes_over",
]
