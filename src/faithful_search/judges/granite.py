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
_OPENING = 32  # the largest number of tokens that the model writes before its score


@dataclass(frozen=True)
class GraniteJudge(WindowedJudge):
    """Supports a hypothesis if Granite Guardian finds it grounded in the evidence.

    ```
    p = max over windows of the evidence of p(no) / (p(yes) + p(no))
    ```

    The model's own chat template shows it a document (the evidence) and an assistant's message (the
    hypothesis), and asks whether the message violates the criterion `groundedness`. So yes means
    *not* grounded. The model writes up to `<score>`, without a thought; p is read off the
    probabilities of yes and no after that. If it writes no score, the judge abstains. Control
    tokens and tags in the texts are escaped.

    A half-precision model rounds its logits, so that p takes few values: give `dtype="float32"`
    where p itself matters. The model is made for answers, not for thoughts, and does not read the
    question. The judge can be gamed by repeating the evidence.

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
        text = self._prompt("⟪document⟫", "⟪answer⟫", _CRITERION)
        shows_texts = "⟪document⟫" in text and "⟪answer⟫" in text
        names_criterion = text != self._prompt("⟪document⟫", "⟪answer⟫", "harm")
        if not shows_texts or not names_criterion:
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
        texts = [self._prompt(pair.premise, pair.hypothesis, _CRITERION) for pair in inputs]
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)
        return as_rows(encoded["input_ids"])

    def read(self, inputs: Sequence[Input]) -> list[WindowReading]:
        prompts = [row["input_ids"] for row in self.encode(inputs)]
        readings = [WindowReading(None, "the prompt is longer than the model takes")] * len(prompts)
        fitting = []
        for number, prompt in enumerate(prompts):
            if self.limit is None or len(prompt) + _OPENING <= self.limit:
                fitting.append(number)
        lengths = [len(prompts[number]) + _OPENING for number in fitting]
        for batch in batches(lengths, self.batch_tokens):
            numbers = [fitting[place] for place in batch]
            scores = self._scores([prompts[number] for number in numbers])
            for number, reading in zip(numbers, scores, strict=True):
                readings[number] = reading
        return readings

    def _scores(self, prompts: Sequence[list[int]]) -> list[WindowReading]:
        """p of each prompt, by the probabilities of yes and no after `<score>`."""
        sampling = Sampling(temperature=0.0, max_new_tokens=_OPENING, stop=(_SCORE,))
        completions = self._generator.generate(prompts, sampling)
        contexts = []
        readings = [WindowReading(None)] * len(prompts)
        scored = []  # the numbers of the prompts after which the model writes a score
        for number, completion in enumerate(completions):
            opening = self.tokenizer.decode(completion.ids)
            if opening.endswith(_SCORE):
                scored.append(number)
                contexts.append([*prompts[number], *completion.ids])
            else:
                readings[number] = WindowReading(
                    None, f"the model wrote no score: {shortened(opening, 80)!r}"
                )
        yes = self._spellings("yes")
        no = self._spellings("no")
        probabilities = self._generator.choice_probs(contexts, [[*yes, *no]] * len(contexts))
        for number, of_spellings in zip(scored, probabilities, strict=True):
            ungrounded = sum(of_spellings[: len(yes)])
            grounded = sum(of_spellings[len(yes) :])
            total = ungrounded + grounded
            if 0 < total < float("inf"):
                readings[number] = WindowReading(grounded / total)
            else:
                readings[number] = WindowReading(None, f"p(yes) + p(no) = {total}")
        return readings

    def _spellings(self, word: str) -> list[list[int]]:
        """The tokens of a word with a blank before it, and without one if they differ."""
        spellings: list[list[int]] = []
        for text in (f" {word}", word):
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if ids not in spellings:
                spellings.append(ids)
        return spellings

    def _prompt(self, document: str, answer: str, criterion: str) -> str:
        """The text of the prompt about an answer and a document."""
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
