"""The models that become judges, a classifier of any checkpoint or a language model: their trainers
and their calibration.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers.processors import TemplateProcessing
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, Trainer, set_seed
from trl import SFTTrainer

from ..errors import ConfigError
from ..inference.loading import opening, read_config, read_tokenizer
from ..judges import Judge
from ..measure.agreement import Labelled, statistics

LABELS = {0: "not_entailment", 1: "entailment"}
# The least and the greatest temperature of a calibration
COLDEST = 0.05
HOTTEST = 20.0
_EDGE = 1e-12  # probabilities of 0 and 1 become this much more and less, since they have no logit


def open_classifier(name: str, seed: int = 0, **kwargs: Any) -> tuple[Any, Any]:
    """A sequence classifier with the labels `not_entailment` and `entailment`, and its tokenizer.

    Any encoder or decoder will do. A classifier's head is kept if it has these two labels; else it
    is random. A tokenizer that puts nothing between two texts (most decoders') gets its end-of-text
    token there and at the end; padding is on the right.

    Args:
        seed: of a random head.
        kwargs: of `from_pretrained`. The weights are float32 unless they say otherwise.

    Raises:
        ConfigError: the model cannot be opened (or only by its own code, without
            `trust_remote_code=True`), or its tokenizer lacks an end-of-text token that is needed.
    """
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    kwargs.setdefault("dtype", torch.float32)
    where = {
        "revision": kwargs.pop("revision", None),
        "trust_remote_code": kwargs.pop("trust_remote_code", False),
    }
    config = read_config(name, **where)
    tokenizer = _for_pairs(read_tokenizer(name, **where))
    has_head = {str(label).lower() for label in config.id2label.values()} == set(LABELS.values())
    if not has_head:
        kwargs["id2label"] = LABELS
        kwargs["label2id"] = {text: place for place, text in LABELS.items()}
    set_seed(seed)  # a new head is random
    with opening(f"{name!r} as a classifier"):
        model = AutoModelForSequenceClassification.from_pretrained(
            name, ignore_mismatched_sizes=not has_head, **where, **kwargs
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def entailment_index(model: Any) -> int:
    """The number of the label `entailment` in a model of `open_classifier`."""
    number_of_label = {}
    for number, label in model.config.id2label.items():
        number_of_label[str(label).lower()] = int(number)
    return number_of_label[LABELS[1]]


def freeze(model: Any, embeddings: bool = False, layers: int = 0) -> None:
    """Freeze the embeddings and the lowest layers.

    With any layer, the table of relative positions that all layers read (MPNet's) is frozen, too:
    its gradient would have to pass through the frozen layers.

    Args:
        layers: how many of the lowest.

    Raises:
        ConfigError: the model has fewer layers.
    """
    module_lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    all_layers: Any = max(module_lists, key=len, default=[])
    if layers > len(all_layers):
        raise ConfigError(
            f"cannot freeze {layers} layers of {model.config.name_or_path!r}, which has "
            f"{len(all_layers)}"
        )
    names: list[str] = []
    if embeddings:
        names += ["embeddings", "embed_tokens", "wte", "wpe"]
    if layers:
        names.append("relative_attention_bias")
    frozen = list(all_layers[:layers])
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in names:
            frozen.append(module)
    for module in frozen:
        module.requires_grad_(False)


class _ByAgreement:
    """A trainer that evaluates by asking the judge about the validation pairs, as it will be asked
    in use; see `agreement`.

    Args:
        judging: makes a judge of the model in training.
        pairs: the validation pairs.
    """

    def __init__(
        self, *args: Any, judging: Callable[[Any], Judge], pairs: Sequence[Labelled], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.judging = judging
        self.pairs = list(pairs)

    def evaluate(
        self: Any,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        training = self.model.training  # dropout would make verdicts random
        self.model.eval()
        try:
            values = agreement(self.judging(self.model), self.pairs)
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in values.items()}
            # Still in eval mode, by which TRL tells these from its training metrics.
            self.log(dict(metrics))
        finally:
            self.model.train(training)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


class ClassifierTrainer(_ByAgreement, Trainer):
    """Trains a classifier."""


class LabelTrainer(_ByAgreement, SFTTrainer):
    """Trains a language model to write the label."""


def agreement(judge: Judge, rows: Sequence[Labelled]) -> dict[str, float]:
    """How a judge agrees with labels, without the pairs from which it abstained: `kappa` (0 if
    undefined), the rate of `agreement`, and `nll`, the negative log-likelihood in nats.
    """
    verdicts = judge.judge_batch([row.pair for row in rows])
    probabilities: list[float] = []
    verdict_labels: list[Any] = []
    true_labels: list[Any] = []
    for verdict, row in zip(verdicts, rows, strict=True):
        if verdict.p is not None:
            probabilities.append(verdict.p)
            verdict_labels.append(verdict.label)
            true_labels.append(row.label)
    if not true_labels:
        return {"kappa": 0.0, "agreement": 0.0, "nll": float("inf")}
    pairs = zip(verdict_labels, true_labels, strict=True)
    agreeing = sum(label == true_label for label, true_label in pairs)
    return {
        "kappa": statistics.cohen_kappa(true_labels, verdict_labels, draws=1).value or 0.0,
        "agreement": agreeing / len(true_labels),
        "nll": negative_log_likelihood(probabilities, true_labels),
    }


def weighted_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None, *, weights: Sequence[float]
) -> torch.Tensor:
    """Cross entropy in which label k weighs `weights[k]`: a `compute_loss_func` for Trainer.

    The sum is divided by the rows of the whole accumulated batch. A classifier's own loss is a mean
    over each part of that batch, and Trainer would add these means up.
    """
    logits = outputs["logits"].float()
    total = cross_entropy(logits, labels, weight=logits.new_tensor(weights), reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def fit_temperature(p: Sequence[float], labels: Sequence[bool]) -> float:
    """The temperature T in [0.05, 20] at which sigmoid(logit(p) / T) has the least negative
    log-likelihood of the labels (temperature scaling, Guo et al. 2017); 1 without pairs.

    Judges that are right about every pair, or no better than chance, get an end of the interval.
    """
    if not len(p):
        return 1.0
    clipped = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    logits = np.log(clipped / (1 - clipped))
    truth = np.asarray(labels, dtype=np.float64)
    # The loss is convex in 1/T, which it is not in T: its slope there is bisected.
    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(60):
        inverse = (low + high) / 2
        scaled = 1 / (1 + np.exp(-np.clip(logits * inverse, -700, 700)))
        slope = ((scaled - truth) * logits).sum()
        if slope > 0:
            high = inverse
        else:
            low = inverse
    return float(1 / inverse)


def negative_log_likelihood(p: Sequence[float], labels: Sequence[bool]) -> float:
    """The mean of -log p(label), in nats."""
    clipped = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    p_of_labels = np.where(np.asarray(labels, dtype=bool), clipped, 1 - clipped)
    return float(-np.log(p_of_labels).mean())


def _for_pairs(tokenizer: Any) -> Any:
    """A copy of the tokenizer that divides two texts, and pads on the right."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    divides = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add()
    if divides:
        return tokenizer
    end = tokenizer.eos_token
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if end is None or backend is None:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} puts nothing between two texts, and is "
            "not a fast one with an end-of-text token to put there"
        )
    backend.post_processor = TemplateProcessing(
        single=f"$A {end}",
        pair=f"$A {end} $B {end}",
        special_tokens=[(end, tokenizer.eos_token_id)],
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer
