"""The judge LettuceDetect (Kovács and Recski 2025): which words of an answer are not supported?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from transformers import AutoModelForTokenClassification

from ..errors import ConfigError
from ..inference.loading import open_model
from ..text import shortened
from .presets import PRESETS, Preset
from .windowed import PLAIN, Input, WindowedJudge, WindowReading, architecture_of, as_rows

_ASKED = (
    "Briefly answer the following question:\n{question}\nBear in mind that your response should be "
    "strictly based on the following 1 passages:\npassage 1: {premise}\nIn case the passages do "
    "not contain the necessary information to answer the question, please reply with: "
    '"Unable to answer based on given passages."\noutput:'
)
_NOT_ASKED = "Summarize the following text:\npassage 1: {premise}\noutput:"
_UNSUPPORTED = 0.5  # from which p on a token is marked
_MOST_SPANS, _MOST_CHARACTERS = 3, 60


class Span(NamedTuple):
    """Characters (start, end) of a hypothesis that are not supported, and the greatest p of it."""

    start: int
    end: int
    p: float


@dataclass(frozen=True)
class LettuceJudge(WindowedJudge):
    """p = max over windows of the evidence of 1 - max over tokens of the hypothesis of
    p(unsupported | window, question, hypothesis), by LettuceDetect.

    A token classifier reads a prompt with the window and the question, if there is one, and after
    it the hypothesis; p(unsupported) of a token is the softmax of the second label. `why` quotes
    the words that are not supported, which are runs of tokens whose p is at least 0.5.

    Where evidence is longer than a window, the authors take each token's worst window; here the
    best window counts as for other judges, since a claim needs one place that states it.

    It is made for answers, not for thoughts. It can be gamed by repeating the evidence.

    Args:
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`.
    """

    window: int = 4096
    longest: int | None = 4096

    kind: ClassVar[str] = "lettuce"
    spare: ClassVar[int] = 8
    reads_question: ClassVar[bool] = True
    preset: ClassVar[Preset | None] = PRESETS["lettuce"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.config.num_labels != 2:
            raise ConfigError(
                f"{self.name} has {self.model.config.num_labels} labels for tokens; LettuceDetect "
                "has two, supported and unsupported"
            )

    @classmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        architecture = architecture_of(model, **loading)
        if architecture.family != "token classifier":
            raise ConfigError(
                f"{model!r} classifies no tokens (its architecture: {architecture.classes})"
            )
        return open_model(AutoModelForTokenClassification, model, **loading)

    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        return as_rows(self._encoded(inputs)["input_ids"])

    def read(self, inputs: Sequence[Input]) -> list[WindowReading]:
        encoded = self._encoded(inputs)
        readings = [WindowReading(None)] * len(inputs)
        for numbers, batch in self.padded(as_rows(encoded["input_ids"])):
            with torch.inference_mode():
                unsupported = self.model(**batch).logits.float().softmax(-1)[..., 1].cpu()
            for row, number in enumerate(numbers):
                length = len(encoded["input_ids"][number])
                padded_left = self.tokenizer.padding_side == "left"
                probabilities = unsupported[row][-length:] if padded_left else unsupported[row]
                tokens = []
                for place, part in enumerate(encoded.sequence_ids(number)):
                    if part == 1:  # of the second text, without the marks around it
                        start, end = encoded["offset_mapping"][number][place]
                        tokens.append(Span(start, end, float(probabilities[place])))
                readings[number] = _reading(inputs[number].hypothesis, tokens)
        return readings

    def _encoded(self, inputs: Sequence[Input]) -> Any:
        prompts = []
        for each in inputs:
            frame = _ASKED if each.question else _NOT_ASKED
            prompts.append(frame.format(premise=each.premise, question=each.question))
        return self.tokenizer(
            prompts,
            [each.hypothesis for each in inputs],
            truncation="only_first",
            max_length=self.limit,
            return_offsets_mapping=True,
            **PLAIN,
        )


def spans(tokens: Sequence[Span]) -> list[Span]:
    """Runs of neighbouring tokens that are not supported.

    >>> spans([Span(0, 3, 0.1), Span(3, 6, 0.9), Span(6, 9, 0.7), Span(9, 10, 0.2)])
    [Span(start=3, end=9, p=0.9)]
    """
    runs: list[Span] = []
    goes_on = False
    for token in tokens:
        unsupported = token.p >= _UNSUPPORTED
        if unsupported and goes_on:
            runs[-1] = Span(runs[-1].start, token.end, max(runs[-1].p, token.p))
        elif unsupported:
            runs.append(token)
        goes_on = unsupported
    return runs


def _reading(hypothesis: str, tokens: Sequence[Span]) -> WindowReading:
    if not tokens:
        return WindowReading(None, "the tokenizer makes no tokens of the hypothesis")
    quoted = []
    for span in spans(tokens)[:_MOST_SPANS]:
        words = hypothesis[span.start : span.end].strip()
        quoted.append(f'"{shortened(words, _MOST_CHARACTERS)}" ({span.p:.2f})')
    note = f"; not supported: {', '.join(quoted)}" if quoted else ""
    return WindowReading(1 - max(token.p for token in tokens), note)
