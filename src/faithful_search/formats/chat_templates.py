"""Makes messages of a text that a chat template made of a conversation, or that a model wrote like
one.

`LAYOUTS` is the table of the templates: what opens a message, with or without special tokens, and
what stands between messages without being said. The calls in the messages are read by
`call_markup` and `call_forms`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from .. import loose_json
from ..errors import DataError
from .base import Chat, Messages
from .call_arguments import gemma_json
from .call_forms import FORMS

# Roles by what templates call them, in lower case. Any other speaker is a tool.
_ROLES = {
    "user": "user", "system": "system", "developer": "system", "assistant": "assistant",
    "ai": "assistant", "model": "assistant", "chatbot": "assistant", "tool": "tool",
    "ipython": "tool", "observation": "tool",
}  # fmt: skip
_NOBODY = frozenset(("user", "all", "assistant"))  # a message to these is no call
_RESULTS_OPEN = ("<function_results>", "<tool_result", "<tool_response>")
# What Llama 3's template writes before the question: how to call, and the tools' schemas.
_PREAMBLE = re.compile(r"\A\s*+Given the following functions, .*\}\n\n", re.DOTALL)
_NEVER = re.compile("(?!)")
# The question in a text before the first head that runs role and words together.
_GLUED = re.compile(r"\A\s*+(?:(?:system|developer).*[^\w\s])?user(?P<question>\S.*)", re.DOTALL)


class Between(NamedTuple):
    """What stands before something and after it. `head` may have the group "name"."""

    head: re.Pattern[str]
    tail: re.Pattern[str]


_WHOLE = Between(_NEVER, _NEVER)  # nothing divides results: a tool's message is one


@dataclass(frozen=True)
class Layout:
    """How a template lays a conversation out.

    Attributes:
        models: whose template this is.
        signs: literals, one of which stands in each such text.
        head: finds the beginnings of messages. Its group "speaker" is the role, with the groups
            "name", "to", "recipient" and "channel" where the template has them. A head without a
            role has a group that says what follows: "ask", a user's words; "order", the system's;
            "think" or "say", the agent's; "respond", a tool's. The group "thought" is the end of a
            thought that the prompt may have begun.
        ends: finds tokens that say nothing.
        result: what stands around each result in a tool's message.
        special: whether no dialect has these tokens.
    """

    models: str
    signs: tuple[str, ...]
    head: re.Pattern[str]
    ends: re.Pattern[str] = _NEVER
    result: Between = _WHOLE
    special: bool = True


def read(text: str) -> Chat | None:
    """The conversation in a text of one of the layouts.

    A text without roles that has calls in a model's own markup is one message of an agent. `None`
    for any other text.

    Example:
        >>> read("<|start|>assistant<|channel|>final<|message|>Ada<|return|>").messages
        [{'role': 'assistant', 'content': 'Ada'}]
    """
    marked = _has_calls(text)
    for layout in LAYOUTS:
        # A text with tokens that dialects have, too, is theirs, unless it has such calls
        may_be_used = marked or layout.special
        if not may_be_used or not any(sign in text for sign in layout.signs):
            continue
        messages: Messages = list(_messages(text, layout))
        if any(message["role"] == "assistant" for message in messages):
            return Chat(messages, of_text=True, format=layout.models if layout.special else "")
    if marked:
        return Chat([{"role": "assistant", "content": text}], of_text=True)
    return None


def is_marked(text: str) -> bool:
    """Whether a text has a sign of calls in a model's own markup, or of a template whose tokens no
    dialect has.
    """
    if _has_calls(text):
        return True
    return any(sign in text for layout in LAYOUTS if layout.special for sign in layout.signs)


def opens_results(text: str) -> bool:
    """Whether a user's message is results of tools, which templates put into a turn of the user's.

    Example:
        >>> opens_results("<tool_response>Lima</tool_response>")
        True
    """
    return text.lstrip().startswith(_RESULTS_OPEN)


def _has_calls(text: str) -> bool:
    return any(form.sign in text for form in FORMS) or '"parameters"' in text


def channels(content: str) -> Messages | None:
    """The messages in the content of a message in which a server left Harmony's channels; `None`
    where there are none.
    """
    if not any(sign in content for sign in HARMONY.signs):
        return None
    return list(_messages(content, HARMONY)) or None


def between_turns(text: str) -> Messages:
    """The messages that a template wrote between two turns of an agent: results and users' words.

    A text that begins with no template's markup is one result.

    Example:
        >>> between_turns("<|im_start|>user\\n<tool_response>Lima</tool_response><|im_end|>\\n")
        [{'role': 'tool', 'content': 'Lima'}]
    """
    for layout in LAYOUTS:
        if not any(sign in text for sign in layout.signs):
            continue
        head = layout.head.search(text)
        if head is not None and not layout.ends.sub("", text[: head.start()]).strip():
            messages = _messages(text, layout)
            return [message for message in messages if message["role"] != "assistant"]
    return [{"role": "tool", "content": text}] if text.strip() else []


class _Head(NamedTuple):
    """A match of `Layout.head`: where it stands, and its groups that matched."""

    start: int
    end: int
    groups: dict[str, str]


def _messages(text: str, layout: Layout) -> Iterator[dict[str, Any]]:
    """The messages between the heads; empty ones are left out."""
    heads = [_Head(*head.span(), _groups(head)) for head in layout.head.finditer(text)]
    if not heads:
        return
    yield from _lead(layout, heads[0].groups, text[: heads[0].start])
    end_of_text = _Head(len(text), len(text), {})
    for head, next_head in pairwise([*heads, end_of_text]):
        groups = head.groups
        if _is_agents(groups) and "thought" in next_head.groups:
            groups = {"think": ""}
        yield from _message(layout, groups, text[head.end : next_head.start])


def _is_agents(groups: Mapping[str, str]) -> bool:
    """Whether the agent speaks after the head with these groups."""
    speaker = groups.get("speaker", "assistant")
    return speaker in ("assistant", "model") and "respond" not in groups


def _lead(layout: Layout, next_groups: Mapping[str, str], text: str) -> Iterator[dict[str, Any]]:
    """What stands before the first head, as messages: a system's words before a user's message, a
    question that runs on from its role, or else the agent's words.
    """
    shows_agent = "</think>" in text or _has_calls(text)
    next_role, _ = _party(next_groups)
    if next_role in ("user", "system") and not shows_agent:
        return _message(layout, {"order": ""}, text)
    glued = _GLUED.fullmatch(text)
    if glued is not None:
        return _message(layout, {"ask": ""}, glued["question"])
    if "thought" in next_groups:
        return _message(layout, {"think": ""}, text)
    return _message(layout, {"say": ""}, text)


def _groups(head: re.Match[str]) -> dict[str, str]:
    return {name: value for name, value in head.groupdict().items() if value is not None}


def _message(layout: Layout, groups: Mapping[str, str], text: str) -> Iterator[dict[str, Any]]:
    """What one party said after the head with these groups, as messages."""
    text = layout.ends.sub("", text)
    role, name = _party(groups)
    recipient = groups.get("to") or groups.get("recipient") or ""
    if role == "tool" or (role == "user" and opens_results(text)):
        yield from _results(layout, name, text)
    elif role == "assistant" and _is_call(recipient, text):
        yield {"role": "assistant", "tool_calls": [_call(recipient, text)]}
    elif not text.strip():
        return
    elif role != "assistant":
        yield {"role": role, "content": _PREAMBLE.sub("", text, count=1).strip()}
    elif "think" in groups or groups.get("channel") == "analysis" or recipient == "self":
        yield {"role": "assistant", "reasoning_content": text.strip()}
    else:
        yield {"role": "assistant", "content": text.strip()}


def _is_call(recipient: str, text: str) -> bool:
    """Whether an agent's message to this recipient is a call, and its text the arguments.

    A call in a markup of its own is none here: that names the tool again.
    """
    if recipient in ("", "self") or recipient in _NOBODY:
        return False
    return not text.lstrip().startswith("<")


def _party(groups: Mapping[str, str]) -> tuple[str, str]:
    """The role of who speaks after the head with these groups, and the name of a tool."""
    for group, role in (("respond", "tool"), ("ask", "user"), ("order", "system")):
        if group in groups:
            return role, groups.get("name", "")
    speaker = groups.get("speaker", "assistant")
    name = groups.get("name", "").strip()
    if speaker == "system" and name == "tool":  # as Kimi K2's template has it
        return "tool", ""
    if speaker.lower() not in _ROLES:  # a tool, under its own name
        return "tool", speaker
    return _ROLES[speaker.lower()], name


def _call(recipient: str, text: str) -> dict[str, Any]:
    arguments: Any = text.strip()
    if not arguments.startswith("{"):  # code, or other text
        arguments = {"code" if recipient == "python" else "input": arguments}
    return {"name": recipient.removeprefix("functions."), "arguments": arguments}


def _results(layout: Layout, name: str, text: str) -> Iterator[dict[str, Any]]:
    """The results in a tool's message; the whole text where nothing marks one."""
    place = 0
    while (head := layout.result.head.search(text, place)) is not None:
        tail = layout.result.tail.search(text, head.end())
        if tail is None:
            break
        place = max(tail.end(), head.end() + 1)  # an empty tail must not be found again
        content = text[head.end() : tail.start()].removeprefix("\n").removesuffix("\n")
        yield _result(_groups(head).get("name", name), content)
    if place == 0 and text.strip():
        yield _result(name, text.strip("\n"))


