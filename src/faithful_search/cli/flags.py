"""Options made of the fields of a settings class: each is typed once, for Python, recipes and the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from ..errors import ConfigError
from ..judges import KINDS, Judge
from ..judges.arguments import JudgeArguments

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_PAUSE = 0.5
"""Seconds between two changes of what a progress bar says."""


def flags(
    settings: type, choices: Mapping[str, Sequence[str]] | None = None, off: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Give a command an option for each field: name, type, default and `help` are the field's.

    Args:
        settings: a dataclass.
        choices: by field, the values there are, where the type does not say it.
        off: by field, the flag that says no.
    """
    hints = get_type_hints(settings)

    def add(command: F) -> F:
        for item in reversed(fields(settings)):
            kind = click.Choice(choices[item.name]) if choices and item.name in choices else hints[item.name]
            command = _option(item, kind, (off or {}).get(item.name))(command)
        return command

    return add


def _option(item: Field[Any], hint: Any, off: str | None) -> Callable[[F], F]:
    name = f"--{item.name.replace('_', '-')}"
    more: dict[str, Any] = {}
    if get_origin(hint) is Literal:
        hint = click.Choice(get_args(hint))
    elif not isinstance(hint, click.ParamType):
        hint = next(kind for kind in (*get_args(hint), hint) if kind is not NoneType)
    if hint is bool:
        name, hint, more = name + (f"/--{off}" if off else ""), None, {"is_flag": True}
    elif get_origin(hint) is tuple:
        hint, more = str, {"callback": _listed}
    default = None if item.default is MISSING else item.default
    text = item.metadata["help"]
    return click.option(
        *(name, *item.metadata.get("aliases", ())),
        item.name,
        default=default,
        type=hint,
        show_default=default not in (None, "", False),
        help=f"{text[0].upper()}{text[1:]}.",
        **more,
    )


def _listed(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


def taken(settings: type[T], given: dict[str, Any]) -> T:
    """The settings among the options. Raises `UsageError` for a value that they refuse."""
    try:
        return settings(**{item.name: given[item.name] for item in fields(settings)})  # type: ignore[arg-type]
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


judge_flags = flags(JudgeArguments, {"judge": KINDS}, {"judge_together": "judge-apart"})
"""The options that name a judge, for `judge_of`."""


def judge_of(given: dict[str, Any]) -> Judge | None:
    """The judge that the options name; `None` is the comparison of words."""
    try:
        return taken(JudgeArguments, given).load_judge()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


estimate = click.option(
    "--estimate", is_flag=True, help="Say what the endpoint would be asked, its cost and time, and ask nothing."
)


def told_bill(files: Sequence[str | os.PathLike[str]], judge: Judge | None, **settings: Any) -> str:
    """What it would take to have the judge read these files."""
    from ..judges.endpoint import EndpointJudge
    from ..measure.bill import bill

    if not isinstance(judge, EndpointJudge):
        raise click.UsageError("--estimate is for --judge endpoint: no other judge has a bill")
    return "\n".join(f"{file}: {bill(file, judge, **settings)}" for file in files)


class Progress:
    """A bar over rows that also counts a served model's verdicts as they come: some rows may take it long."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._desc = ""
        self._verdicts, self._shown = 0, 0.0
        self._judge: Judge | None = None

    def __call__(self, **settings: Any) -> Any:
        from tqdm.auto import tqdm

        self._bar, self._desc = tqdm(disable=None, **settings), settings.get("desc", "")
        return self._bar

    def of(self, judge: Judge | None) -> Judge | None:
        """The judge, which now reports its verdicts here if it can."""
        if hasattr(judge, "on_progress"):
            judge = self._judge = replace(judge, on_progress=self._heard)  # type: ignore[type-var]
        return judge

    def _heard(self, count: int) -> None:
        self._verdicts += count
        if self._bar is not None and time.monotonic() - self._shown > _PAUSE:
            self._shown = time.monotonic()
            stats = getattr(self._judge, "stats", None)
            cost = f", cost {stats.cost:.4f}" if stats and stats.cost else ""
            self._bar.set_description(f"{self._desc}, {self._verdicts:,} verdicts{cost}")
