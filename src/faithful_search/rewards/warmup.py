"""A curriculum: weights that rise with the optimizer steps (VERITAS, section 4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from ..errors import ConfigError

_WRITTEN = re.compile(r"(?P<steps>\d+)|(?P<epochs>\d+(?:\.\d*)?|\.\d+)\s*ep(?:ochs?)?")


@dataclass(frozen=True)
class Warmup:
    """The weights of `parts` rise linearly from 0 at step `start` to their full value at step `end`.

    ```
    ramp(step) = 0                                for step ≤ T1
               = (step - T1) / (T2 - T1)          for T1 < step < T2
               = 1                                for step ≥ T2
    ```

    VERITAS, section 4, "Training curriculum": T1 is the end of the first epoch, T2 half an epoch later. Steps count
    from 1: step 1 makes the first update. With T1 = T2 the weights are full from T2 on; 0 and 0 is no curriculum.

    Args:
        parts: names of the parts whose weights rise.
        start: T1, in optimizer steps.
        end: T2, likewise.

    Raises:
        ConfigError: when T1 or T2 is negative, or T2 lies before T1.

    Example:
        >>> [Warmup(("info_think",), 20, 30).ramp("info_think", step) for step in (1, 20, 21, 25, 30, 99)]
        [0.0, 0.0, 0.1, 0.5, 1.0, 1.0]
    """

    parts: tuple[str, ...]
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ConfigError(f"Warmup: needs 0 <= start <= end, not start {self.start} and end {self.end}")

    @classmethod
    def parse(cls, parts: Iterable[str], start: str | int, end: str | int, steps_per_epoch: int) -> Self:
        """A warm-up whose bounds are written in steps (`20`, "20") or in epochs ("1.0ep"), rounded half up.

        Raises:
            ConfigError: for anything else.

        Example:
            >>> Warmup.parse(["info_think"], "1.0ep", "1.5ep", steps_per_epoch=13)
            Warmup(parts=('info_think',), start=13, end=20)
        """
        bounds = []
        for written in (start, end):
            found = _WRITTEN.fullmatch(str(written).strip())
            if found is None:
                raise ConfigError(f"{written!r} is neither a number of steps (20) nor of epochs (1.5ep)")
            steps, epochs = found["steps"], found["epochs"]
            bounds.append(int(steps) if steps else int(float(epochs) * steps_per_epoch + 0.5))
        return cls(tuple(parts), *bounds)

    def ramp(self, part: str, step: int) -> float:
        """The factor in [0, 1] on a part's weight at a step, counted from 1."""
        if part not in self.parts or step >= self.end:
            return 1.0
        # only reached with start < step < end, so that nothing is divided by 0 where the two are equal
        return (step - self.start) / (self.end - self.start) if step > self.start else 0.0
