"""Which questions of a set are asked: the first ones, or some drawn by a seed."""

import random
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def drawn(items: Iterable[T], limit: int | None, seed: int | None) -> list[T]:
    """The first `limit` items; with a `seed`, so many drawn uniformly from all, in their order.

    Example:
        >>> drawn("abcdefgh", 3, None), drawn("abcdefgh", 3, 0)
        (['a', 'b', 'c'], ['d', 'g', 'h'])
    """
    if limit is None or seed is None:
        return list(islice(items, limit))
    every = list(items)  # a uniform draw needs to know how many there are
    places = random.Random(seed).sample(range(len(every)), min(limit, len(every)))
    return [every[place] for place in sorted(places)]
