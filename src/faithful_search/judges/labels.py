"""What an endpoint is asked for (a label, several, a text), as strictly as it allows, and how its reply is read."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ..wire.llm import Reply, Unanswered, Unreadable
from .prompting import Messages

_CHARACTERS, _TEMPLATE = (
    4,
    12,
)  # about how many characters a token of English has, and tokens that a template adds
_SHORT, _CLAIMS = (
    16,
    96,
)  # the most tokens for a label without reasoning, and about those of a written text
_LABEL = re.compile(r"""[\s"'`*]*([01])[\s"'`*.]*""")
_JSON_LABEL = re.compile(r'(?:```(?:json)?)?\s*\{\s*"label"\s*:\s*"?([01])"?\s*\}\s*(?:```)?')
_LINE = re.compile(r"([0-9]{1,3})\s*:\s*([01])")


class Question(msgspec.Struct, frozen=True):
    """One request for a label; with `writes` for a text, with `members` for the labels of these questions at once."""

    key: str
    messages: Messages
    body: dict[str, Any]
    writes: bool = False
    members: "tuple[Question, ...]" = ()

    @property
    def one_label(self) -> bool:
        """Whether log-probs and constrained output make sense."""
        return not (self.writes or self.members)

    @property
    def tokens(self) -> tuple[int, int]:
        """About how many tokens prompt and answer take; a model given more than a label needs may use them all."""
        prompt = (
            sum(len(message["content"]) for message in self.messages) // _CHARACTERS + _TEMPLATE
        )
        most = self.body.get("max_tokens") or _CLAIMS
        if self.writes:
            return prompt, min(most, _CLAIMS)
        return prompt, 4 * len(self.members) or (2 if most <= _SHORT else most)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A label with its p, a text, or the labels of a group's members; this is what the cache holds.

    `together` marks the label of a question that was asked within a group. `missing` says why there is no answer.
    """

    p: float | None = None
    label: bool | None = None
    text: str | None = None
    labels: tuple[bool, ...] | None = None
    together: bool = False
    missing: str = ""


def read(question: Question, reply: Reply) -> Answer:
    """What a reply says. Raises `Unreadable` when it is not what was asked for."""
    said = after_thought(reply.text)
    if question.writes:
        wanted, found = "empty or incomplete", Answer(text=said) if said and not reply.cut else None
    elif question.members:
        labels = labels_of(said, len(question.members))
        wanted, found = (
            "not one label for each claim",
            None if labels is None else Answer(labels=labels),
        )
    else:
        label = label_of(reply)
        wanted, found = "neither 1 nor 0", None if label is None else Answer(*label)
    if found is None:
        cut = (
            ", cut off at max_tokens: more are needed where a model reasons first"
            if reply.cut
            else ""
        )
        raise Unreadable(f"the reply is {wanted}: {' '.join(reply.text.split())[:80]!r}{cut}")
    return found


def label_of(reply: Reply) -> tuple[float, bool] | None:
    """p(1) and the label, p = p₁ / (p₁ + p₀) at the label's token where log-probs are given, else 1 or 0; `None` when
    the reply is not one label (or `{"label": 1}`) and nothing else."""
    text = after_thought(reply.text)
    found = _LABEL.fullmatch(text) or _JSON_LABEL.fullmatch(text)
    if found is None:
        return None
    # the last token that reads as the label: a thought before it may hold digits too
    top = next((top for token, top in reversed(reply.tokens) if token.strip() == found[1]), {})
    one, zero = (
        sum(math.exp(logprob) for token, logprob in top.items() if token.strip() == own)
        for own in "10"
    )
    p = one / (one + zero) if one + zero > 0 else float(found[1])
    return p, p >= 0.5


def labels_of(text: str, count: int) -> tuple[bool, ...] | None:
    """The labels of `count` claims; `None` when the text is not one line for each (`2: 0`) and nothing else."""
    lines = [_LINE.fullmatch(line.strip()) for line in text.splitlines() if line.strip()]
    said = {int(line[1]): line[2] == "1" for line in lines if line}
    if len(lines) != count or None in lines or set(said) != set(range(1, count + 1)):
        return None
    return tuple(said[number] for number in range(1, count + 1))


def after_thought(text: str) -> str:
    """What follows a reasoning model's thought; nothing while the thought is not closed."""
    # many chat templates open the thought themselves, so that only its end is in the reply
    said = text.rpartition("</think>")[2].strip()
    return "" if said.startswith("<think>") else said


# vLLM; vLLM before 0.11; llama.cpp; SGLang. Each takes its own and ignores the others.
_CHOICE: Mapping[str, Any] = {
    "structured_outputs": {"choice": ["0", "1"]},
    "guided_choice": ["0", "1"],
    "grammar": 'root ::= "0" | "1"',
    "regex": "[01]",
}
_LOGPROB_WORDS = ("logprob", "log_prob", "logits_all")
_CHOICE_WORDS = ("structured_output", "guided", "grammar", "regex")
_AMOUNT = re.compile("top_logprobs|greater|less|most|max|exceed|between")
_TOO_LONG = re.compile(r"context|too (?:long|large|many)|maximum|exceed")


class Form(NamedTuple):
    """One way to ask for a label: how many log-probs at each token, and whether only the two labels may be replied."""

    top_logprobs: int = 0
    choice: bool = False

    @property
    def body(self) -> dict[str, Any]:
        logprobs = (
            {"logprobs": True, "top_logprobs": self.top_logprobs} if self.top_logprobs else {}
        )
        return logprobs | (dict(_CHOICE) if self.choice else {})

    def refused(self, error: Unanswered) -> bool:
        """Whether the error is about this form, and not about the request's length or the server's health."""
        said = str(error).lower()
        words = (*_LOGPROB_WORDS * bool(self.top_logprobs), *_CHOICE_WORDS * self.choice)
        named = any(word in said for word in words)
        if error.status in (400, 422, 501):
            return bool(words) and (named or not _TOO_LONG.search(said))
        return error.status == 500 and named

    def without(self, error: Unanswered) -> "Form":
        """What is left of this form for a server that has refused it."""
        said = str(error).lower()
        if self.top_logprobs and any(word in said for word in _LOGPROB_WORDS):
            # some servers refuse more than 5
            return self._replace(
                top_logprobs=5 if self.top_logprobs > 5 and _AMOUNT.search(said) else 0
            )
        return self._replace(choice=False) if self.choice else Form()


RICHEST = Form(20, True)


@dataclass
class Ladder:
    """The richest form that the server has not refused; `settled` says that it has answered it, so that it stays."""

    current: Form = RICHEST
    settled: bool = False

    def step_down(self, form: Form, error: Unanswered) -> bool:
        """Whether to ask again because `form` was refused and another one is to be tried."""
        if form != self.current:
            return True  # a concurrent question was refused first and has stepped down already
        if self.settled or not form.refused(error):
            return False
        self.current = form.without(error)
        return True
