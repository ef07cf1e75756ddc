"""Rows that are no means over rollouts: functions of sums over all of them, bootstrapped over questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from .stats import Estimate, Floats, bootstrap

Key = Hashable
Function = Callable[[Sequence[Key], Floats], Floats]
"""Maps what the columns are and their sums in each draw, (draws, k), to (draws,); NaN where it is undefined."""


class Counts(NamedTuple):
    """What is summed: a column for each key, a row for each rollout. A row of zeros says nothing and is left out."""

    keys: tuple[Key, ...]
    table: Floats


def tabulate(features: Sequence[Mapping[Key, float]]) -> Counts:
    """The counts of rollouts of which each has some features; those it has not are 0.

    Example:
        >>> tabulate([{"a": 1.0}, {"b": 2.0}]).table.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    columns = {key: place for place, key in enumerate(dict.fromkeys(key for own in features for key in own))}
    table = np.zeros((len(features), len(columns)))
    for row, own in enumerate(features):
        for key, value in own.items():
            table[row, columns[key]] = value
    return Counts(tuple(columns), table)


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
    one, two = _by_question(first, asked_first, keys), _by_question(second, asked_second, keys)
    both = [question for question in one if question in two]
    table = np.array([[*one[question], *two[question]] for question in both]).reshape(len(both), 2 * len(keys))
    cut = len(keys)
    return bootstrap(
        table[table.any(axis=1)], lambda sums: function(keys, sums[:, cut:]) - function(keys, sums[:, :cut])
    )


def _by_question(counts: Counts, questions: Sequence[Hashable], keys: Sequence[Key]) -> dict[Hashable, Floats]:
    """The sums of each question's rollouts, in the order of `keys`."""
    places = [keys.index(key) for key in counts.keys]
    found: dict[Hashable, Floats] = {}
    for question, row in zip(questions, counts.table, strict=True):
        found.setdefault(question, np.zeros(len(keys)))[places] += row
    return found
