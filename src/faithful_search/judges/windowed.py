"""The judges that read a premise in windows: each window beside the whole hypothesis."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from ..dialects.fence import Fence
from ..errors import ConfigError
from ..inference.batching import batches
from ..inference.fencing import control_tokens, guarded
from ..inference.loading import embedded_positions, max_tokens, read_config
from ..text import well_formed
from . import distilled
from .base import Judge, Pair, Verdict, Weights, weights_of
from .windows import windows

# retrieved text may spell the model's control tokens: they are read as the characters they are, by
# most tokenizers (see `WindowedJudge.fence`)
PLAIN = {"split_special_tokens": True}

Readout = Callable[[Any], torch.Tensor]
"""Takes a padded batch of rows of tokens; gives p of support of each row, of the shape (rows)."""
Family = Literal["classifier", "seq2seq", "token classifier", "causal LM"]


class Input(NamedTuple):
    """What is read at once: a window of the premise, the hypothesis and, by judges that read it,
    the question.
    """

    premise: str
    hypothesis: str
    question: str = ""


class WindowReading(NamedTuple):
    """p that an input's hypothesis follows, `None` where that could not be read, and a note."""

    p: float | None
    note: str = ""


class Architecture(NamedTuple):
    """Which kind of model it is.

    Attributes:
        source: what it is called: its Hub id or directory.
        classes: the Transformers classes that it is made by, with blanks between them.
        family: what such a model does; `None` where no judge here reads it.
    """

    source: str
    classes: str
    family: Family | None

    @classmethod
    def of(cls, config: Any, classes: str) -> Self:
        """That of a model of these classes; `config` is its Transformers configuration."""
        family: Family | None = None
        if "ForSequenceClassification" in classes:
            family = "classifier"
        elif config.is_encoder_decoder and "ForConditionalGeneration" in classes:
            family = "seq2seq"
        elif "ForTokenClassification" in classes:
            family = "token classifier"
        elif "ForCausalLM" in classes:
            family = "causal LM"
        return cls(config.name_or_path, classes, family)


def architecture_of(model: str, **loading: Any) -> Architecture:
    """What the config.json of a Hub id or directory says that its model is; `loading` as of
    `WindowedJudge.open_network`. Raises `ConfigError` when it cannot be read.
    """
    code = {name: loading[name] for name in ("revision", "trust_remote_code")}
    config = read_config(model, **code)
    return Architecture.of(config, " ".join(config.architectures or []))


def as_rows(rows: Sequence[list[int]]) -> list[dict[str, Any]]:
    """Rows of tokens as `tokenizer.pad` takes them."""
    return [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in rows]


@dataclass(frozen=True)
class WindowedJudge(Judge, ABC):
    """p = max over windows w of the premise of p(support | w, hypothesis); supported when p >=
    `threshold`.

    A subclass says how an input is written as tokens (`encode`), and how probable it is that its
    hypothesis follows (`read`).

    What stands only partly in each of two windows is missed. A hypothesis that takes more than half
    of the model's tokens is cut at its end, and the verdict's `why` says so.

    Args:
        model: the model, in eval mode.
        tokenizer: its tokenizer, with a padding token.
        source: where the model comes from; it names the judge.
        threshold: the smallest p that counts as support.
        window: the most tokens of the premise that are read at once (fewer where the model holds
            fewer).
        stride: the most tokens that neighbouring windows share.
        batch_tokens: tokens of a batch, padding included.
        temperature: see `distilled.calibrated`.
        longest: the most tokens of an input, all included; by default what the model and its
            tokenizer say.
    """

    model: Any = field(repr=False, compare=False)
    tokenizer: Any = field(repr=False, compare=False)
    source: str = ""
    threshold: float = 0.5
    window: int = 384
    stride: int = 64
    batch_tokens: int = 8192
    temperature: float = 1.0
    longest: int | None = None

    kind: ClassVar[str]
    """What names the judge, before its `source`."""
    probability_of: ClassVar[str] = "supported"
    """The event that p is the probability of, as `why` names it."""
    spare: ClassVar[int] = 0
    """Tokens that are kept free, where the parts of an input merge with the text around them."""
    needs_model: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("trust_remote_code",)
    reads_queries: ClassVar[bool] = False
    reads_question: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token_id is None:
            raise ConfigError(
                f"the tokenizer of {self.name} has no padding token; set `tokenizer.pad_token`"
            )
        distilled.check(self.threshold, self.temperature, self.window, self.stride)

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        **knobs: Any,
    ) -> Self:
        """The judge of a Hub id or a directory.

        `knobs` are the judge's other fields, and `device` and `dtype` as of
        `inference.loading.open_model`. Raises `ConfigError` when it cannot be opened, or is of
        another kind.
        """
        loading = {
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "device": knobs.pop("device", None),
            "dtype": knobs.pop("dtype", None),
        }
        network, tokenizer = cls.open_network(model, **loading)
        return cls(network, tokenizer, model, **knobs)

    @classmethod
    @abstractmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        """The model and its tokenizer. `loading` has `revision`, `trust_remote_code`, `device` and
        `dtype`, as of `inference.loading.open_model`; errors as of `from_pretrained`.
        """

    @abstractmethod
    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        """The rows of tokens that the model reads for what `inputs` gives."""

    @abstractmethod
    def read(self, inputs: Sequence[Input]) -> list[WindowReading]:
        """p of each input, by itself."""

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        return cls.from_pretrained(str(model), **settings)

    @property
    def weights(self) -> Weights:
        weights = weights_of(self.source, self.model)
        if self.preset is None or weights.source != self.preset.model:
            return weights
        return weights._replace(licence=self.preset.licence)

    @property
    def name(self) -> str:
        source = self.source or self.model.config.name_or_path or type(self.model).__name__
        return f"{self.kind}:{source}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        inputs_by_pair, notes = self._inputs(pairs)
        flat: list[Input] = []
        for inputs in inputs_by_pair:
            flat += inputs
        readings = iter(self.read(flat) if flat else ())
        verdicts = []
        for inputs, note in zip(inputs_by_pair, notes, strict=True):
            readings_of_pair = list(islice(readings, len(inputs)))
            verdicts.append(self._verdict(readings_of_pair, note))
        return verdicts

    def _verdict(self, readings: Sequence[WindowReading], note: str) -> Verdict:
        """The verdict on a pair by what was read of each of its windows."""
        if not readings:  # an empty hypothesis follows from nothing: p = 0, unasked
            return Verdict(0.0, False, note, self.name)
        for reading in readings:
            if reading.p is None:
                return Verdict(None, None, reading.note, self.name)
            if not 0 <= reading.p <= 1:
                why = f"the model gave p({self.probability_of}) = {reading.p}: is it damaged?"
                return Verdict(None, None, why, self.name)
        best = max(readings, key=lambda reading: reading.p or 0.0)
        p = distilled.calibrated(best.p or 0.0, self.temperature)
        where = f", the most of {len(readings)} windows" if len(readings) > 1 else ""
        why = f"p({self.probability_of}) = {p:.3f}{where}{best.note}{note}"
        return Verdict(p, p >= self.threshold, why, self.name)

    def inputs(self, pairs: Sequence[Pair]) -> list[list[Input]]:
        """What is read of each pair, window by window; nothing of an empty hypothesis."""
        return self._inputs(pairs)[0]

    def padded(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[list[int], Any]]:
        """Batches of rows of similar lengths: their numbers, and their tokens as tensors."""
        lengths = [len(row["input_ids"]) for row in rows]
        for numbers in batches(lengths, self.batch_tokens):
            chosen = [rows[number] for number in numbers]
            tokens = self.tokenizer.pad(chosen, return_tensors="pt")
            yield numbers, tokens.to(self.model.device)

    def _inputs(self, pairs: Sequence[Pair]) -> tuple[list[list[Input]], list[str]]:
        """The inputs of each pair; and what was cut off, or why there are none."""
        inputs_by_pair: list[list[Input]] = []
        notes = []
        for pair in pairs:
            premise = self._plain(pair.premise)
            hypothesis = self._plain(pair.hypothesis)
            question = self._plain(pair.question)
            if not hypothesis.strip():
                inputs_by_pair.append([])
                notes.append("there is nothing to judge")
                continue
            # at least a quarter of what the model holds is left to the premise
            hypothesis, tokens, note = self._cut("hypothesis", hypothesis, self._room // 2)
            # a judge that does not read the question gets an empty one
            question = question.strip() if self.reads_question else ""
            question, question_tokens, question_note = self._cut(
                "question", question, self._room // 4
            )
            size = max(1, min(self.window, self._room - tokens - question_tokens))
            stride = min(self.stride, size // 2)
            parts = windows(premise, size, stride, self.count)
            inputs = [Input(part, hypothesis, question) for part in parts or [""]]
            inputs_by_pair.append(inputs)
            notes.append(note + question_note)
        return inputs_by_pair, notes

    def _cut(self, name: str, text: str, most: int) -> tuple[str, int, str]:
        """The beginning of a text of at most so many tokens, their number, and what was cut."""
        [tokens] = self.count([text])
        if tokens <= most:
            return text, tokens, ""
        beginning = windows(text, most, 0, self.count)[0]
        [kept] = self.count([beginning])
        return beginning, kept, f"; the {name} was cut from {tokens} tokens to its first {kept}"

    def count(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, without the marks that a tokenizer puts around it."""
        return [len(ids) for ids in self.pieces(texts)]

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without marks around it; control tokens are spelled out."""
        if not texts:
            return []
        # without the tokenizer's warning about long texts
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False, **PLAIN)
        return encoded["input_ids"]

    def _plain(self, text: str) -> str:
        """A text of which the tokenizer reads no part as a control token."""
        text = well_formed(text)
        return text if self.fence is None else self.fence.escape(text)

    @cached_property
    def fence(self) -> Fence | None:
        """What escapes control tokens; `None` where `PLAIN` is enough.

        It is not enough for tokenizers whose vocabulary holds control tokens among its words, such
        as T5's: they find them in any text.
        """
        for token in control_tokens(self.tokenizer):
            if token == self.tokenizer.unk_token:
                continue
            if self.tokenizer.convert_tokens_to_ids(token) in self.pieces([token])[0]:
                return guarded(Fence(""), self.tokenizer)
        return None

    @cached_property
    def limit(self) -> int | None:
        """The most tokens of an input, all included; `None` where nothing says so."""
        if self.longest is None:
            return max_tokens(self.model, self.tokenizer)
        # relative positions have no end, but those that are embedded do
        return min(self.longest, embedded_positions(self.model) or self.longest)

    @cached_property
    def _room(self) -> int:
        """Tokens that premise, hypothesis and question may take together."""
        if self.limit is None:
            return sys.maxsize
        frame = len(self.encode([Input("", "")])[0]["input_ids"])
        return self.limit - frame - self.spare


@dataclass(frozen=True)
class ReadoutJudge(WindowedJudge, ABC):
    """A judge that reads p of an input out of the logits of one pass of its model.

    A subclass says how its model's logits become p (`make_readout`). A model that has no such p is
    refused when the judge is made.

    Args:
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Made now, so that a model of another kind is refused at once
        self.readout  # noqa: B018

    @abstractmethod
    def make_readout(self) -> Readout:
        """What gives p of each row of a batch. It is made of functions of a module, since a judge
        is pickled and closures cannot be. Raises `ConfigError` for a model without such a p.
        """

    @cached_property
    def readout(self) -> Readout:
        """What gives p of each row of a batch."""
        return self.make_readout()

    @property
    def architecture(self) -> Architecture:
        """Which kind of model it has."""
        return Architecture.of(self.model.config, type(self.model).__name__)

    def read(self, inputs: Sequence[Input]) -> list[WindowReading]:
        readings = [WindowReading(None)] * len(inputs)
        for rows, batch in self.padded(self.encode(inputs)):
            with torch.inference_mode():
                probabilities = self.readout(batch).tolist()
            for row, p in zip(rows, probabilities, strict=True):
                readings[row] = WindowReading(p)
        return readings
