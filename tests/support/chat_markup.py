"""Episodes as models' chat templates write them: those that TRL ships, and others by hand."""

import datetime
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

Arguments = dict[str, Any]


class Call(NamedTuple):
    name: str
    arguments: Arguments
    result: str


class Episode(NamedTuple):
    """A turn with calls, and one that answers."""

    calls: list[Call]
    question: str = "Where was Ada Mirov born?"
    thought: str = "I should search."
    last: str = "So Veldt."
    answer: str = "Veldt"
    system: str = "Be brief."


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def raw(value: Any) -> str:
    """A value as templates write it that have texts without quotes."""
    return value if isinstance(value, str) else as_json(value)


# calls, as each model writes them


def kimi_k2(calls: list[Call]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>"
        f"{as_json(call.arguments)}<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def kimi_k3(calls: list[Call]) -> str:
    kinds = {
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
        list: "array",
        dict: "object",
    }
    written = ""
    for number, call in enumerate(calls, 1):
        inner = "".join(
            f'<|open|>argument key="{key}" type="{kinds.get(type(value), "null")}"<|sep|>{raw(value)}'
            "<|close|>argument<|sep|>"
            for key, value in call.arguments.items()
        )
        written += (
            f'<|open|>call tool="{call.name}" index="{number}"<|sep|>{inner}<|close|>call<|sep|>'
        )
    return f"<|open|>tools<|sep|>{written}<|close|>tools<|sep|>"


def deepseek(calls: list[Call]) -> str:
    written = "\n".join(
        f"<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>{call.name}\n"
        f"```json\n{as_json(call.arguments)}\n```<\uff5ctool\u2581call\u2581end\uff5c>"
        for call in calls
    )
    return (
        f"<\uff5ctool\u2581calls\u2581begin\uff5c>{written}<\uff5ctool\u2581calls\u2581end\uff5c>"
    )


def deepseek_31(calls: list[Call]) -> str:
    written = "".join(
        f"<\uff5ctool\u2581call\u2581begin\uff5c>{call.name}<\uff5ctool\u2581sep\uff5c>"
        f"{as_json(call.arguments)}<\uff5ctool\u2581call\u2581end\uff5c>"
        for call in calls
    )
    return (
        f"<\uff5ctool\u2581calls\u2581begin\uff5c>{written}<\uff5ctool\u2581calls\u2581end\uff5c>"
    )


def deepseek_32(calls: list[Call]) -> str:
    mark, written = "\uff5cDSML\uff5c", ""
    for call in calls:
        inner = "".join(
            f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
            f"{raw(value)}</{mark}parameter>\n"
            for key, value in call.arguments.items()
        )
        written += f'<{mark}invoke name="{call.name}">\n{inner}</{mark}invoke>\n'
    return f"<{mark}function_calls>\n{written}</{mark}function_calls>"


def minimax(calls: list[Call]) -> str:
    written = ""
    for call in calls:
        inner = "".join(
            f'<parameter name="{key}">{raw(value)}</parameter>\n'
            for key, value in call.arguments.items()
        )
        written += f'<invoke name="{call.name}">\n{inner}</invoke>\n'
    return f"<minimax:tool_call>\n{written}</minimax:tool_call>"


def minimax_3(calls: list[Call]) -> str:
    mark, written = "]<]minimax[>[", ""
    for call in calls:
        inner = "".join(
            f"{mark}<{key}>{raw(value)}{mark}</{key}>" for key, value in call.arguments.items()
        )
        written += f'{mark}<invoke name="{call.name}">{inner}{mark}</invoke>'
    return f"{mark}<tool_call>{written}{mark}</tool_call>"


def qwen_coder(calls: list[Call]) -> str:
    written = []
    for call in calls:
        inner = "".join(
            f"<parameter={key}>\n{raw(value)}\n</parameter>\n"
            for key, value in call.arguments.items()
        )
        written.append(f"<tool_call>\n<function={call.name}>\n{inner}</function>\n</tool_call>")
    return "\n".join(written)


def glm(calls: list[Call]) -> str:
    return "\n".join(
        f"<tool_call>{call.name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{raw(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        + "</tool_call>"
        for call in calls
    )


def glm_47(calls: list[Call]) -> str:
    return re.sub(r"(?<=>)\n(?=<)|\n(?=<arg_key>)", "", glm(calls))


def nemotron_h(calls: list[Call]) -> str:
    return f"<TOOLCALL>{as_json([_object(call) for call in calls])}</TOOLCALL>"


def mistral(calls: list[Call]) -> str:
    return f"[TOOL_CALLS] {as_json([_object(call) for call in calls])}"


def mistral_2025(calls: list[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{as_json(call.arguments)}" for call in calls)


def llama(calls: list[Call]) -> str:
    return "; ".join(as_json({"name": call.name, "parameters": call.arguments}) for call in calls)


def llama_tag(calls: list[Call]) -> str:
    return f"<|python_tag|>{llama(calls[:1])}<|eom_id|>"


def command(calls: list[Call]) -> str:
    listed = [{"tool_name": call.name, "parameters": call.arguments} for call in calls]
    return f"<|START_ACTION|>{as_json(listed)}<|END_ACTION|>"


def mcp(calls: list[Call]) -> str:
    return "\n".join(
        f"<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>{call.name}</tool_name>\n"
        f"<arguments>\n{as_json(call.arguments)}\n</arguments>\n</use_mcp_tool>"
        for call in calls
    )


def harmony(calls: list[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
        f"{as_json(call.arguments)}<|call|>"
        for call in calls
    )


def hermes(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{as_json(_object(call))}\n</tool_call>" for call in calls)


def _object(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


FORMS: dict[str, Callable[[list[Call]], str]] = {
    form.__name__: form
    for form in (
        *(
            kimi_k2,
            kimi_k3,
            deepseek,
            deepseek_31,
            deepseek_32,
            minimax,
            minimax_3,
            qwen_coder,
            glm,
        ),
        *(glm_47, nemotron_h, mistral, mistral_2025, llama, llama_tag, command, mcp, harmony),
    )
}
ONE_CALL = ("llama_tag",)
QUOTED = ("minimax", "qwen_coder", "glm", "nemotron_h", "mcp", "llama")
"""Forms that consist of characters only, which a sentence may hold."""

# whole texts


def kimi_k2_text(episode: Episode) -> str:
    calls = episode.calls
    results = "".join(
        f"<|im_system|>tool<|im_middle|>## Return of functions.{call.name}:{number}\n{call.result}<|im_end|>"
        for number, call in enumerate(calls)
    )
    return (
        f"<|im_system|>system<|im_middle|>{episode.system}<|im_end|>"
        f"<|im_user|>user<|im_middle|>{episode.question}<|im_end|>"
        f"<|im_assistant|>assistant<|im_middle|><think>{episode.thought}</think>{kimi_k2(calls)}<|im_end|>"
        f"{results}<|im_assistant|>assistant<|im_middle|><think>{episode.last}</think>{episode.answer}<|im_end|>"
    )


def kimi_k3_text(episode: Episode) -> str:
    def message(role: str, inner: str, more: str = "") -> str:
        opening = f'<|open|>message role="{role}"{more}<|sep|>'
        return f"{opening}{inner}<|close|>message<|sep|><|end_of_msg|>"

    def section(name: str, inner: str) -> str:
        return f"<|open|>{name}<|sep|>{inner}<|close|>{name}<|sep|>"

    first = section("think", episode.thought) + section("response", "") + kimi_k3(episode.calls)
    last = section("think", episode.last) + section("response", episode.answer)
    results = [
        message("tool", call.result, f' tool="{call.name}" index="{number}"')
        for number, call in enumerate(episode.calls, 1)
    ]
    parts = [message("system", episode.system), message("user", episode.question)]
    return "".join([*parts, message("assistant", first), *results, message("assistant", last)])


def deepseek_text(episode: Episode) -> str:
    results = "".join(
        f"<\uff5ctool\u2581output\u2581begin\uff5c>{call.result}<\uff5ctool\u2581output\u2581end\uff5c>"
        for call in episode.calls
    )
    end = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    return (
        f"<\uff5cbegin\u2581of\u2581sentence\uff5c>{episode.system}<\uff5cUser\uff5c>{episode.question}"
        f"<\uff5cAssistant\uff5c><think>{episode.thought}</think>{deepseek(episode.calls)}{end}"
        f"<\uff5ctool\u2581outputs\u2581begin\uff5c>{results}<\uff5ctool\u2581outputs\u2581end\uff5c>"
        f"<think>{episode.last}</think>{episode.answer}{end}"
    )


def deepseek_32_text(episode: Episode) -> str:
    results = "\n".join(f"<result>{call.result}</result>" for call in episode.calls)
    end = "<\uff5cend\u2581of\u2581sentence\uff5c>"
    return (
        f"<\uff5cbegin\u2581of\u2581sentence\uff5c>{episode.system}<\uff5cUser\uff5c>{episode.question}"
        f"<\uff5cAssistant\uff5c><think>{episode.thought}</think>\n\n{deepseek_32(episode.calls)}{end}"
        f"<\uff5cUser\uff5c><function_results>\n{results}\n</function_results>"
        f"<\uff5cAssistant\uff5c><think>{episode.last}</think>{episode.answer}{end}"
    )


def minimax_text(episode: Episode) -> str:
    results = "\n".join(f"<response>{call.result}</response>" for call in episode.calls)
    return (
        f"]~!b[]~b]system\n{episode.system}[e~[\n]~b]user\n{episode.question}[e~[\n"
        f"]~b]ai\n<think>\n{episode.thought}\n</think>\n\n{minimax(episode.calls)}[e~[\n"
        f"]~b]tool\n{results}[e~[\n]~b]ai\n<think>\n{episode.last}\n</think>\n\n{episode.answer}[e~[\n"
    )


def harmony_text(episode: Episode) -> str:
    calls = "".join(
        f"<|start|>assistant{harmony([call])}<|start|>functions.{call.name} to=assistant"
        f"<|channel|>commentary<|message|>{call.result}<|end|>"
        for call in episode.calls[:1]
    )
    return (
        f"<|start|>system<|message|>{episode.system}<|end|><|start|>user<|message|>{episode.question}<|end|>"
        f"<|start|>assistant<|channel|>analysis<|message|>{episode.thought}<|end|>{calls}"
        f"<|start|>assistant<|channel|>analysis<|message|>{episode.last}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{episode.answer}<|return|>"
    )


def llama_text(episode: Episode) -> str:
    def message(role: str, inner: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n{inner}<|eot_id|>"

    calls = episode.calls[:1]
    return "<|begin_of_text|>" + "".join(
        [
            message("system", episode.system),
            message("user", episode.question),
            message("assistant", llama(calls)),
            *(message("ipython", call.result) for call in calls),
            message("assistant", episode.answer),
        ]
    )


def mistral_text(episode: Episode) -> str:
    results = "".join(
        f"[TOOL_RESULTS]{as_json({'content': call.result, 'call_id': str(number)})}[/TOOL_RESULTS]"
        for number, call in enumerate(episode.calls)
    )
    return (
        f"<s>[SYSTEM_PROMPT]{episode.system}[/SYSTEM_PROMPT][INST]{episode.question}[/INST]"
        f"{mistral(episode.calls)}</s>{results}{episode.answer}</s>"
    )


def mcp_text(episode: Episode) -> str:
    def message(role: str, inner: str) -> str:
        return f"<|im_start|>{role}\n{inner}<|im_end|>\n"

    call = episode.calls[0]
    return "".join(
        [
            message("system", episode.system),
            message("user", episode.question),
            message("assistant", f"<think>{episode.thought}</think>\n{mcp([call])}"),
            message("user", call.result),
            message("assistant", f"<think>{episode.last}</think>\n{episode.answer}"),
        ]
    )


TEXTS: dict[str, Callable[[Episode], str]] = {
    text.__name__.removesuffix("_text"): text
    for text in (
        *(kimi_k2_text, kimi_k3_text, deepseek_text, deepseek_32_text, minimax_text, harmony_text),
        *(llama_text, mistral_text, mcp_text),
    )
}
ONE_CALL_TEXTS = ("harmony", "llama", "mcp")
WITHOUT_THOUGHTS = ("llama", "mistral")
_SPECIAL = {
    "kimi_k2": r"<\|[^<>|]{1,40}\|>",
    "kimi_k3": r"<\|(?:open|close|sep|end_of_msg)\|>",
    "deepseek": r"<\uff5c[^<>]{1,40}\uff5c>",
    "minimax": r"\[e~\[|\]~!b\[|\]~b\]",
    "harmony": r"<\|[^<>|]{1,40}\|>",
    "llama": r"<\|[^<>|]{1,40}\|>",
}


def without_special_tokens(name: str, text: str) -> str:
    """The text as a trainer decodes it that skips special tokens."""
    return re.sub(_SPECIAL[name], "", text)


WITHOUT_TOKENS = ("kimi_k2", "kimi_k3", "minimax", "harmony", "llama")

# TRL's templates

TRL = {
    "qwen3_5_think": {}, "qwen3_6": {}, "qwen3_8": {}, "glm4moe": {}, "nemotron_3_nano": {},
    "nemotron_3_super": {}, "nemotron_3_5_lightning": {}, "gptoss": {"thought": "thinking", "one": True},
    "llama3_1": {"one": True}, "llama3_2": {"one": True}, "deepseekv3": {"text": True}, "gemma4_v5": {},
    "lfm2_2_5_v2": {"thought": "thinking"}, "muse_glimmer": {},
}  # fmt: skip
"""How TRL's templates want messages, for those whose calls are in a markup of their own."""


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _stop(reason: str) -> None:
    raise jinja2.TemplateError(reason)


def trl_text(name: str, episode: Episode) -> str:
    """The episode as this template of TRL's writes it."""
    import trl

    wants = TRL[name]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = lambda value, **_: as_json(value)
    environment.globals["raise_exception"] = _stop
    environment.globals["strftime_now"] = datetime.datetime(2026, 11, 28).strftime
    template = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    schema = {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {}},
    }
    return environment.from_string(template.read_text("utf-8")).render(
        messages=list(_messages(episode, wants)),
        tools=[{"type": "function", "function": schema}],
        bos_token="",
        eos_token="",
        add_generation_prompt=False,
        enable_thinking=True,
    )


def _messages(episode: Episode, wants: dict[str, Any]) -> Iterator[dict[str, Any]]:
    thought = wants.get("thought", "reasoning_content")
    calls = episode.calls[:1] if wants.get("one") else episode.calls
    made = []
    for number, call in enumerate(calls):
        arguments = as_json(call.arguments) if wants.get("text") else call.arguments
        function = {"name": call.name, "arguments": arguments}
        made.append({"id": f"call_{number}", "type": "function", "function": function})
    yield {"role": "system", "content": episode.system}
    yield {"role": "user", "content": episode.question}
    yield {"role": "assistant", "content": "", "tool_calls": made, thought: episode.thought}
    for number, call in enumerate(calls):
        yield {
            "role": "tool",
            "tool_call_id": f"call_{number}",
            "name": call.name,
            "content": call.result,
        }
    yield {"role": "assistant", "content": episode.answer, thought: episode.last}
