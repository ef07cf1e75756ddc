"""What an endpoint is asked, and what is kept of its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from .prompting import Messages

_CHARACTERS, _TEMPLATE = 4, 12
"""Of a token in English, about, and tokens that a chat template adds."""
_LABEL, _CLAIMS = 16, 96
"""The most tokens that a label is given where nobody reasons, and those of a written text, about."""


class Question(msgspec.Struct, frozen=True):
    """`body` are the request's parameters; `writes` asks for a text, otherwise for a label.

    One with `members` asks for the labels of these questions at once.
    """

    key: str
    messages: Messages
    body: dict[str, Any]
    writes: bool = False
    members: tuple[Question, ...] = ()

    @property
    def one_label(self) -> bool:
        """Whether the reply is a single label, which log-probs and constrained output are asked for."""
        return not (self.writes or self.members)

    @property
    def tokens(self) -> tuple[int, int]:
        """About how many it takes: of the prompt, and of the answer.

        A model that was given more than a label's may reason first, in most of them.
        """
        prompt = sum(len(message["content"]) for message in self.messages) // _CHARACTERS + _TEMPLATE
        most = self.body.get("max_tokens") or _CLAIMS
        if self.writes:
            return prompt, min(most, _CLAIMS)
        return prompt, 4 * len(self.members) or (2 if most <= _LABEL else most)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of an answer: a label with its p, a text, or the labels of the members.

    `together` marks the answer of a question that was asked as one of several members.
    """

    p: float | None = None
    label: bool | None = None
    text: str | None = None
    labels: tuple[bool, ...] | None = None
    together: bool = False
