"""Labels that were given before, as a judge: people's, or those of another run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...judges import Pair, Verdict
from .labelled import Labelled, load


@dataclass(frozen=True)
class RecordedJudge:
    """Looks a pair up by what it says (question, premise, hypothesis, task); abstains where it has no label.

    A pair that was labelled both ways has none either. p is the labeller's where the file has it, else 1 or 0. The name
    holds a digest of the labels, so that others are another judge.

    Example:
        >>> rows = [Labelled("1", "It rained.", "Rain fell.", "", True, "mine", "train", "g")]
        >>> judge = RecordedJudge.of(rows)
        >>> asked = [Pair("It rained.", "Rain fell."), Pair("It rained.", "Snow fell.")]
        >>> [verdict.label for verdict in judge.judge_batch(asked)]
        [True, None]
    """

    name: str
    verdicts: Mapping[Pair, Verdict] = field(repr=False)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RecordedJudge:
        """Of a labelled file or a folder of them. Raises `DataError` for what is none, see `labelled.load`."""
        return cls.of(load(path))

    @classmethod
    def of(cls, rows: Iterable[Labelled]) -> RecordedJudge:
        """Of labelled rows."""
        found: dict[Pair, Verdict] = {}
        for row in rows:
            pair = Pair(row.premise, row.hypothesis, row.question, row.task)
            own = Verdict(float(row.label) if row.p is None else row.p, row.label)
            found[pair] = own if found.get(pair, own).label == row.label else Verdict(None, None, "labelled both ways")
        digest = hashlib.sha256("\n".join(f"{pair} {own.p} {own.label}" for pair, own in found.items()).encode())
        return cls(f"labels@{digest.hexdigest()[:12]}", found)

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict a pair, in order."""
        missing = Verdict(None, None, "no label for this pair")
        return [self.verdicts.get(pair, missing) for pair in pairs]
