"""Model cards that say how something was made and measured, and the way to the Hub."""

from .adapters import merged_card
from .command import command_line
from .judge_card import judge_card, terms_of
from .policy_card import card_data, model_card, usage
from .pushing import push, push_metrics, push_run, stays, takes_over

__all__ = [
    "card_data",
    "command_line",
    "judge_card",
    "merged_card",
    "model_card",
    "push",
    "push_metrics",
    "push_run",
    "stays",
    "takes_over",
    "terms_of",
    "usage",
]
