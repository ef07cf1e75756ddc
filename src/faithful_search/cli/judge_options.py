"""What the commands share that ask a judge: its options, which are `JudgeArguments`, and a bar that shows its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from ..errors import ConfigError
from ..judges import KINDS, Judge

F = TypeVar("F", bound=Callable[..., Any])
_PAUSE = 0.5
"""Seconds between two changes of what a progress bar says."""
_OPTIONS = (
    click.option("--judge", type=click.Choice(KINDS), default="lexical", show_default=True, help="Who judges."),
    click.option("--judge-model", help="Hub id or directory; for an endpoint the served model's name."),
    click.option(
        "--judge-url",
        help="Base URL of an OpenAI-compatible endpoint, or of serve-judge; default the Hub's Inference Providers.",
    ),
    click.option(
        "--judge-cache",
        type=click.Path(dir_okay=False),
        help="SQLite file of an endpoint's answers, 'none' for none; default in the Hub's assets folder.",
    ),
    click.option(
        "--judge-concurrency",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="Requests to it at a time.",
    ),
    click.option(
        "--judge-timeout",
        type=float,
        help="Seconds a request may take; by default 60 to an endpoint, 300 to a served judge.",
    ),
    click.option(
        "--judge-max-tokens", type=int, default=16, show_default=True, help="Of its label; more where it reasons first."
    ),
    click.option(
        "--judge-together/--judge-apart",
        default=True,
        show_default=True,
        help="Claims on the same evidence in one request.",
    ),
    click.option("--judge-prices", help="Of a million prompt and completion tokens, as 0.15,0.6: the cost is counted."),
    click.option("--judge-trust-remote-code", is_flag=True, help="Let a judge run the Python code beside its model."),
)


def judge_options(command: F) -> F:
    """The options that name a judge; the command gets them as `judge`, `judge_model`, …, for `judge_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def judge_of(settings: dict[str, Any]) -> Judge | None:
    """The judge that the options name; `None` is the comparison of words."""
    from ..judges.arguments import JudgeArguments

    try:
        return JudgeArguments(**settings).load_judge()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


class Progress:
    """A bar over rows that also counts a served model's verdicts as they come: some rows may take it long."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._desc = ""
        self._verdicts, self._shown = 0, 0.0

    def __call__(self, **settings: Any) -> Any:
        from tqdm.auto import tqdm

        self._bar, self._desc = tqdm(disable=None, **settings), settings.get("desc", "")
        return self._bar

    def of(self, judge: Judge | None) -> Judge | None:
        """The judge, which now tells of its verdicts if it can."""
        return replace(judge, on_progress=self._heard) if hasattr(judge, "on_progress") else judge  # type: ignore[type-var]

    def _heard(self, count: int) -> None:
        self._verdicts += count
        if self._bar is not None and time.monotonic() - self._shown > _PAUSE:
            self._shown = time.monotonic()
            self._bar.set_description(f"{self._desc}, {self._verdicts:,} verdicts")
