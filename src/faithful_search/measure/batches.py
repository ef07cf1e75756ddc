"""Scores for the batches of other programs: `datasets.map`, Ray Data's `map_batches`, Spark's
`mapInPandas`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..judges import Judge
from ..reading.rows import Raw, Reader
from ..trajectory import encoded
from .audit import metrics_of
from .scores import ENCODER, LINE, Line, RowScorer
from .settings import AuditSettings, How

COUNTS = ("answered", "calls", "issues", "abstained")
"""The columns of numbers beside the metrics: 1 if there is an answer, and the number of calls, of
issues and of scores that no judge gave.
"""
TEXTS = ("read_as", "evidence_from", "read_error")
"""The columns of texts: the dialect, where the evidence stood, and why a row could not be read."""


@dataclass(frozen=True)
class BatchScorer:
    """Adds a column for each score to a batch of rows.

    A batch is a dictionary of columns (lists or arrays) or a pandas DataFrame. Its rows are read as
    `audit` reads those of a file. NaN means that there is no score: the metric does not apply, or
    the judge gave no verdict (counted in `abstained`), or the row could not be read (`read_error`
    says why and is empty otherwise). If `evidence_from` is "text", the evidence stands in the
    agent's own text, and the agent may have invented it (`Trajectory.evidence_from`).

    A scorer is pickled as its settings. Raises `ConfigError` for a batch that already has one of
    the new columns.

    Args:
        metrics: names of the metrics, as `audit` takes them.
        judge: who judges, as `audit` takes it.
        how: the normaliser that compares answers.
        dialect: how all rows are written. By default it is detected for each row.
        text_column: the column that holds the text; by default one of the known names.
        prefix: of the names of the new columns.

    Example:
        >>> text = "<think>I know.</think><answer>Ada</answer>"
        >>> scored = BatchScorer(("answer_correctness",))({"output": [text], "answers": [["Ada"]]})
        >>> scored["exact_match_unicode"].tolist(), list(scored)[:3]
        ([1.0], ['output', 'answers', 'exact_match_unicode'])

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
    how: How = "unicode"
    dialect: str | None = None
    text_column: str | None = None
    prefix: str = ""

    def __call__(self, batch: Any) -> Any:
        clash = [name for name in self._types if name in batch]
        if clash:
            raise ConfigError(
                f"the batch has columns {', '.join(clash)} already: give a prefix for the new ones"
            )
        if isinstance(batch, Mapping):
            cells_of_rows = zip(*batch.values(), strict=True)
            rows = [dict(zip(batch, cells, strict=True)) for cells in cells_of_rows]
            return {**batch, **self._columns(rows)}
        return batch.assign(**self._columns(batch.to_dict("records")))

    def frames(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Each pandas DataFrame with its scores, for `mapInPandas`."""
        return map(self, frames)

    @property
    def schema(self) -> str:
        """The new columns with their types, as Spark's `mapInPandas` takes them."""
        return ", ".join(f"{name} {kind}" for name, kind in self._types.items())

    @cached_property
    def _scorer(self) -> RowScorer:
        settings = AuditSettings(self.dialect, self.text_column, metrics=self.metrics, how=self.how)
        reader = Reader(self.dialect, self.text_column)
        names = metrics_of(settings, self.judge)
        return RowScorer(names, self.judge, self.how, reader=reader)

    @cached_property
    def _types(self) -> dict[str, str]:
        kinds = {
            **dict.fromkeys((*self._scorer.rewards, *COUNTS), "double"),
            **dict.fromkeys(TEXTS, "string"),
        }
        return {f"{self.prefix}{name}": kind for name, kind in kinds.items()}

    def _columns(self, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """The new columns for these rows."""
        raws = [Raw.of(number, encoded(row, ENCODER)) for number, row in enumerate(rows, start=1)]
        lines = self._scorer.score(raws).values()
        cells_of_rows = [_cells(LINE.decode(line)) for line in lines]
        columns = {}
        for column, kind in self._types.items():
            name = column.removeprefix(self.prefix)
            cells = [cells_of_row.get(name) for cells_of_row in cells_of_rows]
            columns[column] = np.array(cells, dtype=np.float64 if kind == "double" else object)
        return columns

    def __getstate__(self) -> dict[str, Any]:
        """Its settings: whoever unpickles it makes rewards of its own."""
        return {setting.name: getattr(self, setting.name) for setting in fields(self)}


def _cells(line: Line) -> dict[str, Any]:
    """The cells of a row, by column. A row that could not be read has texts only: its numbers are
    NaN, not 0.
    """
    cells: dict[str, Any] = {
        "read_as": line.dialect,
        "evidence_from": line.evidence_from,
        "read_error": line.error or "",
    }
    if line.error is None:
        cells |= line.values
        cells["issues"] = float(sum(line.issues.values()))
        cells["abstained"] = float(sum(score.abstained for score in line.scores.values()))
    return cells
