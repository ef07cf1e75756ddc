"""How a label is asked for, as strictly as the server allows, and how it is read off the reply."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..wire.llm import Reply

Constrained = Literal["auto", "logprobs", "choice", "none"]
_LABEL = re.compile(r"""[\s"'`*]*([01])[\s"'`*.]*""")
_JSON_LABEL = re.compile(r'(?:```(?:json)?)?\s*\{\s*"label"\s*:\s*"?([01])"?\s*\}\s*(?:```)?')


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


class Error(Protocol):
    """What is read off a server's error."""

    status: int | None


_CHOICE: Mapping[str, Any] = {  # vLLM; vLLM before 0.11; llama.cpp; SGLang. Each takes its own and leaves the others.
    "structured_outputs": {"choice": ["0", "1"]},
    "guided_choice": ["0", "1"],
    "grammar": 'root ::= "0" | "1"',
    "regex": "[01]",
}
_LOGPROB_WORDS = ("logprob", "log_prob", "logits_all")
_CHOICE_WORDS = ("structured_output", "guided", "grammar", "regex")
_AMOUNT = re.compile("top_logprobs|greater|less|most|max|exceed|between")
_TOO_LONG = re.compile(r"context|too (?:long|large|many)|maximum|exceed", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """One way to ask for a label: how many log-probs at each token, and whether only the two labels may be replied."""

    top_logprobs: int = 0
    choice: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """What goes into the request."""
        logprobs = {"logprobs": True, "top_logprobs": self.top_logprobs} if self.top_logprobs else {}
        return logprobs | (dict(_CHOICE) if self.choice else {})

    def refused(self, error: Error) -> bool:
        """Whether the error is about this form, and not about the request's length or the server's health."""
        words = (*_LOGPROB_WORDS * bool(self.top_logprobs), *_CHOICE_WORDS * self.choice)
        named = any(word in str(error).lower() for word in words)
        if error.status in (400, 422, 501):
            return bool(words) and (named or not _TOO_LONG.search(str(error)))
        return error.status == 500 and named

    def survives(self, said: str) -> bool:
        """Whether this form holds nothing of what a server has just said that it does not take."""
        if any(word in said for word in _CHOICE_WORDS) and self.choice:
            return False
        if not any(word in said for word in _LOGPROB_WORDS):
            return True
        return self.top_logprobs != 20 if _AMOUNT.search(said) else not self.top_logprobs


# Some servers refuse more than 5 log-probs.
_LADDERS: dict[Constrained, tuple[Form, ...]] = {
    "auto": (Form(20, True), Form(5, True), Form(20), Form(5), Form(0, True), Form()),
    "logprobs": (Form(20), Form(5), Form()),
    "choice": (Form(0, True), Form()),
    "none": (Form(),),
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
        self.settled = self.settled or form == self.current

    def step_down(self, form: Form, error: Error) -> bool:
        """Whether to ask again because `form` was refused and another one is to be tried."""
        if form != self.current:
            return True  # another question was refused in the time between
        if self.settled or not form.refused(error):
            return False
        forms = _LADDERS[self.constrained]
        self.place = next(n for n in range(self.place + 1, len(forms)) if forms[n].survives(str(error).lower()))
        return True
