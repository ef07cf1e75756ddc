"""Model cards that say how something was made and measured, and the way to the Hub."""

from .card import command_line, merged_card
from .datasets import stage_trajectories, stage_world
from .judge_card import judge_card, terms_of
from .policy_card import model_card
from .pushing import push, push_run, stays, takes_over
from .repository import Repository

__all__ = [
    "Repository",
    "command_line",
    "judge_card",
    "merged_card",
    "model_card",
    "push",
    "push_run",
    "stage_trajectories",
    "stage_world",
    "stays",
    "takes_over",
    "terms_of",
]
