"""What a judge is: it reads pairs of texts and says whether the second follows from the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    """Does `hypothesis` follow from `premise`? `question` gives context where a judge can use it."""

    premise: str
    hypothesis: str
    question: str = ""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """`p` in [0, 1] that the hypothesis is supported; `judge` names what said so."""

    p: float
    label: bool
    why: str = ""
    judge: str = ""


@runtime_checkable
class Judge(Protocol):
    """Verdicts in the order of the pairs; raises `JudgeError` when it cannot be asked."""

    @property
    def name(self) -> str: ...

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]: ...
