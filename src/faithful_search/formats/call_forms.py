"""How models write calls: `FORMS`, the table that `call_markup` and `chat_templates` read.

The texts may be hostile, so every pattern takes linear time: each of its repetitions is bounded or
possessive. `tests/attacks/test_linear.py` tries them.
"""

import re
from dataclasses import dataclass

from .call_arguments import (
    ArgumentForm,
    Read,
    by_attributes,
    gemma_arguments,
    json_arguments,
    json_calls,
    mcp_call,
    python_calls,
    single_argument,
    tagged_arguments,
)

_QUOTED_NAME = r'name="(?P<name>[^"<>\n]{1,200})"'


@dataclass(frozen=True)
class Form:
    """How one model, or several, write a call.

    Attributes:
        models: whose form this is.
        sign: a literal that stands in each such call.
        head: matches the opening of a call, perhaps with the groups "name" and "id".
        tail: matches its closing. `None`: the call ends with the JSON value that follows the head.
        read: parses calls: takes the match of the head and the text between head and tail.
        plain: whether ordinary prose could hold this form, since it has no special tokens. Then it
            is a call only where it stands apart from sentences.
    """

    models: str
    sign: str
    head: re.Pattern[str]
    tail: re.Pattern[str] | None
    read: Read
    plain: bool = True


