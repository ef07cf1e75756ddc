"""How a tokenizer's chat template joins an agent's turns with its environment's, as token ids.

The template is rendered once with placeholders; what it writes between an assistant turn and the tool response, and
between the response and the next assistant turn, is the *glue*. A turn then costs the tokenisation of its own text
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from ..dialects.base import Dialect
from ..dialects.fence import Fence
from ..errors import TemplateError
from ..trajectory import Evidence, Tokens, Trajectory

ASSISTANT, OBSERVATION = "⟪assistant⟫", "⟪observation⟫"


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer seen through a dialect: prompts, observations and whole transcripts as ids.

    `end` closes an assistant turn; `before` opens the tool response after it and `after` leads to the next assistant
    turn (both empty for dialects that append raw text inside one assistant turn: their `observation_role` is `None`).
    """

    tokenizer: Any = field(repr=False)
    dialect: Dialect
    end: str = ""
    before: str = ""
    after: str = ""

    @classmethod
    def of(cls, tokenizer: Any, dialect: Dialect) -> Self:
        """Read the glue off the tokenizer's chat template.

        Raises:
            TemplateError: when the dialect needs a template and the tokenizer has none, or one that refuses, drops or
                rewrites turns.
        """
        if dialect.observation_role is None:
            return cls(tokenizer, dialect, end=tokenizer.eos_token or "")
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                f"the tokenizer of {_name(tokenizer)} has no chat template, which dialect {dialect.name!r} needs; "
                "set `tokenizer.chat_template`, take the instruct model, or use dialect 'search_r1'"
            )
        return cls(tokenizer, dialect, *_glue(tokenizer, dialect.observation_role))

    @cached_property
    def fence(self) -> Fence:
        """The dialect's fence, which also forbids the tokenizer's special tokens."""
        return self.dialect.fence.with_tokens(tuple(self.tokenizer.all_special_tokens))

    @cached_property
    def end_ids(self) -> list[int]:
        """Ids of `end`."""
        return self.encode(self.end)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` without anything added around it."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prompt_ids(self, question: str, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of the episode's opening, ready for the first assistant turn."""
        return self.messages_ids(self.dialect.prompt(question, tools), tools)

    def messages_ids(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of chat messages, ready for the next assistant turn; raw text when the tokenizer has no template.

        The dialect's prompt describes the tools itself, so the template gets no `tools`; it gets their names as
        `tool_names`, for templates that tell a small model only those.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return self.encode("\n".join(message["content"] for message in messages))
        names = [tool["function"]["name"] for tool in tools]
        return self.encode(_render(self.tokenizer, messages, names))

    def observation_ids(self, text: str, ended: bool) -> list[int]:
        """Ids the environment appends for the tool response `text`; `ended`: the model closed its turn itself."""
        if self.dialect.observation_role is None:
            return self.encode(text)
        return self.encode(("" if ended else self.end) + self.before + text + self.after)

    def render_observation(self, evidence: Sequence[Evidence], note: str = "") -> str:
        """The dialect's tool response, fenced for this tokenizer too."""
        return self.dialect.render_observation(evidence, note, self.fence)

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether the model itself closed the turn it sampled as `ids`."""
        return bool(self.end_ids) and list(ids[-len(self.end_ids) :]) == self.end_ids

    def transcript(self, trajectory: Trajectory, tools: Sequence[dict[str, Any]] = ()) -> Tokens:
        """A trajectory as its agent would have sampled it.

        It goes turn by turn, each turn closed where the dialect closes it.
        """
        ids: list[int] = []
        mask: list[int] = []
        turns: list[tuple[int, int, int]] = []
        for step in trajectory.steps:
            goes_on = step.call is not None and step.answer is None
            closed = not (goes_on and self.dialect.observation_role is None)
            own = self.encode(self.dialect.render_turn(step)) + self.end_ids * closed
            text = self.render_observation(step.evidence, step.note) if goes_on else ""
            response = self.observation_ids(text, ended=True) if goes_on else []
            turns.append((len(ids), len(ids) + len(own), len(ids) + len(own) + len(response)))
            ids += own + response
            mask += [1] * len(own) + [0] * len(response)
        return Tokens(self.prompt_ids(trajectory.question or "", tools), ids, mask, tuple(turns))


def _glue(tokenizer: Any, role: str) -> tuple[str, str, str]:
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": ASSISTANT},
        {"role": role, "content": OBSERVATION},
    ]
    try:
        text = _render(tokenizer, messages, [])
    except Exception as error:  # a template raises what it likes: roles it refuses, names it lacks
        raise TemplateError(
            f"the chat template of {_name(tokenizer)} refuses an assistant turn followed by a {role!r} turn: {error}; "
            "a multi-turn agent cannot be rendered with it"
        ) from error
    if text.count(ASSISTANT) != 1 or text.count(OBSERVATION) != 1:
        raise TemplateError(
            f"the chat template of {_name(tokenizer)} does not keep an assistant turn followed by a {role!r} turn "
            "as they are; a multi-turn agent cannot be rendered with it"
        )
    between, after = text.split(ASSISTANT)[1].split(OBSERVATION)
    end = next((token for token in tokenizer.all_special_tokens if between.startswith(token)), "")
    return end, between[len(end) :], after


def _render(tokenizer: Any, messages: Sequence[dict[str, Any]], tool_names: list[str]) -> str:
    return tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True, tool_names=tool_names
    )


def _name(tokenizer: Any) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or "this model")
