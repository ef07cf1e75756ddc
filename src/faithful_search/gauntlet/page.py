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
    cheats = []
    for cheat, values in zip(result.cheats, result.grid(), strict=True):
        exploits = result.exploits.get(cheat, "")
        cells = list(map(_shaded, values))
        cheats.append({"name": cheat, "exploits": exploits, "cells": cells})
    winners = []
    for number, finding in enumerate(result.headlines, start=1):
        trial = by_key[finding.mix, finding.cheat]
        winners.append(_winner(number, finding, trial, rollouts[finding.mix]))
    return render(
        path,
        "gauntlet.html",
        result=result,
        table=result.table(),
        cheats=cheats,
        winners=winners,
    )


def _shaded(value: float | None) -> tuple[str, int]:
    """A value as a text, with its shade from 0 to `SHADES`."""
    if value is None:
        return "-", 0
    share = min(1.0, max(0.0, value))
    return f"{value:.2f}", round(SHADES * share)


def _winner(
    number: int, finding: Finding, trial: Trial, rollouts: Mapping[str, Sequence[Trajectory]]
) -> dict[str, Any]:
    """The rollout of the best cheat that earned most, as the page shows it."""
    place = trial.settings.index(finding.setting)
    best = max(trial.cheating, key=lambda payment: _value(payment, place))
    rollout_by_question: dict[str, Trajectory] = {}
    for rollout in rollouts[finding.cheat]:
        question, _, _ = rollout.id.rpartition("@")
        rollout_by_question.setdefault(question, rollout)
    total = Score(best.values[place], best.why.get("mix", ""))
    scores = {finding.mix: total, **scores_of(best)}
    return {
        "mix": named(finding),
        "cheat": finding.cheat,
        "rollout": fields(number, rollout_by_question[best.question], scores),
    }


def scores_of(payment: Payment) -> dict[str, Score]:
    """The values of a mix's parts for one rollout, with their reasons."""
    return {name: Score(value, payment.why.get(name, "")) for name, value in payment.parts.items()}


def _value(payment: Payment, place: int) -> float:
    value = payment.values[place]
    return float("-inf") if value is None else value
