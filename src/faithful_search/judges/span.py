"""The judge that reads with a small encoder and says which words of the hypothesis the evidence
does not support. It needs no torch: its network is an ONNX file.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from ..errors import ConfigError, WeightsError, needs
from . import distilled
from .base import Judge, Pair, Verdict, Weights
from .lexical import GroundingJudge
from .span_inputs import SpanInput, SpanReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EDGE = 1e-9
_COUNTING = GroundingJudge()
NETWORK, TOKENIZER = "model.onnx", "tokenizer.json"
Arrays = Mapping[str, "NDArray[Any]"]
Network = Callable[[Arrays], tuple["NDArray[Any]", "NDArray[Any]"]]
"""Takes `input_ids`, `marks`, `attention_mask` and `claim_mask`, each int64 of the shape (rows,
tokens); gives two arrays of floats: the logits of support of the shape (rows), and those of each
token's lack of it of the shape (rows, tokens). Only the latter's tokens of the hypothesis count.
"""


class MarkedSpan(NamedTuple):
    """Characters of a hypothesis, and the probability that the evidence does not support them.

    Attributes:
        start, end: the place in the hypothesis, in characters; the one at `end` is not part of it,
            so that the text is `hypothesis[start:end]`.
        p: in [0, 1]; the greater it is, the less is supported. A verdict's p is of the opposite.
    """

    start: int
    end: int
    p: float


@dataclass(frozen=True)
class SpanJudge(Judge):
    """A network reads the pair, and marks the tokens of the hypothesis that are not supported.

    A verdict's p, in [0, 1], is the probability that the premise supports the whole hypothesis:

    ```
    p     = sigmoid((l + words * (q - 1/2)) / temperature)
    l     = the least logit of the parts of the hypothesis
    q     = p of the comparison of words (`GroundingJudge`)
    label = p >= threshold; no verdict where |p - threshold| < unsure
    ```

    A small network errs less where evidence is of another kind than it was trained on if words are
    counted, too; `words` is chosen on labelled pairs.

    `span_inputs` says what is read: of long evidence the parts that share most with the hypothesis,
    so evidence in other words far away may be missed. The question is read, too. It can be gamed by
    repeating the evidence.

    Args:
        network: see `Network`.
        reader: makes its inputs.
        source: where the network comes from; it names the judge.
        threshold: the smallest p that counts as support.
        temperature: see `distilled.calibrated`.
        words: what the comparison of words weighs beside the network.
        unsure: how near to the threshold p is where the judge abstains.
        batch_tokens: tokens of a batch, padding included.
    """

    network: Network = field(repr=False, compare=False)
    reader: SpanReader = field(repr=False, compare=False)
    source: str = ""
    threshold: float = 0.5
    temperature: float = 1.0
    words: float = 0.0
    unsure: float = 0.0
    batch_tokens: int = 4096

    needs_model: ClassVar[bool] = True
    reads_queries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        distilled.check(self.threshold, self.temperature)
        distilled.check_span(self.words, self.unsure)

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        """The judge in a directory: `model.onnx`, `tokenizer.json` and `judge.json`, whose settings
        stand where `settings` leave them open.

        Raises `ConfigError` without onnxruntime, where files are missing, and for a `judge.json`
        that cannot be read or is of another kind; `WeightsError`, which is one, where the network
        or the tokenizer is damaged, or they do not belong together.
        """
        with needs("the judge 'span' runs a network here and", "judge"):
            import onnxruntime  # noqa: F401
            import tokenizers  # noqa: F401
        folder = Path(str(model))
        _check_files(folder)
        file = distilled.read_file(folder / distilled.FILE, "span")
        network = _Session.open(folder / NETWORK)
        reader = _reader(folder / TOKENIZER, file)
        with _opening(f"{folder / NETWORK} with the tokens of {TOKENIZER} beside it"):
            _check_fit(network, reader)
        knobs = {
            "temperature": file.temperature,
            "threshold": file.threshold,
            "words": file.words,
            "unsure": file.unsure,
        }
        return cls(network, reader, str(model), **(knobs | settings))

    @property
    def weights(self) -> Weights:
        return Weights(self.source)

    @property
    def name(self) -> str:
        return f"span:{self.source}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        readings_of_pairs = [self.reader.readings(pair) for pair in pairs]
        outputs = iter(self._outputs(list(chain.from_iterable(readings_of_pairs))))
        verdicts = []
        for pair, readings in zip(pairs, readings_of_pairs, strict=True):
            outputs_of_pair = list(islice(outputs, len(readings)))
            verdicts.append(self._verdict(pair, readings, outputs_of_pair))
        return verdicts

    def spans(self, pair: Pair) -> list[MarkedSpan]:
        """The tokens of the hypothesis in order, each with the probability that the evidence does
        not support it; none of a hypothesis that is blank. Tokens do not overlap, and blanks
        between them are part of none.

        Example:
            ```python
            pair = Pair("The tower stands in Paris.", "The tower stands in Lyon.")
            words = [pair.hypothesis[start:end] for start, end, p in judge.spans(pair) if p > 0.5]
            ```
        """
        readings = self.reader.readings(pair)
        marked: list[MarkedSpan] = []
        for reading, (_, tokens) in zip(readings, self._outputs(readings), strict=True):
            marked += _marked(reading, tokens)
        return marked

    def _verdict(
        self,
        pair: Pair,
        readings: Sequence[SpanInput],
        outputs: Sequence[tuple[float, "NDArray[Any]"]],
    ) -> Verdict:
        if not readings:
            return Verdict(0.0, False, "there is nothing to judge", self.name)
        logits = [logit for logit, _ in outputs]
        worst = logits.index(min(logits))  # the part of the hypothesis that is least supported
        p = _sigmoid(logits[worst])
        if self.words:
            p = with_words(p, counted_p(pair), self.words)
        p = distilled.calibrated(p, self.temperature)
        if abs(p - self.threshold) < self.unsure:
            return Verdict(None, None, f"it cannot tell: p = {p:.3f}", self.name)
        why = f"p = {p:.3f}"
        if p < self.threshold:
            _, token_logits = outputs[worst]
            words = _worst(pair.hypothesis, _marked(readings[worst], token_logits))
            if words:
                why += f"; least supported: {words!r}"
        return Verdict(p, p >= self.threshold, why, self.name)

    def _outputs(self, readings: Sequence[SpanInput]) -> list[tuple[float, "NDArray[Any]"]]:
        """Of each reading the logit that its part of the hypothesis is supported, and for each
        token of the part the logit that it is not.
        """
        shortest_first = sorted(range(len(readings)), key=lambda place: len(readings[place].ids))
        outputs: dict[int, tuple[float, NDArray[Any]]] = {}
        start = 0
        while start < len(shortest_first):
            # One reading at least, and further ones as long as the padded batch is not too large.
            end = start + 1
            while end < len(shortest_first):
                longest = len(readings[shortest_first[end]].ids)
                if longest * (end + 1 - start) > self.batch_tokens:
                    break
                end += 1
            batch = shortest_first[start:end]
            logits, token_logits = self.network(arrays([readings[place] for place in batch]))
            for row, place in enumerate(batch):
                first, last = readings[place].claim
                outputs[place] = float(logits[row]), token_logits[row, first:last]
            start = end
        return [outputs[place] for place in range(len(readings))]


def counted_p(pair: Pair) -> float:
    """The p of the comparison of words, which abstains from no pair.

    Example:
        >>> counted_p(Pair("The tower stands in Paris.", "It is in Lyon."))
        0.0
    """
    verdict = _COUNTING.judge_batch([pair])[0]
    assert verdict.p is not None
    return verdict.p


def with_words(network: float, counted: float, words: float) -> float:
    """The network's p beside that of the comparison of words: sigmoid(logit(network) + words *
    (counted - 1/2)).

    Example:
        >>> with_words(0.5, 0.5, words=4.0), round(with_words(0.5, 1.0, words=4.0), 3)
        (0.5, 0.881)
    """
    edge = min(max(network, _EDGE), 1 - _EDGE)
    return _sigmoid(float(np.log(edge / (1 - edge))) + words * (counted - 0.5))


@dataclass(frozen=True)
class _Session:
    """The network of an ONNX file."""

    session: Any

    @classmethod
    def open(cls, path: Path) -> Self:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _threads()
        with _opening(str(path)):
            return cls(
                onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            )

    def __call__(self, inputs: Arrays) -> tuple["NDArray[Any]", "NDArray[Any]"]:
        logits, token_logits = self.session.run(["logits", "token_logits"], dict(inputs))
        return logits, token_logits


def arrays(readings: Sequence[SpanInput]) -> dict[str, "NDArray[Any]"]:
    """The readings as a batch, padded to the longest at their ends: `input_ids`, `marks`,
    `attention_mask` (1 for each token of the reading) and `claim_mask` (1 for each token of the
    hypothesis), each int64 of the shape (readings, tokens of the longest).

    Example:
        >>> batch = arrays([SpanInput([2, 5, 3], [9, 3, 0], (1, 2), [(0, 2)])])
        >>> batch["input_ids"].tolist(), batch["claim_mask"].tolist()
        ([[2, 5, 3]], [[0, 1, 0]])
    """
    shape = len(readings), max(len(reading.ids) for reading in readings)
    names = ("input_ids", "marks", "attention_mask", "claim_mask")
    batch = {name: np.zeros(shape, dtype=np.int64) for name in names}
    for row, reading in enumerate(readings):
        size = len(reading.ids)
        batch["input_ids"][row, :size] = reading.ids
        batch["marks"][row, :size] = reading.marks
        batch["attention_mask"][row, :size] = 1
        batch["claim_mask"][row, slice(*reading.claim)] = 1
    return batch


def _check_files(folder: Path) -> None:
    """Raise `ConfigError` where a folder lacks a file of a span judge."""
    written = "name a folder that recipes/reward_model.py wrote with `head: spans`, with all files"
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}, and a span judge is one: {written}")
    names = (NETWORK, TOKENIZER, distilled.FILE)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} is no span judge: it lacks {' and '.join(missing)}; {written}")


@contextmanager
def _opening(files: str) -> Iterator[None]:
    """Errors of onnxruntime and tokenizers become a `WeightsError` that names the files."""
    try:
        yield
    except Exception as error:  # they have no class of their own that all of them belong to
        reason = " ".join(str(error).split())
        raise WeightsError(
            f"cannot open {files}: {reason}; copy the judge's whole folder again, or train it again"
        ) from error


def _reader(path: Path, file: distilled.JudgeFile) -> SpanReader:
    """What makes the inputs of a judge, with the tokenizer in a file."""
    from tokenizers import Tokenizer

    sizes = {
        "evidence": file.window,
        "hypothesis": file.hypothesis_window,
        "question": file.question_window,
    }
    with _opening(str(path)):
        return SpanReader(
            Tokenizer.from_file(str(path)),
            **{name: size for name, size in sizes.items() if size is not None},
        )


def _check_fit(network: Network, reader: SpanReader) -> None:
    """Raise an error where the network cannot read what the reader makes: it is another network, or
    has fewer word pieces.
    """
    [reading] = reader.readings(Pair("a", "a"))
    # With the last word piece behind it, which a network of fewer cannot look up.
    last_piece = max(reader.tokenizer.get_vocab(with_added_tokens=False).values())
    reading = reading._replace(ids=[*reading.ids, last_piece], marks=[*reading.marks, 0])
    batch = arrays([reading])
    logits, token_logits = network(batch)
    if logits.shape != (1,) or token_logits.shape != batch["input_ids"].shape:
        raise ValueError(
            f"it gives arrays of the shapes {logits.shape} and {token_logits.shape} instead of "
            f"(1,) and {batch['input_ids'].shape}"
        )
    if not (np.isfinite(logits).all() and np.isfinite(token_logits).all()):
        raise ValueError("it gives logits that are not numbers (NaN or infinite)")


def _threads() -> int:
    """What `OMP_NUM_THREADS` says, which may be a list for nested loops; 0: as many as are there."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _marked(reading: SpanInput, logits: "NDArray[Any]") -> list[MarkedSpan]:
    """The tokens of the reading's hypothesis, with what the network says of each."""
    marked = []
    for (start, end), logit in zip(reading.places, logits, strict=True):
        marked.append(MarkedSpan(start, end, _sigmoid(float(logit))))
    return marked


def _worst(text: str, marked: Sequence[MarkedSpan]) -> str:
    """The words around the token that is the least supported, as far as their tokens are, too."""
    if not marked:
        return ""
    worst = max(range(len(marked)), key=lambda place: marked[place].p)
    least = marked[worst].p / 2
    first = last = worst
    while first > 0 and marked[first - 1].p >= least:
        first -= 1
    while last + 1 < len(marked) and marked[last + 1].p >= least:
        last += 1
    return text[marked[first].start : marked[last].end]


def _sigmoid(logit: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(logit, -700, 700))))
