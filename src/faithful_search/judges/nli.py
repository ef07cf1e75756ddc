"""The judge that is an entailment model: a classifier, or a seq2seq model of the TRUE kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from ..errors import ConfigError
from ..inference.batching import shared_length
from ..inference.loading import open_model
from . import distilled
from .base import LABELS
from .windowed import PLAIN, Architecture, Input, Readout, ReadoutJudge, architecture_of

_ENTAILS = ("entailment", "entail", "entails")
"""Names of the label that means support."""


@dataclass(frozen=True)
class NLIJudge(ReadoutJudge):
    """Supports a hypothesis if a model of entailment says that it follows from the premise.

    ```
    p     = max over windows w of the premise of p(entailment | w, hypothesis)
    label = p ≥ threshold
    ```

    The architecture of the model says how it is asked:

    - A sequence classifier reads the pair. p is the softmax at its label `entailment` (or at
      `label`), or the sigmoid where labels do not exclude each other.
    - A seq2seq model reads `premise: … hypothesis: …` and writes 1 or 0 (TRUE, Honovich et al.
      2022, which VERITAS §3.3 uses for think-search). p = p(1) / (p(1) + p(0)), at the first token
      in which the two labels differ.

    Support of which each of two windows holds only a part is missed. A hypothesis that takes more
    than half of the model's tokens is cut at its end, and the verdict's `why` says so. The question
    is not read. The judge can be gamed by repeating the evidence.

    Args:
        label: the classifier's label that means support, when it is not called entailment.
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`.
    """

    label: str | None = None

    kind: ClassVar[str] = "nli"
    probability_of: ClassVar[str] = "entailment"

    @classmethod
    def from_pretrained(cls, model: str, *, revision: str | None = None, **knobs: Any) -> Self:
        """The judge with the model of a Hub id or a directory. The `judge.json` of a distilled
        model sets what `knobs` leave open.

        `knobs` are those of `WindowedJudge.from_pretrained`. Raises `ConfigError` when the model
        cannot be opened, is of neither kind, or was distilled as a judge of another kind.
        """
        knobs = distilled.settings(model, "nli", revision) | knobs
        return super().from_pretrained(model, revision=revision, **knobs)

    @classmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        return open_entailment(model, **loading)

    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        if not inputs:
            return []
        if is_seq2seq(self.architecture):
            texts = [f"premise: {each.premise} hypothesis: {each.hypothesis}" for each in inputs]
            encoded = self.tokenizer(texts, verbose=False, **PLAIN)
        else:
            premises = [each.premise for each in inputs]
            hypotheses = [each.hypothesis for each in inputs]
            # A window's length is a sum over its parts, which may have fewer tokens than the whole
            cut = {"truncation": "only_first", "max_length": self.limit} if self.limit else {}
            encoded = self.tokenizer(premises, hypotheses, **cut, **PLAIN)
        rows = []
        for row in range(len(inputs)):
            rows.append({key: values[row] for key, values in encoded.items()})
        return rows

    def make_readout(self) -> Readout:
        if is_seq2seq(self.architecture):
            return written_labels(self)
        config = self.model.config
        exclusive = config.num_labels > 1 and config.problem_type != "multi_label_classification"
        return partial(_classified, self.model, self._supporting_label(), exclusive)

    def _supporting_label(self) -> int:
        """The number of the classifier's label that means support."""
        config = self.model.config
        number_of = {str(name).lower(): int(number) for number, name in config.id2label.items()}
        for name, number in (config.label2id or {}).items():
            number_of[str(name).lower()] = int(number)
        candidates = (self.label.lower(),) if self.label else _ENTAILS
        for name in candidates:
            if name in number_of:
                return number_of[name]
        labels = ", ".join(map(repr, config.id2label.values()))
        raise ConfigError(
            f"{self.name} has no label {candidates[0]!r}; its labels are {labels}: name the one "
            "that means support as `label`, or take a model of entailment"
        )


def open_entailment(model: str, **loading: Any) -> tuple[Any, Any]:
    """A sequence classifier or a seq2seq model, and its tokenizer. `loading` is as of
    `WindowedJudge.open_network`. Raises `ConfigError` when the model cannot be opened or is
    neither.
    """
    writes_labels = is_seq2seq(architecture_of(model, **loading))
    auto = AutoModelForSeq2SeqLM if writes_labels else AutoModelForSequenceClassification
    return open_model(auto, model, **loading)


def written_labels(judge: ReadoutJudge) -> Readout:
    """Reads p(1) / (p(1) + p(0)) of a seq2seq model for each row of a batch, at the first token in
    which the two labels differ. Raises `ConfigError` if they do not differ.
    """
    model = judge.model
    yes, no = (judge.tokenizer(text_target=label)["input_ids"] for label in LABELS)
    place = shared_length(yes, no)
    if place == min(len(yes), len(no)):
        raise ConfigError(
            f"the tokenizer of {model.config.name_or_path!r} does not tell the labels 1 and 0 apart"
        )
    start = [model.config.decoder_start_token_id, *yes[:place]]
    return partial(_written, model, start, yes[place], no[place])


def second_of_two(judge: ReadoutJudge) -> Readout:
    """Reads p of the second of a classifier's two labels for each row of a batch, for models whose
    labels have no names. Raises `ConfigError` for a model of another kind.
    """
    if is_seq2seq(judge.architecture) or judge.model.config.num_labels != 2:
        raise ConfigError(f"{judge.name} is no classifier with two labels, which this judge needs")
    return partial(_classified, judge.model, 1, True)


def _classified(model: Any, label: int, exclusive: bool, batch: Any) -> torch.Tensor:
    """p of a classifier's label for each row of a batch: a softmax where labels exclude each other,
    else a sigmoid.
    """
    logits = model(**batch).logits.float()
    probabilities = logits.softmax(-1) if exclusive else logits.sigmoid()
    return probabilities[:, label]


def _written(model: Any, start: list[int], yes: int, no: int, batch: Any) -> torch.Tensor:
    """p of the token `yes` against `no` after the decoder's tokens `start`, for each row of a
    batch.
    """
    decoder_ids = torch.tensor([start] * len(batch["input_ids"]), device=model.device)
    logits = model(**batch, decoder_input_ids=decoder_ids).logits[:, -1].float()
    return (logits[:, yes] - logits[:, no]).sigmoid()


def is_seq2seq(architecture: Architecture) -> bool:
    """Whether the model is a seq2seq model, else a sequence classifier. Raises `ConfigError` when
    it is neither.
    """
    if architecture.family not in ("classifier", "seq2seq"):
        raise ConfigError(
            f"{architecture.source!r} is neither a sequence classifier nor a seq2seq model (its "
            f"architecture: {architecture.classes}); a causal LM judges with the judge "
            "'generator', an encoder with 'embedding'"
        )
    return architecture.family == "seq2seq"
