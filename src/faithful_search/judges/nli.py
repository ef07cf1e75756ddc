"""The judge that is an entailment model: a classifier, or a seq2seq model of the TRUE kind."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, Self

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from ..errors import ConfigError
from ..inference.batching import batches, shared_length
from ..inference.loading import max_tokens, open_model, read_config
from ..text import well_formed
from . import distilled
from .base import LABELS, Judge, Pair, Verdict, Weights, weights_of
from .windows import windows

_ENTAILS = ("entailment", "entail", "entails")
# retrieved text may spell the model's control tokens: they are read as the characters they are
_PLAIN = {"split_special_tokens": True}


@dataclass(frozen=True)
class NLIJudge(Judge):
    """p = max over windows w of the premise of p(entailment | w, hypothesis); supported when p >=
    `threshold`.

    Two kinds of models are told apart by their architecture. A sequence classifier reads the pair,
    and p is the softmax at its label `entailment` (or at `label`; a sigmoid where labels do not
    exclude each other). A seq2seq model reads `premise: … hypothesis: …` and writes 1 or 0 (TRUE,
    Honovich et al. 2022, which VERITAS §3.3 uses for think-search); p = p(1) / (p(1) + p(0)) where
    the two labels' tokens part.

    What stands only partly in each of two windows is missed. A hypothesis that takes more than half
    of the model's tokens is cut at its end, and the verdict's `why` says so. The question is not
    read. It can be gamed by repeating the evidence.

    Args:
        model: the model, in eval mode.
        tokenizer: its tokenizer, with a padding token.
        source: where the model comes from; it names the judge.
        threshold: the smallest p that counts as support.
        window: the most tokens of the premise that are read at once (fewer where the model holds
            fewer).
        stride: the most tokens that neighbouring windows share.
        batch_tokens: tokens of a batch, padding included.
        label: the classifier's label that means support, when it is not called entailment.
        temperature: see `distilled.calibrated`.
    """

    model: Any = field(repr=False, compare=False)
    tokenizer: Any = field(repr=False, compare=False)
    source: str = ""
    threshold: float = 0.5
    window: int = 384
    stride: int = 64
    batch_tokens: int = 8192
    label: str | None = None
    temperature: float = 1.0

    needs_model: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("trust_remote_code",)
    reads_queries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token_id is None:
            raise ConfigError(
                f"the tokenizer of {self.name} has no padding token; set `tokenizer.pad_token`"
            )
        distilled.check(self.threshold, self.temperature, self.window, self.stride)
        self._supports  # noqa: B018 a model that cannot say so is refused now

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        **knobs: Any,
    ) -> Self:
        """The judge of a Hub id or a directory; a distilled one's `judge.json` sets what `knobs`
        leave open.

        `knobs` are the judge's other fields, and `device` and `dtype` as of
        `inference.loading.open_model`. Raises `ConfigError` when it cannot be opened, is of neither
        kind, or was distilled as a judge of another kind.
        """
        knobs = distilled.settings(model, "nli", revision) | knobs
        placing = {name: knobs.pop(name, None) for name in ("device", "dtype")}
        where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        config = read_config(model, **where)
        writes = _writes(config, " ".join(config.architectures or []))
        auto = AutoModelForSeq2SeqLM if writes else AutoModelForSequenceClassification
        network, tokenizer = open_model(auto, model, **where, **placing)
        return cls(network, tokenizer, model, **knobs)

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        return cls.from_pretrained(str(model), **settings)

    @property
    def weights(self) -> Weights:
        return weights_of(self.source, self.model)

    @property
    def name(self) -> str:
        return f"nli:{self.source or self.model.config.name_or_path or type(self.model).__name__}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        # an empty hypothesis follows from nothing: p = 0, unasked
        readings = self._readings(pairs)
        rows = self.encode(
            [(window, hypothesis) for parts, hypothesis, _ in readings for window in parts]
        )
        by_row: dict[int, float] = {}
        for batch in batches([len(row["input_ids"]) for row in rows], self.batch_tokens):
            padded = self.tokenizer.pad([rows[row] for row in batch], return_tensors="pt").to(
                self.model.device
            )
            with torch.inference_mode():
                by_row |= zip(batch, self._supports(padded).tolist(), strict=True)
        # batches are of similar lengths, in another order
        probs = (by_row[row] for row in range(len(rows)))
        verdicts = []
        for parts, _, note in readings:
            window_probs = list(islice(probs, len(parts)))
            p = distilled.calibrated(max(window_probs, default=0.0), self.temperature)
            where = f", the most of {len(window_probs)} windows" if len(window_probs) > 1 else ""
            why = f"p(entailment) = {p:.3f}{where}{note}" if window_probs else note
            verdicts.append(Verdict(p, bool(window_probs) and p >= self.threshold, why, self.name))
        return verdicts

    def inputs(self, pairs: Sequence[Pair]) -> list[list[tuple[str, str]]]:
        """What is read of each pair: (window of the premise, hypothesis), none for an empty
        hypothesis.
        """
        return [
            [(window, hypothesis) for window in parts]
            for parts, hypothesis, _ in self._readings(pairs)
        ]

    def encode(self, inputs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """The rows of tokens that the model reads for what `inputs` gives."""
        if not inputs:
            return []
        if self._seq2seq:
            texts = [
                f"premise: {premise} hypothesis: {hypothesis}" for premise, hypothesis in inputs
            ]
            encoded = self.tokenizer(texts, verbose=False, **_PLAIN)
        else:
            premises, hypotheses = map(list, zip(*inputs, strict=True))
            # windows are reckoned from parts, and a part's tokens need not add up exactly
            cut = {"truncation": "only_first", "max_length": self._limit} if self._limit else {}
            encoded = self.tokenizer(premises, hypotheses, **cut, **_PLAIN)
        return [{key: values[row] for key, values in encoded.items()} for row in range(len(inputs))]

    def _readings(self, pairs: Sequence[Pair]) -> list[tuple[list[str], str, str]]:
        """The windows, the hypothesis as it is read, and what was cut off or why there are no
        windows.
        """
        readings: list[tuple[list[str], str, str]] = []
        for pair, tokens in zip(
            pairs, self._count([pair.hypothesis for pair in pairs]), strict=True
        ):
            hypothesis, note = well_formed(pair.hypothesis), ""
            if not hypothesis.strip():
                readings.append(([], "", "there is nothing to judge"))
                continue
            if (
                tokens > self._room // 2
            ):  # at least half of what the model holds is left to the premise
                hypothesis = windows(hypothesis, self._room // 2, 0, self._count)[0]
                kept_tokens = self._count([hypothesis])[0]
                tokens, note = (
                    kept_tokens,
                    f"; the hypothesis was cut from {tokens} tokens to its first {kept_tokens}",
                )
            size = min(self.window, self._room - tokens)
            parts = windows(
                well_formed(pair.premise), size, min(self.stride, size // 2), self._count
            )
            readings.append((parts or [""], hypothesis, note))
        return readings

    def _count(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        # without the marks that a tokenizer puts around each text, and without its warning about
        # long ones
        encoded = self.tokenizer(
            list(map(well_formed, texts)), add_special_tokens=False, verbose=False, **_PLAIN
        )
        return [len(ids) for ids in encoded["input_ids"]]

    @property
    def _seq2seq(self) -> bool:
        return _writes(self.model.config, type(self.model).__name__)

    @cached_property
    def _limit(self) -> int | None:
        return max_tokens(self.model, self.tokenizer)

    @cached_property
    def _room(self) -> int:
        """Tokens that premise and hypothesis may take together."""
        return (
            sys.maxsize
            if self._limit is None
            else self._limit - len(self.encode([("", "")])[0]["input_ids"])
        )

    @cached_property
    def _supports(self) -> Callable[[Any], torch.Tensor]:
        """How probable support is for each row of a batch, by where the model says so."""
        # of functions of the module, which pickle
        config = self.model.config
        if self._seq2seq:
            yes, no = (self.tokenizer(text_target=label)["input_ids"] for label in LABELS)
            at = shared_length(yes, no)
            if at == min(len(yes), len(no)):
                raise ConfigError(
                    f"the tokenizer of {config.name_or_path!r} does not tell the labels 1 and 0 "
                    "apart"
                )
            return partial(
                _written, self.model, [config.decoder_start_token_id, *yes[:at]], yes[at], no[at]
            )
        label_names = (self.label.lower(),) if self.label else _ENTAILS
        named = [
            *config.id2label.items(),
            *((index, name) for name, index in (config.label2id or {}).items()),
        ]
        label_ids = {str(name).lower(): int(index) for index, name in named}
        label = next((label_ids[name] for name in label_names if name in label_ids), None)
        if label is None:
            labels = ", ".join(map(repr, config.id2label.values()))
            message = f"{self.name} has no label {label_names[0]!r}; its labels are {labels}"
            raise ConfigError(
                f"{message}: name the one that means support as `label`, or take a model of "
                "entailment"
            )
        exclusive = config.num_labels > 1 and config.problem_type != "multi_label_classification"
        return partial(_classified, self.model, label, exclusive)


def _classified(model: Any, label: int, exclusive: bool, batch: Any) -> torch.Tensor:
    logits = model(**batch).logits.float()
    return (logits.softmax(-1) if exclusive else logits.sigmoid())[:, label]


def _written(model: Any, start: list[int], yes: int, no: int, batch: Any) -> torch.Tensor:
    begun = torch.tensor([start] * len(batch["input_ids"]), device=model.device)
    logits = model(**batch, decoder_input_ids=begun).logits[:, -1].float()
    return (logits[:, yes] - logits[:, no]).sigmoid()


def _writes(config: Any, made: str) -> bool:
    """Whether a model made by the class `made` is seq2seq; else it is a classifier. `ConfigError`
    when neither.
    """
    if "ForSequenceClassification" in made:
        return False
    if config.is_encoder_decoder and "ForConditionalGeneration" in made:
        return True
    message = (
        f"{config.name_or_path!r} is neither a sequence classifier nor a seq2seq model (its "
        f"architecture: {made})"
    )
    raise ConfigError(
        f"{message}; a causal LM judges with the judge 'generator', an encoder with 'embedding'"
    )
