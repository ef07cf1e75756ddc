"""The gauntlet as one page to look at: the table, every cheat against every mix, and of each mix
the rollout that it paid best.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..measure.report.page import fields, render
from ..rewards import Score
from ..trajectory import Trajectory
from .results import Finding, Gauntlet, Payment, Trial, named

SHADES = 10


def write(
    path: Path,
    result: Gauntlet,
    trials: Sequence[Trial],
    rollouts: Mapping[str, Mapping[str, Sequence[Trajectory]]],
) -> Path:
    """Write the page; `rollouts` are those of each mix, by player. Raises `DataError` when it
    cannot be written.
    """
    by_key = {(trial.mix, trial.cheat): trial for trial in trials}
    winners = [
        _winner(number, finding, by_key[finding.mix, finding.cheat], rollouts[finding.mix])
        for number, finding in enumerate(result.headlines, start=1)
    ]
    return render(
        path,
        "gauntlet.html",
        result=result,
        table=result.table(),
        cheats=[
            {"name": cheat, "exploits": result.exploits.get(cheat, ""), "cells": _shaded(row)}
            for cheat, row in zip(result.cheats, result.grid(), strict=True)
        ],
        winners=winners,
    )


def _shaded(row: Sequence[float | None]) -> list[tuple[str, int]]:
    """Each value as a text, with its shade from 0 to `SHADES`."""
    return [
        ("-", 0) if value is None else (f"{value:.2f}", round(SHADES * min(1.0, max(0.0, value))))
        for value in row
    ]


def _winner(
    number: int, finding: Finding, trial: Trial, rollouts: Mapping[str, Sequence[Trajectory]]
) -> dict[str, Any]:
    """The rollout of the best cheat that earned most, as the page shows it."""
    place = trial.settings.index(finding.setting)
    best = max(trial.cheating, key=lambda payment: _value(payment, place))
    rollout = next(
        rollout
        for rollout in rollouts[finding.cheat]
        if rollout.id.rpartition("@")[0] == best.question
    )
    total = Score(best.values[place], best.why.get("mix", ""))
    return {
        "mix": named(finding),
        "cheat": finding.cheat,
        "rollout": fields(number, rollout, {finding.mix: total, **scores_of(best)}),
    }


def scores_of(payment: Payment) -> dict[str, Score]:
    """The values of a mix's parts for one rollout, with their reasons."""
    return {name: Score(value, payment.why.get(name, "")) for name, value in payment.parts.items()}


def _value(payment: Payment, place: int) -> float:
    value = payment.values[place]
    return float("-inf") if value is None else value
