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
    calls_by_name,
    gemma_arguments,
    json_arguments,
    json_calls,
    mcp_call,
    python_calls,
    several_json_calls,
    single_argument,
    tagged_arguments,
)

_QUOTED_NAME = r'name="(?P<name>[^"<>\n]{1,200})"'
# What may stand behind an opening: a JSON value, a list, a tool's name
_VALUE = r"\s*+(?=[\[{])"
_LIST = r"\s*+(?=\[)"
_NAME = r"(?P<name>[\w.-]{1,100})"


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


def _between(
    models: str,
    opening: str,
    closing: str | None,
    read: Read,
    follows: str = "",
    plain: bool = False,
) -> Form:
    """A form of calls between two literals; the opening one is the sign. `follows` is the pattern
    of what stands behind that.
    """
    return Form(
        models=models,
        sign=opening,
        head=re.compile(re.escape(opening) + follows),
        tail=None if closing is None else re.compile(re.escape(closing)),
        read=read,
        plain=plain,
    )


def _json_in_tags(models: str, tag: str) -> Form:
    """A form of calls that are JSON between two tags of this name."""
    return _between(models, f"<{tag}>", f"</{tag}>", several_json_calls, follows=_VALUE, plain=True)


FORMS: tuple[Form, ...] = (
    Form(
        models="Kimi K2",
        sign="<|tool_call_begin|>",
        head=re.compile(
            r"<\|tool_call_begin\|>\s*+"
            r"(?P<id>(?:functions\.)?(?P<name>[\w.-]{1,100}?)(?::\d{1,9})?)"
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
            r'<\|open\|>call (?:index="\d{1,9}" )?tool="(?P<name>[^"<>\n]{1,200})"'
            r"[^<>\n]{0,60}+<\|sep\|>"
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
        # Llama 3.1 leaves the bracket out
        head=re.compile(r"<function=(?P<name>[^<>\s{]{1,200}+)(?:>|(?=\{))"),
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
    _between(
        "MiroThinker, and all that write `<use_mcp_tool>`",
        "<use_mcp_tool>",
        "</use_mcp_tool>",
        mcp_call,
        plain=True,
    ),
    _between(
        "Search-o1, WebThinker",
        "<|begin_search_query|>",
        "<|end_search_query|>",
        single_argument("search", "query"),
    ),
    _between(
        "WebThinker, its links",
        "<|begin_click_link|>",
        "<|end_click_link|>",
        single_argument("click_link", "url"),
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
    _between("Llama 3", "<|python_tag|>", None, json_calls, follows=_VALUE),
    Form(
        models="Llama 3, its own tools",
        sign="<|python_tag|>",
        head=re.compile(r"<\|python_tag\|>(?P<name>[A-Za-z_]\w{0,60})\.call\("),
        tail=re.compile(r"\)(?=\s*+(?:<\||\Z))"),
        read=python_calls,
        plain=False,
    ),
    _between("Gemma 4", "<|tool_call>call:", "<tool_call|>", gemma_arguments, follows=_NAME),
    _between("Llama 4", "<|python_start|>", "<|python_end|>", python_calls, follows=_LIST),
    _between(
        "FunctionGemma",
        "<start_function_call>",
        "<end_function_call>",
        gemma_arguments,
        follows=f"call:{_NAME}",
    ),
    _between("Apertus", "<|tools_prefix|>", "<|tools_suffix|>", calls_by_name),
    _between(
        "OLMo 3",
        "<function_calls>",
        "</function_calls>",
        python_calls,
        follows=r"\s*+(?=[A-Za-z_][\w.-]{0,100}\()",
        plain=True,
    ),
    _json_in_tags("MiniMax M1, Jamba", "tool_calls"),
    _json_in_tags("LongCat", "longcat_tool_call"),
    _json_in_tags("many that are prompted to", "function_call"),
    Form(
        models="Phi-4-mini, without special tokens",
        sign="functools[",
        head=re.compile(r"functools(?=\[)"),
        tail=None,
        read=json_calls,
    ),
    _between("LFM2", "<|tool_call_start|>", "<|tool_call_end|>", python_calls),
    _between("Mistral", "[TOOL_CALLS]", None, json_calls, follows=_LIST),
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
    _between("Granite, Phi-4-mini", "<|tool_call|>", None, json_calls, follows=_VALUE),
    _between("Command", "<|START_ACTION|>", None, json_calls, follows=_LIST),
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
