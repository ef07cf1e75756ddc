"""The judge Granite Guardian (IBM 2025): is an answer grounded in a document?"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ..dialects.fence import Fence
from ..errors import ConfigError
from ..inference.base import Sampling
from ..inference.batching import batches
from ..inference.chat import templated
from ..inference.fencing import guarded
from ..inference.loading import open_generator
from ..inference.transformers import TransformersGenerator
from ..text import shortened
from .control_tokens import GENERAL
from .presets import PRESETS, Preset
from .windowed import Input, WindowedJudge, WindowReading, architecture_of, as_rows

_CRITERION = "groundedness"
_SCORE = "<score>"
_OPENING = 32  # the most tokens that the model writes before its score


@dataclass(frozen=True)
class GraniteJudge(WindowedJudge):
    """p = max over windows of the evidence of p(no) / (p(yes) + p(no)), by Granite Guardian.

    The model is asked through its own chat template whether the criterion `groundedness`, which
    means a lack of it, is met by an assistant's message beside a document, without a thought. It
    writes up to `<score>`; yes and no are the words after that, and yes says *not* grounded. Where
    it writes no score, the judge abstains. Control tokens and tags in the texts are escaped.

    A half-precision model rounds its logits, so that p takes few values: give `dtype="float32"`
    where p itself matters. It is made for answers, not for thoughts, and does not read the
    question. It can be gamed by repeating the evidence.

    Args:
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`; the window bounds the memory.
    """

    window: int = 8192
    batch_tokens: int = 16384

    kind: ClassVar[str] = "granite"
    probability_of: ClassVar[str] = "grounded"
    spare: ClassVar[int] = _OPENING
    preset: ClassVar[Preset | None] = PRESETS["granite"]

    def __post_init__(self) -> None:
        super().__post_init__()
        text = self._asked("⟪document⟫", "⟪answer⟫", _CRITERION)
        shown = "⟪document⟫" in text and "⟪answer⟫" in text
        if not shown or text == self._asked("⟪document⟫", "⟪answer⟫", "harm"):
            raise ConfigError(
                f"the chat template of {self.name} does not write `documents` and the criterion in "
                "`guardian_config` into its prompt; take a Granite Guardian 3.3"
            )

    @classmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        architecture = architecture_of(model, **loading)
        if architecture.family != "causal LM":
            raise ConfigError(
                f"{model!r} is no causal LM (its architecture: {architecture.classes})"
            )
        generator = open_generator(model, **loading)
        return generator.model, generator.tokenizer

    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        texts = [self._asked(each.premise, each.hypothesis, _CRITERION) for each in inputs]
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)
        return as_rows(encoded["input_ids"])

    def read(self, inputs: Sequence[Input]) -> list[WindowReading]:
        prompts = [row["input_ids"] for row in self.encode(inputs)]
        readings = [WindowReading(None, "the prompt is longer than the model takes")] * len(prompts)
        fit = []
        for number, prompt in enumerate(prompts):
            if self.limit is None or len(prompt) + _OPENING <= self.limit:
                fit.append(number)
        lengths = [len(prompts[number]) + _OPENING for number in fit]
        for batch in batches(lengths, self.batch_tokens):
            numbers = [fit[place] for place in batch]
            scores = self._scores([prompts[number] for number in numbers])
            for number, reading in zip(numbers, scores, strict=True):
                readings[number] = reading
        return readings

    def _scores(self, prompts: Sequence[list[int]]) -> list[WindowReading]:
        """p of each prompt's answer, by the words that may follow the opening of its score."""
        sampling = Sampling(temperature=0.0, max_new_tokens=_OPENING, stop=(_SCORE,))
        completions = self._generator.generate(prompts, sampling)
        contexts = []
        readings = [WindowReading(None)] * len(prompts)
        scored = []
        for number, completion in enumerate(completions):
            written = self.tokenizer.decode(completion.ids)
            if written.endswith(_SCORE):
                scored.append(number)
                contexts.append([*prompts[number], *completion.ids])
            else:
                readings[number] = WindowReading(
                    None, f"the model wrote no score: {shortened(written, 80)!r}"
                )
        yes, no = (self._spellings(word) for word in ("yes", "no"))
        probabilities = self._generator.choice_probs(contexts, [[*yes, *no]] * len(contexts))
        for number, each in zip(scored, probabilities, strict=True):
            ungrounded, grounded = sum(each[: len(yes)]), sum(each[len(yes) :])
            total = ungrounded + grounded
            if 0 < total < float("inf"):
                readings[number] = WindowReading(grounded / total)
            else:
                readings[number] = WindowReading(None, f"p(yes) + p(no) = {total}")
        return readings

    def _spellings(self, word: str) -> list[list[int]]:
        """The tokens of a word, with and without a blank before it, where these differ."""
        encoded = (
            tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            for text in (f" {word}", word)
        )
        return [list(ids) for ids in dict.fromkeys(encoded)]

    def _asked(self, document: str, answer: str, criterion: str) -> str:
        return templated(
            self.tokenizer,
            [{"role": "assistant", "content": answer}],
            "an assistant's message beside a document",
            documents=[{"doc_id": "0", "text": document}],
            guardian_config={"criteria_id": criterion},
            think=False,
        )

    @cached_property
    def _generator(self) -> TransformersGenerator:
        return TransformersGenerator(self.model, self.tokenizer)

    @cached_property
    def fence(self) -> Fence | None:
        """The prompt is one text, whose control tokens are read: those of the pair are escaped."""
        return guarded(GENERAL, self.tokenizer)