def _result(name: str, text: str) -> dict[str, Any]:
    message = {"role": "tool", "content": _content(text)}
    if name and name != "tool":
        message["name"] = name.removeprefix("functions.")
    return message


def _content(text: str) -> str:
    """A result's text. Some templates write it as a JSON string, or as the value of an object."""
    stripped = text.strip()
    if stripped.startswith("{") and ('<|"|>' in stripped or "<escape>" in stripped):
        stripped = gemma_json(stripped.replace("<escape>", '<|"|>'))
    if stripped[:1] not in ('"', "{"):
        return text
    with suppress(DataError):
        value = loose_json.decode(stripped)
        if isinstance(value, dict) and value.keys() <= {"value", "output", "content", "call_id"}:
            present = [key for key in ("value", "output", "content") if key in value]
            value = value[present[0]] if present else ""
        if isinstance(value, str):
            return value
    return text


def _tag(name: str) -> Between:
    return Between(re.compile(f"<{name}>"), re.compile(f"</{name}>"))


_GEMMA_RESULT = Between(re.compile(r"response:(?P<name>[\w.-]{1,100})(?=\{)"), re.compile(r"\Z"))
HARMONY = Layout(
    models="gpt-oss",
    signs=("<|message|>",),
    head=re.compile(
        r"(?:<\|start\|>(?P<speaker>[\w.-]{1,100})(?: (?P<name>[\w.-]{1,100}))?)?"
        r"(?: ?to=(?P<to>[\w.-]{1,100}))?"
        r"(?:<\|channel\|>(?P<channel>\w{1,20})(?: ?to=(?P<recipient>[\w.-]{1,100}))?)?"
        r"(?: ?<\|constrain\|>\w{1,20}| \w{1,20})?<\|message\|>"
    ),
    ends=re.compile(r"<\|(?:end|call|return|eo[mt])\|>|<\|start\|>(?:assistant)?\s*\Z"),
    result=Between(
        re.compile(r'<tool_output name="(?P<name>[^"<>\n]{0,200})">'), re.compile("</tool_output>")
    ),
)
LAYOUTS: tuple[Layout, ...] = (
    HARMONY,
    Layout(
        models="gpt-oss, without special tokens",
        signs=("assistantfinal", "assistantanalysis", "assistantcommentary"),
        head=re.compile(
            r"(?:(?P<speaker>assistant|(?<![\w.-])[A-Za-z_][\w-]{0,60}(?:\.[\w-]{1,60}){0,3}(?= "
            r"to=assistant))"
            r"|\A\s*+(?=analysis|commentary|final))(?: to=(?P<to>[\w.-]{1,100}?))?"
            r"(?P<channel>analysis|commentary|final)(?: to=(?P<recipient>[\w.-]{1,100}))?"
            r"(?: (?:json|code))?"
        ),
    ),
    Layout(
        models="Kimi K2",
        signs=("<|im_middle|>",),
        head=re.compile(
            r"<\|im_(?P<speaker>user|assistant|system)\|>(?P<name>[^<>|\n]{0,100})<\|im_middle\|>"
        ),
        ends=re.compile(r"<\|im_end\|>|\[(?:BOS|EOS)\]"),
    ),
    Layout(
        models="Kimi K2, without special tokens",
        signs=("## Return of functions.",),
        head=re.compile(
            r"(?<=[^\s(])(?:(?P<speaker>assistant)(?=[^\s,.;:)'s])|(?P<respond>tool)(?=## Return "
            r"of ))"
        ),
    ),
    Layout(
        models="Kimi K3",
        signs=("<|sep|>",),
        head=re.compile(
            r'<\|open\|>message role="(?P<speaker>\w{1,20})"(?: '
            r'(?:tool|name)="(?P<name>[^"<>\n]{0,200})")?'
            r"[^<>\n]{0,100}+<\|sep\|>|(?P<think><\|open\|>think<\|sep\|>)"
            r"|(?P<thought><\|close\|>think<\|sep\|>)"
            r"|(?P<say><\|open\|>(?:response|tools)<\|sep\|>)"
        ),
        ends=re.compile(r"<\|close\|>(?:message|response|tools)<\|sep\|>|<\|end_of_msg\|>"),
    ),
    Layout(
        models="Kimi K3, without special tokens",
        signs=('call tool="', 'message role="assistant"'),
        head=re.compile(
            r'message role="(?P<speaker>\w{1,20})"(?: (?:tool|name)="(?P<name>[^"<>\n]{0,200})")?'
            r'(?: index="\d{1,9}")?|(?P<thought>think(?=response|toolscall |message))'
            r'|(?P<say>(?<=think)response|(?:(?<=response)|(?<=think))tools(?=call tool="))'
        ),
        ends=re.compile(r"\Athink|(?<=\S)(?:response|tools|message){1,3}\Z"),
    ),
    Layout(
        models="DeepSeek",
        signs=(
            "<\uff5cUser\uff5c>",
            "<\uff5cAssistant\uff5c>",
            "<\uff5ctool\u2581output\u2581begin\uff5c>",
        ),
        head=re.compile(
            r"<\uff5c(?P<speaker>User|Assistant)\uff5c>"
            r"|(?P<respond><\uff5ctool\u2581output\u2581begin\uff5c>|<function_results>)"
            r"|(?P<say><\uff5ctool\u2581outputs?\u2581end\uff5c>|</function_results>)"
        ),
        ends=re.compile(
            r"<\uff5ctool\u2581outputs\u2581begin\uff5c>"
            r"|<\uff5c(?:begin|end)\u2581of\u2581sentence\uff5c>"
        ),
        result=_tag("(?:tool_)?result"),
    ),
    Layout(
        models="MiniMax",
        signs=("]~b]",),
        head=re.compile(r"\]~b\](?P<speaker>\w{1,20})(?: name=(?P<name>[^\n]{0,100}))?\n"),
        ends=re.compile(r"\[e~\[|\]~!b\["),
        result=_tag("response"),
    ),
    Layout(
        models="Gemma 4",
        signs=("<|turn>",),
        head=re.compile(
            r"<\|turn>(?P<speaker>\w{1,20})\n|(?P<think><\|channel>thought\n?)"
            r"|(?P<say><channel\|>|<tool_response\|>)|(?P<respond><\|tool_response>)"
        ),
        ends=re.compile(r"<turn\|>|<bos>|<eos>"),
        result=_GEMMA_RESULT,
    ),
    Layout(
        models="FunctionGemma",
        signs=("<start_function_response>",),
        head=re.compile(
            r"<start_of_turn>(?P<speaker>\w{1,20})\n|(?P<respond><start_function_response>)"
            r"|(?P<say><end_function_response>)"
        ),
        ends=re.compile(r"<end_of_turn>|<bos>|<eos>"),
        result=_GEMMA_RESULT,
    ),
    Layout(
        models="Llama 4",
        signs=("<|header_start|>",),
        head=re.compile(r"<\|header_start\|>(?P<speaker>\w{1,20})<\|header_end\|>\n*+"),
        ends=re.compile(r"<\|(?:eot|eom|end_of_text|begin_of_text)\|>"),
    ),
    Layout(
        models="Granite",
        signs=("<|start_of_role|>",),
        head=re.compile(r"<\|start_of_role\|>(?P<speaker>\w{1,20})[^<>\n]{0,200}<\|end_of_role\|>"),
        ends=re.compile(r"<\|end_of_text\|>"),
        result=_tag("tool_response"),
    ),
    Layout(
        models="Command",
        signs=("<|START_OF_TURN_TOKEN|>",),
        head=re.compile(
            r"<\|START_OF_TURN_TOKEN\|><\|(?P<speaker>USER|CHATBOT|SYSTEM)_TOKEN\|>"
            r"|(?P<respond><\|START_TOOL_RESULT\|>)|(?P<think><\|START_THINKING\|>)"
            r"|(?P<say><\|(?:END_TOOL_RESULT|END_THINKING|START_RESPONSE|START_TEXT)\|>)"
        ),
        ends=re.compile(r"<\|(?:END_OF_TURN_TOKEN|END_RESPONSE|END_TEXT)\|>|<BOS_TOKEN>"),
    ),
    Layout(
        models="Search-o1, WebThinker",
        signs=("<|begin_search_result|>", "<|begin_click_result|>"),
        head=re.compile(
            r"<\|im_start\|>(?P<speaker>\w{1,20})\n?"
            r"|(?P<respond><\|begin_(?:search|click)_result\|>)"
            r"|(?P<say><\|end_(?:search|click)_result\|>)"
        ),
        ends=re.compile(r"<\|im_end\|>|<\|endoftext\|>"),
        special=False,
    ),
    Layout(
        models="DR Tulu",
        signs=("<tool_output>",),
        head=re.compile(
            r"<\|im_start\|>(?P<speaker>\w{1,20})\n?"
            r"|(?P<respond><tool_output>)|(?P<say></tool_output>)"
        ),
        ends=re.compile(r"<\|im_end\|>|<\|endoftext\|>"),
        special=False,
    ),
    Layout(
        models="Mistral",
        signs=("[INST]", "[TOOL_RESULTS]"),
        head=re.compile(
            r"(?P<ask>\[INST\])|(?P<respond>\[TOOL_RESULTS\])|(?P<think>\[THINK\])"
            r"|(?P<order>\[(?:SYSTEM_PROMPT|AVAILABLE_TOOLS)\])"
            r"|(?P<say>\[/(?:INST|TOOL_RESULTS|THINK|SYSTEM_PROMPT|AVAILABLE_TOOLS)\])"
        ),
        ends=re.compile(r"</?s>"),
        special=False,
    ),
    Layout(
        models="Llama 3",
        signs=("<|start_header_id|>",),
        head=re.compile(r"<\|start_header_id\|>(?P<speaker>\w{1,20})<\|end_header_id\|>\n*+"),
        ends=re.compile(r"<\|(?:eot_id|eom_id|end_of_text|begin_of_text)\|>"),
        special=False,
    ),
    Layout(
        models="GLM",
        signs=("<|observation|>", "[gMASK]"),
        head=re.compile(r"<\|(?P<speaker>system|user|assistant|observation)\|>\n?"),
        ends=re.compile(r"\[gMASK\]|<sop>|<\|endoftext\|>"),
        result=_tag("tool_response"),
        special=False,
    ),
    Layout(
        models="Phi-4-mini",
        signs=("<|tool|>",),
        head=re.compile(r"<\|(?P<speaker>system|user|assistant|tool)\|>\n?"),
        ends=re.compile(r"<\|(?:end|endoftext)\|>"),
        special=False,
    ),
    Layout(
        models="ChatML: Qwen, Nemotron, LFM2",
        signs=("<|im_start|>",),
        head=re.compile(r"<\|im_start\|>(?P<speaker>\w{1,20})\n?"),
        ends=re.compile(r"<\|im_end\|>|<\|endoftext\|>|<\|startoftext\|>"),
        result=Between(
            re.compile(r"<tool_response>|<\|tool_response_start\|>"),
            re.compile(r"</tool_response>|<\|tool_response_end\|>"),
        ),
        special=False,
    ),
    Layout(
        models="Llama 3, without special tokens",
        signs=("assistant\n\n",),
        head=re.compile(r"(?:\A|(?<=\S))(?P<speaker>system|user|assistant|ipython|tool)\n\n"),
        special=False,
    ),
    Layout(
        models="roles on lines of their own",
        signs=("assistant\n", "ai\n"),
        head=re.compile(
            r"(?:\A|(?<=[\n>]))(?P<speaker>system|user|assistant|ai|tool|ipython|observation)\n"
        ),
        result=_tag("response"),
        special=False,
    ),
)
"""How templates lay conversations out; those with tokens that no dialect has come first."""
