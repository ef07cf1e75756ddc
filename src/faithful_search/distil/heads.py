"""What becomes a judge: a classifier of any checkpoint or a language model, its trainer, and its
calibration.
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
COLDEST, HOTTEST = 0.05, 20.0
_EDGE = 1e-12


def open_classifier(name: str, seed: int = 0, **kwargs: Any) -> tuple[Any, Any]:
    """A sequence classifier with the labels `not_entailment` and `entailment`, and its tokenizer.

    Any encoder or decoder will do; a classifier's head is kept if it has these two labels, else it
    is initialised from `seed`. `kwargs` are of `from_pretrained`; the weights are float32 unless
    they say otherwise. A tokenizer that puts nothing between two texts (most decoders') gets its
    end-of-text token there and at the end; padding is on the right. Raises `ConfigError` if it
    cannot be opened (or only by its own code, without `trust_remote_code=True`), or its tokenizer
    lacks an end-of-text token that is needed.
    """
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    kwargs.setdefault("dtype", torch.float32)
    where = {
        "revision": kwargs.pop("revision", None),
        "trust_remote_code": kwargs.pop("trust_remote_code", False),
    }
    config = read_config(name, **where)
    tokenizer = _for_pairs(read_tokenizer(name, **where))
    labels = {str(label).lower() for label in config.id2label.values()}
    has_head = labels == set(LABELS.values())
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
    """The number of the label that means "follows"."""
    return next(
        int(number)
        for number, label in model.config.id2label.items()
        if str(label).lower() == LABELS[1]
    )


def freeze(model: Any, embeddings: bool = False, layers: int = 0) -> None:
    """Freeze the embeddings and the lowest `layers` layers; `ConfigError` if the model has fewer.
    With any layer, the table of relative positions that all layers read (MPNet's) is frozen too:
    its gradient would have to pass through the frozen layers.
    """
    stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    stack: Any = max(stacks, key=len, default=[])
    if layers > len(stack):
        raise ConfigError(
            f"cannot freeze {layers} layers of {model.config.name_or_path!r}, which has "
            f"{len(stack)}"
        )
    names: list[str] = []
    if embeddings:
        names += ["embeddings", "embed_tokens", "wte", "wpe"]
    if layers:
        names.append("relative_attention_bias")
    frozen = list(stack[:layers])
    for name, part in model.named_modules():
        if name.rpartition(".")[2] in names:
            frozen.append(part)
    for part in frozen:
        part.requires_grad_(False)


class _ByAgreement:
    """Evaluates by asking the judge in training about the validation pairs, as it will be asked in
    use; see `agreement`.
    """

    def __init__(
        self,
        *args: Any,
        make_judge: Callable[[Any], Judge],
        pairs: Sequence[Labelled],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.make_judge = make_judge
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
            values = agreement(self.make_judge(self.model), self.pairs)
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in values.items()}
            # in eval mode, by which TRL separates these from its training metrics
            self.log(dict(metrics))
        finally:
            self.model.train(training)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


class ClassifierTrainer(_ByAgreement, Trainer):
    pass


class SpanTrainer(_ByAgreement, Trainer):
    """Trains an encoder with heads that are new, and learn at a rate of their own."""

    def __init__(self, *args: Any, head_learning_rate: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head_learning_rate = head_learning_rate

    def create_optimizer(self: Any, model: Any = None) -> Any:
        trained = [
            (name, weights)
            for name, weights in self.model.named_parameters()
            if weights.requires_grad
        ]
        of_encoder = [weights for name, weights in trained if name.startswith("encoder.")]
        new = [weights for name, weights in trained if not name.startswith("encoder.")]
        self.optimizer = torch.optim.AdamW(
            [{"params": of_encoder}, {"params": new, "lr": self.head_learning_rate}],
            lr=self.args.learning_rate,
            weight_decay=self.args.weight_decay,
        )
        return self.optimizer


class LabelTrainer(_ByAgreement, SFTTrainer):
    pass


def agreement(judge: Judge, rows: Sequence[Labelled]) -> dict[str, float]:
    """κ (0 if undefined), agreement rate and negative log-likelihood in nats of a judge against
    labels, without pairs it abstained from.
    """
    verdicts = judge.judge_batch([row.pair for row in rows])
    judged = [
        (verdict.p, verdict.label, row.label)
        for verdict, row in zip(verdicts, rows, strict=True)
        if verdict.p is not None
    ]
    if not judged:
        return {"kappa": 0.0, "agreement": 0.0, "nll": float("inf")}
    p, labels, truth = map(list, zip(*judged, strict=True))
    agreeing = sum(label == true_label for _, label, true_label in judged)
    return {
        "kappa": statistics.cohen_kappa(truth, labels, draws=1).value or 0.0,
        "agreement": agreeing / len(judged),
        "nll": negative_log_likelihood(p, truth),
    }


def weighted_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None, *, weights: Sequence[float]
) -> torch.Tensor:
    """Cross entropy in which label k weighs `weights[k]`; with these given, Trainer's
    `compute_loss_func`. The sum is divided by the rows of the whole accumulated batch; a
    classifier's own loss is a mean over each part of it, and Trainer would add these up.
    """
    logits = outputs["logits"].float()
    total = cross_entropy(logits, labels, weight=logits.new_tensor(weights), reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def fit_temperature(p: Sequence[float], labels: Sequence[bool]) -> float:
    """The T in [0.05, 20] at which sigmoid(logit(p) / T) has the least negative log-likelihood of
    the labels. The loss is convex in 1/T, so its slope is bisected (Guo et al. 2017, temperature
    scaling). Judges that are right about every pair, or no better than chance, get the interval's
    ends; 1 without pairs.
    """
    if not len(p):
        return 1.0
    clipped = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    logits = np.log(clipped / (1 - clipped))
    truth = np.asarray(labels, dtype=np.float64)
    low, high = 1 / HOTTEST, 1 / COLDEST  # in 1/T the loss is convex, in T it is not
    for _ in range(60):
        middle = (low + high) / 2
        scaled_logits = np.clip(logits * middle, -700, 700)  # beyond it exp overflows
        scaled_p = 1 / (1 + np.exp(-scaled_logits))
        slope = ((scaled_p - truth) * logits).sum()  # of the loss in 1/T
        if slope > 0:
            high = middle
        else:
            low = middle
    return float(1 / middle)


def negative_log_likelihood(p: Sequence[float], labels: Sequence[bool]) -> float:
    """The mean of -log p(label), in nats."""
    clipped = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    of_labels = np.where(np.asarray(labels, dtype=bool), clipped, 1 - clipped)
    return float(-np.log(of_labels).mean())


def _for_pairs(tokenizer: Any) -> Any:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add():
        return tokenizer
    end, backend = tokenizer.eos_token, getattr(tokenizer, "backend_tokenizer", None)
    if end is None or backend is None:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} puts nothing between two texts, and is "
            "not a "
            "fast one with an end-of-text token to put there"
        )
    backend.post_processor = TemplateProcessing(
        single=f"$A {end}",
        pair=f"$A {end} $B {end}",
        special_tokens=[(end, tokenizer.eos_token_id)],
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer
