"""Requests to an endpoint for a label, several labels or a text, in the strictest form that it
takes, and the reading of its replies.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ..wire.llm import ChatReply, Unanswered, Unreadable
from .prompting import Messages

# Numbers of tokens, about: of what a chat template adds, of a label, of a line as "12: 1" for one
# question of a group, and of a text that is written
_TEMPLATE_TOKENS = 12
_LABEL_TOKENS = 2
_LINE_TOKENS = 4
_TEXT_TOKENS = 96
_SHORT = 16  # the most tokens of a reply without reasoning
_CHARACTERS = 4  # of a token of English, about
_LABEL = re.compile(r"""\A[\s"'`*]*+([01])[\s"'`*.]*+\Z""")
_JSON_LABEL = re.compile(
    r'\A(?:```(?:json)?+)?+\s*+\{\s*+"label"\s*+:\s*+"?+([01])"?+\s*+\}\s*+(?:```)?+\Z'
)
_LINE = re.compile(r"\A([0-9]{1,3}+)\s*+:\s*+([01])\Z")


class Question(msgspec.Struct, frozen=True):
    """One request: for a label; with `writes` for a text; with `members` for the labels of these
    questions, all at once.

    `key` is its place in the cache, `body` the parameters of the request besides the messages.
    """

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
        """About how many tokens prompt and answer take."""
        characters = sum(len(message["content"]) for message in self.messages)
        prompt = characters // _CHARACTERS + _TEMPLATE_TOKENS
        most = self.body.get("max_tokens") or _TEXT_TOKENS
        if self.writes:
            return prompt, min(most, _TEXT_TOKENS)
        if self.members:
            return prompt, _LINE_TOKENS * len(self.members)
        if most <= _SHORT:
            return prompt, _LABEL_TOKENS
        return prompt, most  # a model that may write more than a label needs may reason


class JudgeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A label with its p, a text, or the labels of a group's members; this is what the cache holds.

    `together` marks the label of a question that was asked within a group. `missing` says why there
    is no answer.
    """

    p: float | None = None
    label: bool | None = None
    text: str | None = None
    labels: tuple[bool, ...] | None = None
    together: bool = False
    missing: str = ""


def read(question: Question, reply: ChatReply) -> JudgeAnswer:
    """What a reply says. Raises `Unreadable` when it is not what was asked for."""
    text = after_thought(reply.text)
    if question.writes:
        if not text or reply.cut:
            raise _unreadable(reply, "empty or incomplete")
        return JudgeAnswer(text=text)
    if question.members:
        labels = labels_of(text, len(question.members))
        if labels is None:
            raise _unreadable(reply, "not one label for each claim")
        return JudgeAnswer(labels=labels)
    judged = label_of(reply)
    if judged is None:
        raise _unreadable(reply, "neither 1 nor 0")
    p, label = judged
    return JudgeAnswer(p, label)


def _unreadable(reply: ChatReply, why: str) -> Unreadable:
    beginning = " ".join(reply.text.split())[:80]
    message = f"the reply is {why}: {beginning!r}"
    if reply.cut:
        message += ", cut off at max_tokens: a model that reasons first needs more"
    return Unreadable(message)


def label_of(reply: ChatReply) -> tuple[float, bool] | None:
    """p(1) and the label, p = p₁ / (p₁ + p₀) at the label's token where log-probs are given, else 1
    or 0; `None` when the reply is not one label (or `{"label": 1}`) and nothing else.
    """
    text = after_thought(reply.text)
    match = _LABEL.match(text) or _JSON_LABEL.match(text)
    if match is None:
        return None
    label = match[1]
    # the last token that reads as the label: a thought before it may hold digits too
    top = next((top for token, top in reversed(reply.tokens) if token.strip() == label), {})
    supported = _probability("1", top)
    unsupported = _probability("0", top)
    total = supported + unsupported
    p = supported / total if total > 0 else float(label)
    return p, p >= 0.5


def _probability(label: str, logprobs: Mapping[str, float]) -> float:
    """The probability of a label, which tokenizers write with and without a blank."""
    return sum(math.exp(logprob) for token, logprob in logprobs.items() if token.strip() == label)


def labels_of(text: str, count: int) -> tuple[bool, ...] | None:
    """The labels of `count` claims; `None` when the text is not one line for each (`2: 0`) and
    nothing else.
    """
    lines = [_LINE.match(line.strip()) for line in text.splitlines() if line.strip()]
    labels = {int(line[1]): line[2] == "1" for line in lines if line}
    if len(lines) != count or None in lines or set(labels) != set(range(1, count + 1)):
        return None
    return tuple(labels[number] for number in range(1, count + 1))


def after_thought(text: str) -> str:
    """What follows a reasoning model's thought; nothing while the thought is not closed."""
    # many chat templates open the thought themselves, so that only its end is in the reply
    reply = text.rpartition("</think>")[2].strip()
    return "" if reply.startswith("<think>") else reply


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


class ReplyForm(NamedTuple):
    """One way to ask for a label: how many log-probs at each token, and whether only the two labels
    may be replied.
    """

    top_logprobs: int = 0
    choice: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The parameters of a request in this form."""
        parameters: dict[str, Any] = {}
        if self.top_logprobs:
            parameters |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.choice:
            parameters |= _CHOICE
        return parameters

    def refused(self, error: Unanswered) -> bool:
        """Whether the error is about this form, and not about the request's length or the server's
        health.
        """
        message = str(error).lower()
        words: tuple[str, ...] = ()
        if self.top_logprobs:
            words += _LOGPROB_WORDS
        if self.choice:
            words += _CHOICE_WORDS
        is_named = any(word in message for word in words)
        if error.status in (400, 422, 501):
            return bool(words) and (is_named or not _TOO_LONG.search(message))
        return error.status == 500 and is_named

    def without(self, error: Unanswered) -> "ReplyForm":
        """What is left of this form for a server that has refused it."""
        message = str(error).lower()
        if self.top_logprobs and any(word in message for word in _LOGPROB_WORDS):
            # some servers refuse more than 5
            is_too_many = self.top_logprobs > 5 and _AMOUNT.search(message)
            return self._replace(top_logprobs=5 if is_too_many else 0)
        if self.choice:
            # Log-probs are worth more, so what constrains the output is given up before them
            return self._replace(choice=False)
        return ReplyForm()


RICHEST = ReplyForm(20, True)


@dataclass
class Ladder:
    """The richest form that the server has not refused yet.

    `settled`: the server has answered a question in this form, so that it stays.
    """

    current: ReplyForm = RICHEST
    settled: bool = False

    def step_down(self, form: ReplyForm, error: Unanswered) -> bool:
        """Whether to ask again because `form` was refused and another one is to be tried."""
        if form != self.current:
            return True  # a concurrent question was refused first and has stepped down already
        if self.settled or not form.refused(error):
            return False
        self.current = form.without(error)
        return True
