"""How a judge is asked so that nothing is paid twice: each part is written down before the next is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from ..errors import JudgeError
from ..judges import Judge, Pair, Verdict
from .workers import chunks

T = TypeVar("T")
ANSWERS = "answers.sqlite"


def answers_kept(judge: Judge | None, folder: Path, resume: bool = True) -> AbstractContextManager[None]:
    """Keep what a paid judge without a cache answers in the folder, until all is asked: an interruption loses nothing.

    Only a judge that has `keeping` is helped; `resume` says whether answers that an earlier run left are used.
    """
    if not resume:
        (folder / ANSWERS).unlink(missing_ok=True)
    keeping = getattr(judge, "keeping", None)
    return nullcontext() if keeping is None else keeping(folder / ANSWERS)


def ask_in_parts(
    judge: Judge, items: Iterable[T], pair: Callable[[T], Pair], size: int
) -> Iterator[list[tuple[T, Verdict]]]:
    """Yield the items with their verdicts, `size` at a time; `pair` is what the judge reads of an item.

    Raises `JudgeError` when the judge cannot be asked at all, or gives another number of verdicts.
    """
    for part in chunks(items, size):
        verdicts = judge.judge_batch([pair(item) for item in part])
        if len(verdicts) != len(part):
            raise JudgeError(f"{judge.name} gave {len(verdicts)} verdicts for {len(part)} pairs")
        yield list(zip(part, verdicts, strict=True))
