"""Rows that are no means over rollouts: functions of sums over all of them, bootstrapped over questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from .stats import Estimate, Floats, bootstrap, numbered

Key = Hashable
Function = Callable[[Sequence[Key], Floats], Floats]
"""Maps what the columns are and their sums in each draw, (draws, k), to (draws,); NaN where it is undefined."""


class Counts(NamedTuple):
    """What is summed: a column for each key, a row for each rollout. A row of zeros says nothing and is left out."""

    keys: tuple[Key, ...]
    table: Floats


def tabulate(features: Sequence[Mapping[Key, float]]) -> Counts:
    """The counts of rollouts that each have some features; those that a rollout lacks are 0.

    Example:
        >>> tabulate([{"a": 1.0}, {"b": 2.0}]).table.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    keys = tuple(dict.fromkeys(key for own in features for key in own))
    table = [[own.get(key, 0.0) for key in keys] for own in features]
    return Counts(keys, np.array(table, dtype=np.float64).reshape(len(features), len(keys)))


def pooled_estimate(counts: Counts, function: Function, questions: Sequence[Hashable]) -> Estimate:
    """The function of all rollouts' sums with its bootstrap interval; n counts the questions that say something."""
    used: NDArray[np.bool_] = np.any(counts.table, axis=1)
    asked = [question for question, counted in zip(questions, used.tolist(), strict=True) if counted]
    estimate = bootstrap(counts.table[used], lambda sums: function(counts.keys, sums), asked)
    return msgspec.structs.replace(estimate, not_applicable=int((~used).sum()))


def pooled_difference(
    first: Counts,
    second: Counts,
    function: Function,
    asked_first: Sequence[Hashable],
    asked_second: Sequence[Hashable],
) -> Estimate:
    """second - first over the questions that both were asked, which are resampled for both alike.

    n counts those that say something in either.
    """
    keys = tuple(dict.fromkeys((*first.keys, *second.keys)))
    cut, unit = len(keys), numbered([*asked_first, *asked_second])
    halves = unit[: len(asked_first)], unit[len(asked_first) :]
    table = np.zeros((unit.max(initial=-1) + 1, 2 * cut))
    for counts, own, start in ((first, halves[0], 0), (second, halves[1], cut)):
        columns = np.array([start + keys.index(key) for key in counts.keys], dtype=np.int64)
        np.add.at(table, (own[:, None], columns), counts.table)
    table = table[np.intersect1d(*halves)]
    return bootstrap(
        table[table.any(axis=1)], lambda sums: function(keys, sums[:, cut:]) - function(keys, sums[:, :cut])
    )
