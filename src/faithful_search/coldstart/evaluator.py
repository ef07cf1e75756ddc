"""How well a policy scores trajectories: its rubric scores against labels it has not been taught, before and after."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainerCallback

from ..inference.transformers import TransformersGenerator
from ..rewards import SelfRubric
from ..training.processes import gathered
from ..trajectory import Trajectory
from .rubric import LABEL

REPORT = "evaluator.json"


class EvaluatorReport(NamedTuple):
    """How a policy scores held-out trajectories.

    Attributes:
        n: trajectories.
        unreadable: share of the replies without a score.
        rmse: root mean square error of the others' scores, in [0, 1]; `None` where there are none.
        exact: share of all trajectories that got exactly their score.
        table: how often each true score (first key) was given each score, "unreadable" included.
    """

    n: int
    unreadable: float
    rmse: float | None
    exact: float
    table: dict[str, dict[str, int]]

    def lines(self, what: str) -> list[str]:
        """For people to read."""
        rmse = "no readable reply" if self.rmse is None else f"RMSE {self.rmse:.3f}"
        head = f"evaluator {what}: {rmse}, exact {self.exact:.3f}, unreadable {self.unreadable:.3f}, n = {self.n}"
        return [head, *(f"  true {true}: {counts}" for true, counts in self.table.items())]


def evaluator_report(scored: Sequence[Trajectory], rubric: SelfRubric) -> EvaluatorReport:
    """Ask a bound `SelfRubric` about labelled trajectories, and compare."""
    given = [score.value for score in rubric.score_batch(scored)]
    pairs = [(item.meta[LABEL]["score"], value) for item, value in zip(scored, given, strict=True)]
    read = [(true, value) for true, value in pairs if value is not None]
    table = {
        str(true): dict(sorted(Counter("unreadable" if v is None else str(v) for t, v in pairs if t == true).items()))
        for true in sorted({true for true, _ in pairs}, reverse=True)
    }
    return EvaluatorReport(
        n=len(pairs),
        unreadable=1 - len(read) / len(pairs),
        rmse=(sum((true - value) ** 2 for true, value in read) / len(read)) ** 0.5 if read else None,
        exact=sum(true == value for true, value in pairs) / len(pairs),
        table=table,
    )


class EvaluatorCheck(TrainerCallback):
    """Measures the evaluator when supervised training begins, and whenever it is told to, and writes `evaluator.json`.

    Every process takes part in gathering the weights; the main one asks.
    """

    def __init__(
        self, trainer: Any, scored: Sequence[Trajectory], reply_tokens: int, say: Callable[[str], None]
    ) -> None:
        self.trainer, self.scored, self.say = trainer, scored, say
        self.rubric = SelfRubric(reply_tokens=reply_tokens)
        self.path = Path(trainer.args.output_dir) / REPORT

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.global_step:  # a resumed run keeps what its beginning was
            self.measure("before")

    def measure(self, when: str) -> None:
        """Ask about the held-out trajectories, print and write what comes of it. All processes call it."""
        trainer = self.trainer
        with gathered(trainer.model_wrapped, trainer.accelerator), trainer.accelerator.autocast():
            if not trainer.accelerator.is_main_process:
                return
            model = trainer.accelerator.unwrap_model(trainer.model)
            generator = TransformersGenerator(model, trainer.processing_class)
            report = evaluator_report(self.scored, self.rubric.bind(policy=generator))
        self.say("\n".join(report.lines(when)))
        # "after" joins what "before" wrote; a new run begins the file anew.
        kept = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() and when == "after" else {}
        self.path.write_text(json.dumps({**kept, when: report._asdict()}, indent=1), encoding="utf-8")
