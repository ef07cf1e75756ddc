"""The judge that is a causal language model: asked in a prompt, it answers 1 or 0, and the
probabilities of both say how sure it is.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from ..dialects.fence import Fence
from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..inference.batching import batches, shared_length
from ..inference.chat import opening_ids, templated
from ..inference.fencing import guarded
from . import distilled, prompting
from .base import LABELS, Judge, Pair, Request, Verdict, Weights, Writer, weights_of

_OPENED_THOUGHT = re.compile(r"<think>\s*\Z")
_CUT = "\n[…]\n"  # in the place of what was left out of a premise
_LONGEST_TOKEN = 16  # characters; no text has longer tokens on average
_TAIL = 64  # characters at a text's end that decide how a tokenizer splits it there


@dataclass(frozen=True)
class GeneratorJudge(Judge, Writer):
    """Supports a hypothesis if a causal LM answers 1 to a prompt about the pair.

    ```
    p     = p("1") / (p("1") + p("0"))      by the next token after the prompt
    label = p ≥ threshold
    ```

    Any causal LM judges through a `Generator`: a local model, the policy itself, a judge distilled
    from a larger one (VERITAS §5). A pair costs one forward pass over its prompt. Nothing is
    sampled.

    The prompt goes through the tokenizer's chat template, without a thought if the template can
    leave it out. Without a template it is plain text that ends in `Answer:`. Control tokens that
    are spelled out in the pair are escaped. Of a prompt longer than `window` the middle of the
    premise is left out, and the verdict's `why` says so. If it is still too long, the judge
    abstains.

    A half-precision model rounds its logits, so that p takes few values: give `dtype="float32"`
    where p itself matters. The judge can be gamed by text that talks to it ("the answer is 1").

    Args:
        generator: the model.
        source: the Hub id or directory of the model, which names the judge.
        threshold: the smallest p that counts as support.
        window: maximum number of tokens of a prompt.
        batch_tokens: maximum number of tokens of a batch, padding included.
        max_new_tokens: maximum number of tokens of a text that `write_batch` returns.
        temperature: see `distilled.calibrated`.
        prompts: as of `EndpointJudge`.
    """

    generator: Generator = field(repr=False, compare=False)
    source: str = ""
    threshold: float = 0.5
    window: int = 4096
    batch_tokens: int = 16384
    max_new_tokens: int = 512
    temperature: float = 1.0
    prompts: str = prompting.OURS

    needs_model: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("trust_remote_code", "prompts")

    def __post_init__(self) -> None:
        distilled.check(self.threshold, self.temperature, self.window)

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        **knobs: Any,
    ) -> Self:
        """The judge with the model of a Hub id or a directory, which may be a PEFT adapter. The
        `judge.json` of a distilled model sets what `knobs` leave open.

        `knobs` are the judge's other fields, and `device` and `dtype` as of
        `inference.loading.open_model`. By default `window` is the number of tokens that the model
        takes. Raises `ConfigError` when the model cannot be opened, or was distilled as a judge of
        another kind.
        """
        from ..inference.loading import max_tokens, open_generator

        knobs = distilled.settings(model, "generator", revision) | knobs
        placing = {name: knobs.pop(name, None) for name in ("device", "dtype")}
        generator = open_generator(
            model, revision=revision, trust_remote_code=trust_remote_code, **placing
        )
        fits = max_tokens(generator.model, generator.tokenizer) or cls.window
        return cls(generator, model, **{"window": fits, **knobs})

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        return cls.from_pretrained(str(model), **settings)

    @property
    def weights(self) -> Weights:
        return weights_of(self.source, getattr(self.generator, "model", None))

    @property
    def writing(self) -> Mapping[str, Any]:
        return {
            "source": self.source,
            "window": self.window,
            "max_new_tokens": self.max_new_tokens,
        }

    @property
    def name(self) -> str:
        return f"generator:{self.source or self.generator.tokenizer.name_or_path or 'model'}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        prompts = [self.asked(pair) for pair in pairs]
        rows_that_fit = [row for row, prompt in enumerate(prompts) if prompt.ids]
        lengths = [len(prompts[row].ids) for row in rows_that_fit]
        probs_by_row: dict[int, list[float]] = {}
        for batch in batches(lengths, self.batch_tokens):
            rows = [rows_that_fit[place] for place in batch]
            ids = [prompts[row].ids for row in rows]
            choices = [prompts[row].choices for row in rows]
            probs_of_batch = self.generator.choice_probs(ids, choices)
            probs_by_row.update(zip(rows, probs_of_batch, strict=True))
        verdicts = []
        for row, (pair, prompt) in enumerate(zip(pairs, prompts, strict=True)):
            verdicts.append(self._verdict(pair, prompt.note, probs_by_row.get(row)))
        return verdicts

    def _verdict(self, pair: Pair, note: str, probs: Sequence[float] | None) -> Verdict:
        """The verdict by the probabilities of the labels 1 and 0; it abstains without them, and
        `note` says why.
        """
        prompt = prompting.load(prompting.named(pair.task, self.prompts))
        judge = f"{self.name} {prompt.id}"
        if probs is None:
            return Verdict(None, None, note, judge)
        yes, no = probs
        if not 0 < yes + no < float("inf"):
            why = f"the model gave the labels the probabilities {yes} and {no}"
            return Verdict(None, None, why, judge)
        p = distilled.calibrated(yes / (yes + no), self.temperature)
        why = f"p(1) = {yes:.3g}, p(0) = {no:.3g}{note}"
        return Verdict(p, p >= self.threshold, why, judge)

    def asked(self, pair: Pair) -> "LabelPrompt":
        """The prompt about a pair, and the first token in which the two labels differ. The prompt
        ends before this token.
        """
        fields = self._fenced(prompting.fields_of(pair))
        premise = fields["premise"]
        prompt_name = prompting.named(pair.task, self.prompts)

        def shortened(chars: int) -> LabelPrompt:
            """The prompt with `chars` characters of the premise, half of them from its end."""
            in_tail = chars // 2
            head = premise[: chars - in_tail]
            tail = premise[len(premise) - in_tail :]
            return self._read(prompt_name, {**fields, "premise": f"{head}{_CUT}{tail}"})

        def length(chars: int) -> int:
            return len(shortened(chars).ids)

        # A longer premise cannot fit, and would take long to tokenize
        longest = self.window * _LONGEST_TOKEN
        if len(premise) <= longest:
            prompt = self._read(prompt_name, fields)
            if len(prompt.ids) <= self.window:
                return prompt
        # The most characters of the premise that fit; -1 if the prompt is too long without it
        most = min(len(premise), longest)
        chars = bisect_right(range(most), self.window, key=length) - 1
        while chars >= 0 and length(chars) > self.window:
            chars -= 1 + chars // 50  # more characters do not always take more tokens
        if chars < 0:
            note = f"the prompt is longer than {self.window} tokens even without its premise"
            return LabelPrompt(ids=[], choices=[], note=note)
        left_out = f"{chars} of {len(premise)} characters were read"
        note = f"; the middle of the premise was left out: {left_out}"
        return shortened(chars)._replace(note=note)

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        """The model's text for each request, by greedy decoding. `None` where it is empty or cut
        off, or the prompt is too long.
        """
        longest_prompt = self.window - self.max_new_tokens
        prompts: dict[int, list[int]] = {}  # by the row of the request, those that fit
        for row, request in enumerate(requests):
            text = self._text(request.prompt, self._fenced(request.fields))
            ids = self._encode(text)
            if len(ids) <= longest_prompt:
                prompts[row] = ids
        sampling = Sampling(temperature=0.0, max_new_tokens=self.max_new_tokens)
        completions = self.generator.generate(list(prompts.values()), sampling)
        texts: list[str | None] = [None] * len(requests)
        for row, completion in zip(prompts, completions, strict=True):
            if completion.finish != "length":
                text = self.generator.tokenizer.decode(completion.ids, skip_special_tokens=True)
                texts[row] = text.strip() or None
        return texts

    def _fenced(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The texts without anything that the tokenizer reads as a control token."""
        return {name: self._fence.escape(text) for name, text in texts.items()}

    def _read(self, task: str, fields: Mapping[str, str]) -> "LabelPrompt":
        """The prompt filled with these fields, and the tokens of the labels. Raises `ConfigError`
        if the labels have the same tokens.
        """
        text = self._text(task, fields)
        tail = text[-_TAIL:]
        ids = self._encode(text)
        tail_ids = self._encode(tail)
        # Each label is encoded after the prompt's end, since it may merge with the last token
        yes, no = (self._encode(tail + self._lead + label) for label in LABELS)
        shared = shared_length(yes, no)
        if shared == min(len(yes), len(no)):
            raise ConfigError(
                f"the tokenizer of {self.name} does not tell the labels {' and '.join(LABELS)} "
                "apart"
            )
        # The prompt's tokens as far as no label merges with them, then those that both labels share
        unmerged = min(shared, shared_length(tail_ids, yes))
        before_tail = len(ids) - len(tail_ids)
        prompt_ids = ids[: before_tail + unmerged] + yes[unmerged:shared]
        return LabelPrompt(prompt_ids, [[yes[shared]], [no[shared]]])

    def _text(self, prompt: str, fields: Mapping[str, str]) -> str:
        """The text of a prompt up to where the model writes."""
        messages = prompting.load(prompt).fill(fields)
        if not self.generator.tokenizer.chat_template:
            return "\n\n".join(message["content"] for message in messages) + "\n\nAnswer:"
        text = self._templated(messages)
        # A thought that the template opened is closed, so that the label is the next token
        return f"{text}\n</think>\n\n" if _OPENED_THOUGHT.search(text) else text

    def _templated(self, messages: prompting.Messages, **kwargs: Any) -> str:
        return templated(
            self.generator.tokenizer,
            messages,
            "the judge's prompt",
            enable_thinking=False,
            **kwargs,
        )

    def _encode(self, text: str) -> list[int]:
        tokenizer = self.generator.tokenizer
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids if tokenizer.chat_template else [*opening_ids(tokenizer), *ids]

    @cached_property
    def _fence(self) -> Fence:
        return guarded(Fence(""), self.generator.tokenizer)

    @cached_property
    def _lead(self) -> str:
        """The blanks between the prompt and the label, as the template writes them before the text
        of an assistant.
        """
        if not self.generator.tokenizer.chat_template:
            return " "
        prompt = [{"role": "user", "content": "?"}]
        dialog = [*prompt, {"role": "assistant", "content": LABELS[0]}]
        with_reply = self._templated(dialog, add_generation_prompt=False)
        reply = with_reply.removeprefix(self._templated(prompt))
        label = reply.lstrip()
        if not label.startswith(LABELS[0]):
            return ""
        return reply[: len(reply) - len(label)]


class LabelPrompt(NamedTuple):
    """A prompt, and for each label the tokens that follow it. `note` says what was left out of the
    premise, or why there is no prompt.
    """

    ids: list[int]
    choices: list[list[int]]
    note: str = ""
