"""Ask a judge about pairs part by part, so that each part is written down before the next is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..errors import JudgeError
from ..judges import Judge, Pair, Verdict
from .workers import chunks

T = TypeVar("T")


def ask_in_parts(
    judge: Judge, items: Iterable[T], pair: Callable[[T], Pair], size: int
) -> Iterator[list[tuple[T, Verdict]]]:
    """Yield the items with their verdicts, `size` at a time; `pair` is what the judge reads of an item.

    Raises:
        JudgeError: when the judge cannot be asked at all, or gives another number of verdicts.
    """
    for part in chunks(items, size):
        verdicts = judge.judge_batch([pair(item) for item in part])
        if len(verdicts) != len(part):
            raise JudgeError(f"{judge.name} gave {len(verdicts)} verdicts for {len(part)} pairs")
        yield list(zip(part, verdicts, strict=True))
