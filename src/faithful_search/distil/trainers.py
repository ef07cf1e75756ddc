"""Trainers of judges: Transformers' for classifiers, TRL's for generators, both evaluated by asking the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import Trainer
from trl import SFTTrainer

from ..judges import Judge
from ..measure.agreement import statistics
from ..measure.agreement.labelled import Labelled
from .calibration import negative_log_likelihood
from .pairs import pair_of


class _ByAgreement:
    """Evaluates by asking the judge in training about the validation pairs, as it will be asked in use.

    Metrics: `eval_kappa` (Cohen's, of its labels with the given ones; 0 if undefined), `eval_agreement` and `eval_nll`
    (of its p, in nats).
    """

    def __init__(self, *args: Any, judging: Callable[[Any], Judge], pairs: Sequence[Labelled], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.judging, self.pairs = judging, list(pairs)

    def evaluate(
        self: Any, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The metrics, logged; of Transformers' arguments only the prefix is used."""
        training = self.model.training  # dropout would make verdicts random
        self.model.eval()
        try:
            found = agreement(self.judging(self.model), self.pairs)
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
            self.log(dict(metrics))  # in eval mode, by which TRL separates these from its training metrics
        finally:
            self.model.train(training)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class ClassifierTrainer(_ByAgreement, Trainer):
    """Transformers' trainer; takes `judging`, a judge from its model, and the validation `pairs` as well."""


class LabelTrainer(_ByAgreement, SFTTrainer):
    """TRL's supervised trainer, likewise."""


def agreement(judge: Judge, rows: Sequence[Labelled]) -> dict[str, float]:
    """κ, agreement rate and negative log-likelihood of a judge against labels, without pairs it abstained from."""
    verdicts = judge.judge_batch([pair_of(row) for row in rows])
    judged = [(own.p, own.label, row.label) for own, row in zip(verdicts, rows, strict=True) if own.p is not None]
    if not judged:
        return {"kappa": 0.0, "agreement": 0.0, "nll": float("inf")}
    p, said, truth = map(list, zip(*judged, strict=True))
    return {
        "kappa": statistics.cohen_kappa(truth, said, draws=1).value or 0.0,
        "agreement": sum(a == b for a, b in zip(said, truth, strict=True)) / len(truth),
        "nll": negative_log_likelihood(p, truth),
    }


def weighted_loss(weights: Sequence[float]) -> Callable[..., torch.Tensor]:
    """Cross entropy of a classifier's outputs in which label k weighs `weights[k]`, as Trainer's `compute_loss_func`.

    The sum is divided by the rows of the whole accumulated batch, over all processes; a classifier's own loss is a mean
    over each part of it, and Trainer would add these up.
    """

    def weighted(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"].float()
        total = cross_entropy(logits, labels, weight=logits.new_tensor(weights), reduction="sum")
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return weighted
