"""Scores for the batches of other programs: `datasets.map`, Ray Data's `map_batches`, Spark's `mapInPandas`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..judges import Judge
from ..trajectory import encoded
from .audit import metrics_of
from .rows import Raw, Reader
from .scores import ENCODER, LINE, Scorer
from .settings import AuditSettings, How

COUNTS, TEXTS = ("answered", "calls", "issues", "abstained"), ("read_as", "read_error")
"""Columns beside the metrics: whether there is an answer, how many calls, problems in the writing and open verdicts;
the dialect, and why a row could not be read."""


@dataclass(frozen=True)
class BatchScorer:
    """Takes a batch of rows and gives it back with a column for each score.

    A batch is a dictionary of columns (lists or arrays) or a pandas DataFrame; its rows are read as `audit` reads those
    of a file. NaN means no score: the metric does not apply, the judge gave no verdict (counted in `abstained`), or the
    row could not be read (`read_error` says why, else it is empty; `read_as` is the dialect). Pickled it is its
    settings. Raises `ConfigError` for a batch that has one of the new columns already.

    Args:
        metrics, judge, how, text_column: as `audit` takes them.
        dialect: how all rows are written. Without it each row is read as what it shows by itself.
        prefix: before the names of the new columns.

    Example:
        >>> text = "<think>I know.</think><answer>Ada</answer>"
        >>> scored = BatchScorer(("answer_correctness",))({"output": [text], "answers": [["Ada"]]})
        >>> scored["exact_match_squad"].tolist(), list(scored)[:3]
        ([1.0], ['output', 'answers', 'exact_match_squad'])

        With 🤗 Datasets, Ray Data and Spark:

        ```python
        rows.map(fs.BatchScorer(), batched=True, batch_size=256)
        rows.map_batches(fs.BatchScorer(), batch_size=256)
        scorer = fs.BatchScorer()
        rows.mapInPandas(scorer.frames, f"{', '.join(f'{n} {t}' for n, t in rows.dtypes)}, {scorer.schema}")
        ```
    """

    metrics: tuple[str, ...] | None = None
    judge: Judge | None = None
    how: How = "squad"
    dialect: str | None = None
    text_column: str | None = None
    prefix: str = ""

    def __call__(self, batch: Any) -> Any:
        if clash := [name for name in self._types if name in batch]:
            raise ConfigError(
                f"the batch has columns {', '.join(clash)} already: give a prefix for the new ones"
            )
        if isinstance(batch, Mapping):
            rows = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
            return {**batch, **self._columns(rows)}
        return batch.assign(**self._columns(batch.to_dict("records")))

    def frames(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Each pandas DataFrame with its scores."""
        return map(self, frames)

    @property
    def schema(self) -> str:
        """The new columns with their types, as Spark's `mapInPandas` wants them."""
        return ", ".join(f"{name} {kind}" for name, kind in self._types.items())

    @cached_property
    def _scorer(self) -> Scorer:
        given = AuditSettings(self.dialect, self.text_column, metrics=self.metrics, how=self.how)
        reader = Reader(self.dialect, self.text_column)
        return Scorer(metrics_of(given, self.judge), self.judge, self.how, None, reader)

    @cached_property
    def _types(self) -> dict[str, str]:
        kinds = {
            **dict.fromkeys((*self._scorer.rewards, *COUNTS), "double"),
            **dict.fromkeys(TEXTS, "string"),
        }
        return {f"{self.prefix}{name}": kind for name, kind in kinds.items()}

    def _columns(self, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
        raws = [Raw.of(number, encoded(row, ENCODER)) for number, row in enumerate(rows, start=1)]
        found: list[dict[str, Any]] = []
        for line in map(LINE.decode, self._scorer.score(raws).values()):
            own: dict[str, Any] = {"read_as": line.dialect, "read_error": line.error or ""}
            if (
                line.error is None
            ):  # of a row that could not be read nothing is known: NaN, not 0 calls
                own |= line.values
                own["issues"] = float(sum(line.issues.values()))
                own["abstained"] = float(sum(cell.abstained for cell in line.scores.values()))
            found.append(own)
        made = {}
        for column, kind in self._types.items():
            values = [own.get(column.removeprefix(self.prefix)) for own in found]
            made[column] = np.array(values, dtype=np.float64 if kind == "double" else object)
        return made

    def __getstate__(
        self,
    ) -> dict[str, Any]:  # without the rewards that were made: the other side makes its own
        return {item.name: getattr(self, item.name) for item in fields(self)}
