"""The judge that is a causal language model: asked in a prompt, it says 1 or 0, and how sure it is of that."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from ..dialects.fence import Fence
from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..inference.batching import batches, shared_length
from ..inference.chat import opening_ids, templated
from ..inference.fencing import guarded
from . import distilled, prompting
from .base import LABELS, Pair, Request, Verdict

_OPENED_THOUGHT = re.compile(r"<think>\s*\Z")
_CUT = "\n[…]\n"
_LONGEST_TOKEN = 16  # characters, on average over a text
_TAIL = 64  # characters in which a tokenizer settles how a text's end is split


@dataclass(frozen=True)
class GeneratorJudge:
    """p = p("1") / (p("1") + p("0")), the next token's probabilities after the prompt; supported when p >= `threshold`.

    Any causal LM judges through a `Generator`: a local model, the policy itself, a judge distilled from a larger one
    (VERITAS §5). A pair costs one forward pass over its prompt and nothing is sampled.

    The question goes through the tokenizer's chat template, without a thought where the template can leave it out; for
    a tokenizer that has none it is plain text that ends in `Answer:`. Control tokens spelled in the pair are escaped. A
    prompt longer than `window` loses the middle of its premise, and the verdict's `why` says so; when even that does
    not help, the judge abstains.

    A half-precision model rounds its logits, so that p takes few values: give `dtype="float32"` where p itself matters.
    It can be gamed by text that talks to the judge ("the answer is 1").

    Args:
        generator: what is asked.
        source: where the model comes from; it names the judge.
        threshold: the smallest p that counts as support.
        window: tokens of the longest prompt.
        batch_tokens: tokens of a batch, padding included.
        max_new_tokens: tokens of the longest text that `write_batch` returns.
        temperature: see `distilled.calibrated`.
    """

    generator: Generator = field(repr=False, compare=False)
    source: str = ""
    threshold: float = 0.5
    window: int = 4096
    batch_tokens: int = 16384
    max_new_tokens: int = 512
    temperature: float = 1.0

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
        """The judge of a Hub id or a directory, that of a PEFT adapter included; a distilled one's `judge.json` sets
        what `knobs` leave open.

        `knobs` are the judge's other fields, and `device` and `dtype` as of `inference.loading.open_model`; `window` is
        by default as many tokens as the model takes. Raises `ConfigError` when it cannot be opened, or was distilled as
        a judge of another kind.
        """
        from ..inference.loading import max_tokens, open_generator

        knobs = distilled.settings(model, "generator", revision) | knobs
        how = {name: knobs.pop(name, None) for name in ("device", "dtype")}
        generator = open_generator(
            model, revision=revision, trust_remote_code=trust_remote_code, **how
        )
        fits = max_tokens(generator.model, generator.tokenizer) or cls.window
        return cls(generator, model, **{"window": fits, **knobs})

    @property
    def name(self) -> str:
        return f"generator:{self.source or self.generator.tokenizer.name_or_path or 'model'}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        asked = [self.asked(pair) for pair in pairs]
        probs: dict[int, list[float]] = {}
        fit = [row for row, one in enumerate(asked) if one.ids]
        for batch in batches([len(asked[row].ids) for row in fit], self.batch_tokens):
            rows = [fit[place] for place in batch]
            found = self.generator.choice_probs(
                [asked[row].ids for row in rows], [asked[row].choices for row in rows]
            )
            probs |= zip(rows, found, strict=True)
        verdicts = []
        for row, pair in enumerate(pairs):
            p, label, why = None, None, asked[row].note
            if row in probs:
                yes, no = probs[row]
                if 0 < yes + no < float("inf"):
                    p = distilled.calibrated(yes / (yes + no), self.temperature)
                    label, why = p >= self.threshold, f"p(1) = {yes:.3g}, p(0) = {no:.3g}{why}"
                else:
                    why = f"the model gave the labels the probabilities {yes} and {no}"
            verdicts.append(Verdict(p, label, why, f"{self.name} {prompting.load(pair.task).id}"))
        return verdicts

    def asked(self, pair: Pair) -> "Asked":
        """The prompt about a pair up to the token that tells the labels apart, and that token for each label."""
        fields = {
            name: self._fence.escape(text) for name, text in prompting.fields_of(pair).items()
        }
        premise = fields["premise"]

        def shortened(kept: int) -> Asked:
            """With the first and the last characters of the premise, `kept` in all."""
            head, tail = premise[: kept - kept // 2], premise[len(premise) - kept // 2 :]
            return self._read(pair.task, {**fields, "premise": f"{head}{_CUT}{tail}"})

        if len(premise) <= self.window * _LONGEST_TOKEN:
            whole = self._read(pair.task, fields)
            if len(whole.ids) <= self.window:
                return whole
        # how many characters of the premise can stay; -1 when the prompt is too long even without it
        most = min(len(premise), self.window * _LONGEST_TOKEN)
        kept = bisect_right(range(most), self.window, key=lambda kept: len(shortened(kept).ids)) - 1
        while (
            kept >= 0 and len(shortened(kept).ids) > self.window
        ):  # a prompt's fences have lengths that vary a little
            kept -= 1 + kept // 50
        if kept < 0:
            return Asked(
                [], [], f"the prompt is longer than {self.window} tokens even without its premise"
            )
        why = f"; the middle of the premise was left out: {kept} of {len(premise)} characters were read"
        return shortened(kept)._replace(note=why)

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        """The most probable text for each request; `None` where it is empty, cut off, or the prompt too long."""
        rows = []
        for request in requests:
            fields = {name: self._fence.escape(text) for name, text in request.fields.items()}
            rows.append(self._encode(self._text(request.prompt, fields)))
        fit = [row for row, ids in enumerate(rows) if len(ids) + self.max_new_tokens <= self.window]
        sampling = Sampling(temperature=0.0, max_new_tokens=self.max_new_tokens)
        texts: list[str | None] = [None] * len(rows)
        for row, written in zip(
            fit, self.generator.generate([rows[row] for row in fit], sampling), strict=True
        ):
            if written.finish != "length":
                text = self.generator.tokenizer.decode(written.ids, skip_special_tokens=True)
                texts[row] = text.strip() or None
        return texts

    def _read(self, task: str, fields: Mapping[str, str]) -> "Asked":
        text = self._text(task, fields)
        ids, tail = self._encode(text), text[-_TAIL:]
        before = self._encode(tail)
        # each label is encoded behind the prompt's end: it may merge with what stands there
        yes, no = (self._encode(tail + self._lead + label) for label in LABELS)
        at = shared_length(yes, no)
        kept = min(at, shared_length(before, yes))
        if at == min(len(yes), len(no)):
            raise ConfigError(
                f"the tokenizer of {self.name} does not tell the labels {' and '.join(LABELS)} apart"
            )
        return Asked(ids[: len(ids) - len(before) + kept] + yes[kept:at], [[yes[at]], [no[at]]])

    def _text(self, prompt: str, fields: Mapping[str, str]) -> str:
        messages = prompting.load(prompt).fill(fields)
        if not self.generator.tokenizer.chat_template:
            return "\n\n".join(message["content"] for message in messages) + "\n\nAnswer:"
        text = self._templated(messages)
        # the label is the next token: a thought that the template opened would stand before it
        return f"{text}\n</think>\n\n" if _OPENED_THOUGHT.search(text) else text

    def _templated(self, messages: prompting.Messages, **how: Any) -> str:
        return templated(
            self.generator.tokenizer, messages, "the judge's prompt", enable_thinking=False, **how
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
        """Blanks between the prompt and the label: those that the template writes before an assistant's text."""
        if not self.generator.tokenizer.chat_template:
            return " "
        asked = [{"role": "user", "content": "?"}]
        said = [*asked, {"role": "assistant", "content": LABELS[0]}]
        rest = self._templated(said, add_generation_prompt=False).removeprefix(
            self._templated(asked)
        )
        return rest[: len(rest) - len(rest.lstrip())] if rest.lstrip().startswith(LABELS[0]) else ""


class Asked(NamedTuple):
    """A prompt and the labels' tokens after it; `note` says what was left out, or why there is no prompt."""

    ids: list[int]
    choices: list[list[int]]
    note: str = ""
