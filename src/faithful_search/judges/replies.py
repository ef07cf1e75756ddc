"""What an endpoint answered, and how a label is asked for and read off it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

Constrained = Literal["auto", "logprobs", "choice", "none"]
_LABEL = re.compile(r"""[\s"'`*]*([01])[\s"'`*.]*""")
_JSON_LABEL = re.compile(r'(?:```(?:json)?)?\s*\{\s*"label"\s*:\s*"?([01])"?\s*\}\s*(?:```)?')


class Called(msgspec.Struct, frozen=True):
    """A tool call in an answer; `arguments` is JSON as the model wrote it, right or wrong."""

    id: str
    name: str
    arguments: str


class Reply(msgspec.Struct, frozen=True):
    """The text of an answer; for each of its tokens, the most probable tokens at that place with their log-probs."""

    text: str
    tokens: tuple[tuple[str, dict[str, float]], ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False
    calls: tuple[Called, ...] = ()


def reply_of(output: Any) -> Reply:
    """Read the object that the Hub's client gives.

    Raises:
        ValueError: when it is no chat completion.
    """
    try:
        choice = output.choices[0]
        text = choice.message.content
        if text is not None and not isinstance(text, str):
            raise TypeError("content")
        usage = output.usage
        return Reply(
            text=text or "",
            tokens=_tokens(choice.logprobs),
            prompt_tokens=int(getattr(usage, "prompt_tokens", 0) or 0),
            completion_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
            cut=choice.finish_reason == "length",
            calls=tuple(map(_called, getattr(choice.message, "tool_calls", None) or ())),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no chat completion with a message: {output}") from error  # who shows it cuts it


def _called(call: Any) -> Called:
    written = call.function.arguments
    return Called(str(call.id), str(call.function.name), written if isinstance(written, str) else json.dumps(written))


def _tokens(logprobs: Any) -> tuple[tuple[str, dict[str, float]], ...]:
    """Log-probs are an extra: of a form that is not known, there are none."""
    try:
        return tuple(
            (item.token, {top.token: float(top.logprob) for top in item.top_logprobs}) for item in logprobs.content
        )
    except (AttributeError, TypeError, ValueError):
        return ()


def label_of(reply: Reply) -> tuple[float, bool] | None:
    """p(1) and the label; `None` when the reply is not one label and nothing else.

    p = p₁ / (p₁ + p₀) at the label's token where log-probs are given, else 1 or 0. A reasoning model's thought is
    skipped, `{"label": 1}` is read as well.

    Example:
        >>> label_of(Reply("1")), label_of(Reply("Probably 1"))
        ((1.0, True), None)
    """
    text = after_thought(reply.text)
    found = _LABEL.fullmatch(text) or _JSON_LABEL.fullmatch(text)
    if found is None:
        return None
    p = _p_one(found[1], reply.tokens)
    return (float(found[1]), found[1] == "1") if p is None else (p, p >= 0.5)


def after_thought(text: str) -> str:
    """What stands behind a reasoning model's thought; nothing while the thought is not closed.

    Many chat templates open the thought themselves, so that only its end is in the reply.

    Example:
        >>> list(map(after_thought, ("<think>Is it 0?</think> 1", "Is it 0?</think> 1", "<think>Is it 0?")))
        ['1', '1', '']
    """
    said = text.rpartition("</think>")[2].strip()
    return "" if said.startswith("<think>") else said


def _p_one(label: str, tokens: Sequence[tuple[str, Mapping[str, float]]]) -> float | None:
    """The label's token is the last one that reads as the label: a thought before it may hold digits too."""
    top = next((top for token, top in reversed(tokens) if token.strip() == label), None)
    if top is None:
        return None
    one, zero = (sum(math.exp(logprob) for token, logprob in top.items() if token.strip() == wanted) for wanted in "10")
    return one / (one + zero) if one + zero > 0 else None


_TOO_LONG = re.compile(r"context|too (?:long|large|many)|maximum|exceed", re.IGNORECASE)


class Error(Protocol):
    """What is read off a server's error."""

    status: int | None


@dataclass(frozen=True)
class Form:
    """One way to ask for a label: what goes into the request, and the words by which a server would refuse it."""

    body: Mapping[str, Any]
    words: tuple[str, ...] = ()

    def refused(self, error: Error) -> bool:
        """Whether the error is about this form, and not about the request's length or the server's health."""
        named = any(word in str(error).lower() for word in self.words)
        if error.status in (400, 422, 501):
            return bool(self.body) and (named or not _TOO_LONG.search(str(error)))
        return error.status == 500 and named


_LOGPROBS = {"logprobs": True, "top_logprobs": 20}
_FEW_LOGPROBS = {"logprobs": True, "top_logprobs": 5}  # more are refused by some servers
_AMOUNT = re.compile("top_logprobs|greater|less|most|max|exceed|between")
_CHOICE = {  # vLLM; vLLM before 0.11; llama.cpp; SGLang. Each takes its own and leaves the others.
    "structured_outputs": {"choice": ["0", "1"]},
    "guided_choice": ["0", "1"],
    "grammar": 'root ::= "0" | "1"',
    "regex": "[01]",
}
_LOGPROB_WORDS = ("logprob", "log_prob", "logits_all")
_CHOICE_WORDS = ("structured_output", "guided", "grammar", "regex")
_BOTH = Form({**_LOGPROBS, **_CHOICE}, (*_LOGPROB_WORDS, *_CHOICE_WORDS))
_BOTH_FEW = Form({**_FEW_LOGPROBS, **_CHOICE}, (*_LOGPROB_WORDS, *_CHOICE_WORDS))
_ONLY_LOGPROBS = Form(_LOGPROBS, _LOGPROB_WORDS)
_ONLY_FEW = Form(_FEW_LOGPROBS, _LOGPROB_WORDS)
_ONLY_CHOICE = Form(_CHOICE, _CHOICE_WORDS)
_PLAIN = Form({})
_LADDERS: dict[Constrained, tuple[Form, ...]] = {
    "auto": (_BOTH, _BOTH_FEW, _ONLY_LOGPROBS, _ONLY_FEW, _ONLY_CHOICE, _PLAIN),
    "logprobs": (_ONLY_LOGPROBS, _ONLY_FEW, _PLAIN),
    "choice": (_ONLY_CHOICE, _PLAIN),
    "none": (_PLAIN,),
}


@dataclass
class Ladder:
    """The forms from the richest to the plain one; `current` goes down when the server refuses, until one is taken."""

    constrained: Constrained
    place: int = 0
    settled: bool = False

    @property
    def current(self) -> Form:
        return _LADDERS[self.constrained][self.place]

    def settle(self, form: Form) -> None:
        """The server has answered this form: it stays."""
        self.settled = self.settled or form is self.current

    def step_down(self, form: Form, error: Error) -> bool:
        """Whether to ask again because `form` was refused and another one is to be tried."""
        if form is not self.current:
            return True  # another question was refused meanwhile
        if self.settled or not form.refused(error):
            return False
        forms = _LADDERS[self.constrained]
        rest = range(self.place + 1, len(forms))
        self.place = next(n for n in rest if not _asks_again(forms[n], str(error).lower()))
        return True


def _asks_again(form: Form, said: str) -> bool:
    """Whether a form holds what the server has just said that it does not take."""
    if any(word in said for word in _CHOICE_WORDS) and "structured_outputs" in form.body:
        return True
    if not any(word in said for word in _LOGPROB_WORDS):
        return False
    if _AMOUNT.search(said):
        return form.body.get("top_logprobs") == _LOGPROBS["top_logprobs"]
    return "logprobs" in form.body
