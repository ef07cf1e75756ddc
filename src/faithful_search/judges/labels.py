"""Requests to an endpoint for a label, several labels or a text, and how replies are read. A label
is asked for in the strictest form that the server accepts.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ..wire.llm import ChatReply, Unanswered, Unreadable
from .prompting import Messages

# Estimates, in tokens
_TEMPLATE_TOKENS = 12  # what a chat template adds
_LABEL_TOKENS = 2
_LINE_TOKENS = 4  # "12: 1", the label of one question of a group
_TEXT_TOKENS = 96  # a text that is written
_SHORT = 16  # the longest reply without reasoning
_CHARACTERS = 4  # of an English token
_LABEL = re.compile(r"""\A[\s"'`*]*+([01])[\s"'`*.]*+\Z""")
_JSON_LABEL = re.compile(
    r'\A(?:```(?:json)?+)?+\s*+\{\s*+"label"\s*+:\s*+"?+([01])"?+\s*+\}\s*+(?:```)?+\Z'
)
_LINE = re.compile(r"\A([0-9]{1,3}+)\s*+:\s*+([01])\Z")


class Question(msgspec.Struct, frozen=True):
    """A request for a label; with `writes` for a text; with `members` for the labels of these
    questions, all at once.

    `key` is its key in the cache. `body` has the parameters of the request besides the messages.
    """

    key: str
    messages: Messages
    body: dict[str, Any]
    writes: bool = False
    members: "tuple[Question, ...]" = ()

    @property
    def one_label(self) -> bool:
        """Whether a single label is asked for, so that log-probs and constrained output make
        sense.
        """
        return not (self.writes or self.members)

    @property
    def tokens(self) -> tuple[int, int]:
        """An estimate of the number of tokens of the prompt and of the reply."""
        characters = sum(len(message["content"]) for message in self.messages)
        prompt = characters // _CHARACTERS + _TEMPLATE_TOKENS
        most = self.body.get("max_tokens") or _TEXT_TOKENS
        if self.writes:
            return prompt, min(most, _TEXT_TOKENS)
        if self.members:
            return prompt, _LINE_TOKENS * len(self.members)
        if most <= _SHORT:
            return prompt, _LABEL_TOKENS
        return prompt, most  # a model that is given more tokens may reason


class JudgeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A label with its p, a text, or the labels of a group's members, as the cache holds it.

    `together`: the question was asked within a group. `missing` says why there is no answer.
    """

    p: float | None = None
    label: bool | None = None
    text: str | None = None
    labels: tuple[bool, ...] | None = None
    together: bool = False
    missing: str = ""


def read(question: Question, reply: ChatReply) -> JudgeAnswer:
    """The answer in a reply. Raises `Unreadable` if the reply is not what was asked for."""
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
    """p and the label in a reply; `None` unless the reply is a single label (or `{"label": 1}`).

    p = p(1) / (p(1) + p(0)) at the token of the label if there are log-probs, else 1 or 0. With
    log-probs p decides the label.
    """
    text = after_thought(reply.text)
    match = _LABEL.match(text) or _JSON_LABEL.match(text)
    if match is None:
        return None
    label = match[1]
    # The last token that is the label, since a thought before it may have digits, too
    top = next((top for token, top in reversed(reply.tokens) if token.strip() == label), {})
    supported = _probability("1", top)
    unsupported = _probability("0", top)
    total = supported + unsupported
    p = supported / total if total > 0 else float(label)
    return p, p >= 0.5


def _probability(label: str, logprobs: Mapping[str, float]) -> float:
    """The probability of a label, summed over its tokens with and without a blank."""
    return sum(math.exp(logprob) for token, logprob in logprobs.items() if token.strip() == label)


def labels_of(text: str, count: int) -> tuple[bool, ...] | None:
    """The labels of `count` claims; `None` unless the text is one line for each (`2: 0`)."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != count:
        return None
    labels: dict[int, bool] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            return None
        labels[int(match[1])] = match[2] == "1"
    numbers = range(1, count + 1)
    if labels.keys() != set(numbers):
        return None
    return tuple(labels[number] for number in numbers)


def after_thought(text: str) -> str:
    """The text after a reasoning model's thought; empty if the thought is not closed."""
    # Many chat templates open the thought themselves, so that only its end is in the reply
    reply = text.rpartition("</think>")[2].strip()
    return "" if reply.startswith("<think>") else reply


# Each server takes its own parameter and ignores the others
_CHOICE: Mapping[str, Any] = {
    "structured_outputs": {"choice": ["0", "1"]},  # vLLM
    "guided_choice": ["0", "1"],  # vLLM before 0.11
    "grammar": 'root ::= "0" | "1"',  # llama.cpp
    "regex": "[01]",  # SGLang
}
# Parts of error messages
_LOGPROB_WORDS = ("logprob", "log_prob", "logits_all")
_CHOICE_WORDS = ("structured_output", "guided", "grammar", "regex")
_AMOUNT = re.compile("top_logprobs|greater|less|most|max|exceed|between")
_TOO_LONG = re.compile(r"context|too (?:long|large|many)|maximum|exceed")


class ReplyForm(NamedTuple):
    """A way to ask for a label: with so many log-probs at each token, and with `choice` so that
    only the two labels can be sampled.
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
        """Whether the server refused this form. Else the error is about the length of the request,
        or the server has failed.
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
        """The next form to try with a server that has refused this one."""
        message = str(error).lower()
        if self.top_logprobs and any(word in message for word in _LOGPROB_WORDS):
            # Some servers refuse more than 5
            is_too_many = self.top_logprobs > 5 and _AMOUNT.search(message)
            return self._replace(top_logprobs=5 if is_too_many else 0)
        if self.choice:
            # Log-probs are worth more than constrained output, and are given up last
            return self._replace(choice=False)
        return ReplyForm()


RICHEST = ReplyForm(20, True)


@dataclass
class Ladder:
    """The richest form that the server has not refused so far. It is shared by concurrent
    questions.

    `settled`: the server has answered a question in this form, so that the form stays.
    """

    current: ReplyForm = RICHEST
    settled: bool = False

    def step_down(self, form: ReplyForm, error: Unanswered) -> bool:
        """Take the next form if `form` was refused. Returns whether to ask again."""
        if form != self.current:
            return True  # a concurrent question has stepped down already
        if self.settled or not form.refused(error):
            return False
        self.current = form.without(error)
        return True
