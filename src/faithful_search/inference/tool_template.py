"""A tokenizer that speaks a dialect to loops that run tool calls themselves, such as TRL's.

Such a loop keeps an episode as messages: the assistant's have `tool_calls`, and those of the role
`tool` answer them. It needs a chat template that writes these messages, and a `response_template`
by which Transformers finds the calls in sampled text.

A model's own template does not do: it writes calls in the model's way instead of the dialect's, and
describes the tools once more, after the dialect's prompt. With the templates made here a policy
reads the same tokens as in our engine: the model's template writes the messages that open an
episode, and the dialect's form all turns after them.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from ..dialects.base import Dialect
from ..dialects.tool_calls import ToolCalls
from ..errors import ConfigError, TemplateError
from .chat import ChatFormat
from .fencing import name_of

_OPENING = """\
{%- if tools -%}{%- set tool_names = NAMES -%}{%- set tools = none -%}{%- endif -%}
{%- set spoken = namespace(opening=[], turns=[]) -%}
{%- for message in messages -%}
{%- if spoken.turns or message.role == 'assistant' -%}
{%- set spoken.turns = spoken.turns + [message] -%}
{%- else -%}
{%- set spoken.opening = spoken.opening + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- if spoken.turns -%}{%- set add_generation_prompt = true -%}{%- endif -%}
{%- set messages = spoken.opening -%}
{{- '' }}"""
"""What is put before the model's template. It leaves it only the messages before the assistant's
first turn (`spoken.opening`); `_TURNS` writes the others.
"""
_TURNS = """\
{{ '' }}
{%- for message in spoken.turns -%}
{%- if message.role == 'assistant' -%}
{%- if message.reasoning_content and not PREFILL -%}
{{- '<think>' + message.reasoning_content + '</think>' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{%- set written = {'name': call.function.name, 'arguments': call.function.arguments} | tojson -%}
{{- CALL + written + CALL_END -}}
{%- endfor -%}
{{- END -}}
{%- elif message.role == 'tool' -%}
{%- if loop.previtem.role != 'tool' -%}{{- BEFORE -}}{%- endif -%}
{{- FRAME + message.content + FRAME_END -}}
{%- if not loop.nextitem or loop.nextitem.role != 'tool' -%}{{- AFTER -}}{%- endif -%}
{%- else -%}
{{- BEFORE + message.content + AFTER -}}
{%- endif -%}
{%- endfor -%}"""
"""What is put after the model's template, and writes the turns and the tools' responses. In both
parts `_chat_template` replaces words in capitals by texts of the dialect and of the chat format.
"""


def check_calls(dialect: Dialect) -> None:
    """Raise `ConfigError` for a dialect whose calls cannot be `tool_calls` of messages."""
    if not isinstance(dialect, ToolCalls):
        raise ConfigError(
            f"the dialect {dialect.name!r} writes its calls into its text, where TRL's loop cannot "
            "run them: use a dialect with calls in <tool_call> that a message answers, such as "
            "'pou' or 'openai'"
        )


@dataclass(frozen=True)
class ToolTemplate:
    """What a tokenizer needs for a dialect's tool calls.

    Args:
        chat: the chat template: the model's own for the messages that open an episode, then turns
            and tool messages as our engine joins them. It does not describe the tools: the
            dialect's prompt does.
        response: the `response_template`, which parts a turn into its reasoning, its text and its
            first call. What follows that call is dropped.

    Example:
        ```python
        tokenizer = ToolTemplate.of(tokenizer, dialects.load("pou"), toolbox.names).dressed(tokenizer)
        ```
    """

    chat: str
    response: Mapping[str, Any]

    @classmethod
    def of(cls, tokenizer: Any, dialect: Dialect, tool_names: Sequence[str] = ()) -> Self:
        """For the tokenizer of a policy.

        Args:
            tokenizer: with a chat template.
            dialect: with calls in `<tool_call>`.
            tool_names: the tools in the order of the prompt, for chat templates that name them.

        Raises:
            ConfigError: the dialect has no calls in `<tool_call>`.
            TemplateError: the tokenizer has no usable chat template (see `ChatFormat.of`) or has
                several, or its turns do not end with its EOS, so that TRL could not tell where a
                turn ends.
        """
        check_calls(dialect)
        chat = ChatFormat.of(tokenizer, dialect)
        if chat.end_ids != [tokenizer.eos_token_id]:
            raise TemplateError(
                f"the chat template of {name_of(tokenizer)} ends a turn with {chat.end!r}, but its "
                f"EOS is {tokenizer.eos_token!r}, and TRL's loop looks for the EOS. Set "
                "tokenizer.eos_token to the end of a turn, or let our engine make the rollouts"
            )
        if not isinstance(tokenizer.chat_template, str):
            raise TemplateError(
                f"{name_of(tokenizer)} has several chat templates: set tokenizer.chat_template to "
                "the one that the policy is trained with"
            )
        return cls(
            chat=_chat_template(tokenizer.chat_template, chat, tool_names),
            response=_response_template(chat),
        )

    def dressed(self, tokenizer: Any) -> Any:
        """A copy of the tokenizer with these templates."""
        dressed = copy.copy(tokenizer)
        self._put_on(dressed)
        return dressed

    @contextmanager
    def worn_by(self, tokenizer: Any) -> Iterator[None]:
        """Within the block the tokenizer has these templates. After the block it has its own again,
        so that a checkpoint is saved with those.
        """
        own_chat = tokenizer.chat_template
        own_response = getattr(tokenizer, "response_template", None)
        self._put_on(tokenizer)
        try:
            yield
        finally:
            tokenizer.chat_template = own_chat
            tokenizer.response_template = own_response

    def _put_on(self, tokenizer: Any) -> None:
        tokenizer.chat_template = self.chat
        tokenizer.response_template = dict(self.response)


def refuses_system(tokenizer: Any, dialect: Dialect) -> bool:
    """Whether the chat template refuses the dialect's prompt, because it knows no system message.
    The messages then have to be `folded`.
    """
    try:
        tokenizer.apply_chat_template(dialect.prompt("?", ()), tokenize=False, tool_names=[])
    except Exception:  # templates raise errors of any class
        return True
    return False


def _chat_template(template: str, chat: ChatFormat, tool_names: Sequence[str]) -> str:
    """The chat template around the model's own `template`."""
    dialect = chat.dialect
    frame, frame_end = dialect.frame  # around the text of a tool response
    texts = {
        "NAMES": list(tool_names),
        "PREFILL": chat.prefill,
        "CALL": f"<{dialect.grammar.call}>",
        "CALL_END": f"</{dialect.grammar.call}>",
        "END": chat.end,
        "BEFORE": chat.before,
        "FRAME": frame,
        "FRAME_END": frame_end,
        "AFTER": chat.after,
    }
    placeholders = re.compile(rf"\b(?:{'|'.join(texts)})\b")

    def literal(placeholder: re.Match[str]) -> str:
        # As in JSON, except that Jinja would read an escaped pair of surrogates as two characters.
        return json.dumps(texts[placeholder[0]], ensure_ascii=False)

    opening = placeholders.sub(literal, _OPENING)
    turns = placeholders.sub(literal, _TURNS)
    # Jinja drops a line break at the very end of a template, but would write it here.
    return opening + template.removesuffix("\n") + turns


def _response_template(chat: ChatFormat) -> dict[str, Any]:
    """The `response_template`, in the form that Transformers documents."""
    call = chat.dialect.grammar.call
    # Where a turn begins in the prompt: at its end, or before the <think> that the prompt opens.
    anchor = r"(?=<think>\s*\Z)" if chat.prefill else r"\Z"
    return {
        "defaults": {"role": "assistant"},
        "start_anchor_pattern": anchor,
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open": f"<{call}>",
                "close_pattern": rf"</{call}>.*",  # our engine stops a policy there
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": re.escape(chat.end) + r"\s*", "content": "text"},
        },
    }
