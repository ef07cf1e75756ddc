"""How the time to read a text grows with its length, on a machine that may be busy."""

import math
from collections.abc import Callable

LONGER = 16
"""How many times as long one text is as the other. With fewer, other work on the machine can make
linear growth look like quadratic growth.
"""
MOST = 1.5
"""Between linear growth, 1, and quadratic growth, 2."""
TRIES = 5


def growth(seconds: Callable[[int], float], size: int, floor: float = 0.0005) -> float:
    """The power of a text's length with which the time grows that `seconds` takes, up to a text of
    `size` characters; 0 where that is read in no time.

    The shortest of several times counts, and no time below `floor`, in seconds of the processor.
    """
    short, long = math.inf, math.inf
    power = 0.0
    for _ in range(TRIES):
        long = min(long, seconds(size))
        if long <= floor * LONGER**MOST:
            return 0.0
        short = min(short, seconds(size // LONGER))
        power = math.log(long / max(floor, short), LONGER)
        if power <= MOST:
            break
    return power