FORMS: tuple[Form, ...] = (
    Form(
        models="Kimi K2",
        sign="<|tool_call_begin|>",
        head=re.compile(
            r"<\|tool_call_begin\|>\s*+(?P<id>(?:functions\.)?(?P<name>[\w.-]{1,100}?)(?::\d{1,9})?)"
            r"\s*+<\|tool_call_argument_begin\|>"
        ),
        tail=re.compile(r"<\|tool_call_end\|>"),
        read=json_arguments,
        plain=False,
    ),
    Form(
        models="Kimi K2, without special tokens",
        sign="functions.",
        head=re.compile(r"(?P<id>functions\.(?P<name>[\w.-]{1,100}):\d{1,9})\s*+(?=\{)"),
        tail=None,
        read=json_arguments,
    ),
    Form(
        models="Kimi K3",
        sign="<|open|>call",
        head=re.compile(
            r'<\|open\|>call (?:index="\d{1,9}" )?tool="(?P<name>[^"<>\n]{1,200})"[^<>\n]{0,60}+<\|sep\|>'
        ),
        tail=re.compile(r"<\|close\|>call<\|sep\|>"),
        read=tagged_arguments(
            ArgumentForm(
                re.compile(
                    r'<\|open\|>argument key="(?P<key>[^"<>\n]{1,200})"(?: '
                    r'type="(?P<type>\w{1,20})")?'
                    r"[^<>\n]{0,60}+<\|sep\|>"
                ),
                re.compile(r"<\|close\|>argument<\|sep\|>"),
                exact=True,
            )
        ),
        plain=False,
    ),
    Form(
        models="Kimi K3, without special tokens",
        sign='call tool="',
        head=re.compile(
            r'(?:tools)?call tool="(?P<name>[^"<>\n]{1,200})"(?: index="\d{1,9}")?(?=argument)'
        ),
        tail=re.compile(r"(?<=argument)call"),  # what is left of `close|>argument…close|>call`
        read=tagged_arguments(
            ArgumentForm(
                re.compile(r'argument key="(?P<key>[^"<>\n]{1,200})" type="(?P<type>\w{1,20})"'),
                re.compile(r"argument(?=argument key=|\Z)"),
                exact=True,
            )
        ),
    ),
    Form(
        models="DeepSeek",
        sign="<\uff5ctool\u2581call\u2581begin\uff5c>",
        head=re.compile(
            r"<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?"
            r"(?P<name>[^<>\n{]{1,200})(?:<\uff5ctool\u2581sep\uff5c>|\n)"
        ),
        tail=re.compile(r"<\uff5ctool\u2581call\u2581end\uff5c>"),
        read=json_arguments,
        plain=False,
    ),
    Form(
        models="DeepSeek, without special tokens",
        sign="\n```json\n",
        head=re.compile(r"(?<![\w`])function(?P<name>[A-Za-z_][\w.-]{0,100})\n```json\n"),
        tail=re.compile(r"\n```"),
        read=json_arguments,
    ),
    Form(
        models="DeepSeek V3.2 and V4",
        sign="\uff5cDSML\uff5cinvoke",
        head=re.compile(rf"<\uff5cDSML\uff5cinvoke {_QUOTED_NAME}>"),
        tail=re.compile(r"</\uff5cDSML\uff5cinvoke>"),
        read=tagged_arguments(
            ArgumentForm(
                re.compile(
                    r'<\uff5cDSML\uff5cparameter name="(?P<key>[^"<>\n]{1,200})"'
                    r'(?: string="(?P<type>true|false)")?>'
                ),
                re.compile(r"</\uff5cDSML\uff5cparameter>"),
            )
        ),
        plain=False,
    ),
    Form(
        models="MiniMax, and all that write `<invoke>`",
        sign="invoke name=",
        head=re.compile(rf"<(?:\w{{1,20}}:)?invoke {_QUOTED_NAME}>"),
        tail=re.compile(r"</(?:\w{1,20}:)?invoke>"),
        read=tagged_arguments(
            ArgumentForm(
                re.compile(
                    r'<(?:\w{1,20}:)?parameter name="(?P<key>[^"<>\n]{1,200})"[^<>\n]{0,60}>'
                ),
                re.compile(r"</(?:\w{1,20}:)?parameter>"),
            )
        ),
    ),
    Form(
        models="Qwen3-Coder, Qwen3.5, Nemotron 3, Seed-OSS",
        sign="<function=",
        head=re.compile(r"<function=(?P<name>[^<>\s]{1,200})>"),
        tail=re.compile(r"</function>|(?=</tool_call>)"),
        read=tagged_arguments(
            ArgumentForm(
                re.compile(r"<parameter=(?P<key>[^<>\n]{1,200})>"),
                re.compile(r"</parameter>"),
            )
        ),
    ),
    Form(
        models="GLM",
        sign="<arg_key>",
        head=re.compile(r"(?:<tool_call>\s*+|(?m:^))(?P<name>[\w.-]{1,100})\s*+(?=<arg_key>)"),
        tail=re.compile(r"(?<=</arg_value>)\s*+(?!<arg_key>)"),  # behind the last argument
        read=tagged_arguments(
            ArgumentForm(
                re.compile(r"<arg_key>(?P<key>[^<>]{1,200})</arg_key>\s*+<arg_value>"),
                re.compile(r"</arg_value>"),
            )
        ),
    ),
    Form(
        models="MiroThinker, and all that write `<use_mcp_tool>`",
        sign="<use_mcp_tool>",
        head=re.compile(r"<use_mcp_tool>"),
        tail=re.compile(r"</use_mcp_tool>"),
        read=mcp_call,
    ),
    Form(
        models="Search-o1, WebThinker",
        sign="<|begin_search_query|>",
        head=re.compile(r"<\|begin_search_query\|>"),
        tail=re.compile(r"<\|end_search_query\|>"),
        read=single_argument("search", "query"),
        plain=False,
    ),
    Form(
        models="WebThinker, its links",
        sign="<|begin_click_link|>",
        head=re.compile(r"<\|begin_click_link\|>"),
        tail=re.compile(r"<\|end_click_link\|>"),
        read=single_argument("click_link", "url"),
        plain=False,
    ),
    Form(
        models="DR Tulu",
        sign="<call_tool",
        head=re.compile(r'<call_tool(?P<attributes>(?:\s++[\w-]{1,60}="[^"<>\n]{0,1000}")++)\s*+>'),
        tail=re.compile(r"</call_tool>"),
        read=by_attributes,
    ),
    Form(
        models="Nemotron-H",
        sign="<TOOL",
        head=re.compile(r"<TOOL_?CALLS?>"),
        tail=re.compile(r"</TOOL_?CALLS?>"),
        read=json_calls,
    ),
    Form(
        models="Llama 3",
        sign="<|python_tag|>",
        head=re.compile(r"<\|python_tag\|>\s*+(?=[\[{])"),
        tail=None,
        read=json_calls,
        plain=False,
    ),
    Form(
        models="Llama 3, its own tools",
        sign="<|python_tag|>",
        head=re.compile(r"<\|python_tag\|>(?P<name>[A-Za-z_]\w{0,60})\.call\("),
        tail=re.compile(r"\)(?=\s*+(?:<\||\Z))"),
        read=python_calls,
        plain=False,
    ),
    Form(
        models="Gemma 4",
        sign="<|tool_call>call:",
        head=re.compile(r"<\|tool_call>call:(?P<name>[\w.-]{1,100})"),
        tail=re.compile(r"<tool_call\|>"),
        read=gemma_arguments,
        plain=False,
    ),
    Form(
        models="LFM2",
        sign="<|tool_call_start|>",
        head=re.compile(r"<\|tool_call_start\|>"),
        tail=re.compile(r"<\|tool_call_end\|>"),
        read=python_calls,
        plain=False,
    ),
    Form(
        models="Mistral",
        sign="[TOOL_CALLS]",
        head=re.compile(r"\[TOOL_CALLS\]\s*+(?=\[)"),
        tail=None,
        read=json_calls,
        plain=False,
    ),
    Form(
        models="Mistral, since 2025",
        sign="[TOOL_CALLS]",
        head=re.compile(
            r"\[TOOL_CALLS\]\s*+(?P<name>[\w.-]{1,100})(?:\[CALL_ID\](?P<id>\w{1,60}))?"
            r"(?:\[ARGS\])?\s*+(?=\{)"
        ),
        tail=None,
        read=json_arguments,
        plain=False,
    ),
    Form(
        models="Granite, Phi-4-mini",
        sign="<|tool_call|>",
        head=re.compile(r"<\|tool_call\|>\s*+(?=[\[{])"),
        tail=None,
        read=json_calls,
        plain=False,
    ),
    Form(
        models="Command",
        sign="<|START_ACTION|>",
        head=re.compile(r"<\|START_ACTION\|>\s*+(?=\[)"),
        tail=None,
        read=json_calls,
        plain=False,
    ),
)
"""How models write calls. In Harmony they are messages of their own: see `chat_templates`."""

HERMES = Form(
    models="Hermes, Qwen 2.5 and 3",
    sign="<tool_call>",
    head=re.compile(r"<tool_call>\s*+(?=\{)"),
    tail=re.compile(r"</tool_call>"),
    read=json_calls,
)
"""A form that is read here only in a thought: elsewhere the dialects read it."""
