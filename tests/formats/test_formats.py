"""Two episodes as every format writes them: each is read to the same steps, and so gets the same
scores.

Where a format's package is installed, its own classes check or make the rows.
"""

import contextlib
import importlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from faithful_search import formats
from faithful_search.measure import metrics
from faithful_search.reading.rows import READER, read_trajectories
from faithful_search.trajectory import Trajectory


class Call(NamedTuple):
    """A call and what it returned: a text, maybe with an image, or the reason why it failed."""

    id: str
    name: str
    arguments: dict[str, Any]
    returned: str = ""
    failed: bool = False
    image: bool = False


class Episode(NamedTuple):
    """What the agent did: turns of a thought and calls, a last thought, the answer.

    A `reasoning` agent has its thoughts in the field that an API has for them, and hands its answer
    in with a tool.
    """

    question: str
    turns: list[tuple[str, list[Call]]]
    last: str
    answer: str
    system: str = ""
    reasoning: bool = False

    def done(self, hands: str = "") -> list[tuple[str, list[Call]]]:
        """The turns, with that in which the answer is handed in; some programs' agents always do,
        with this tool.
        """
        tool = hands or ("final_answer" if self.reasoning else "")
        handed = (self.last, [Call("z", tool, {"answer": self.answer}, self.answer)])
        return [*self.turns, handed] if tool else self.turns


FOUND = '{"results": [{"title": "Faust", "link": "https://e.org/faust", "snippet": "by Goethe"}, {"content": "2 km"}]}'
BRIDGE = "Horace Jones († 1887) entwarf sie.\nJ. W. Barry vollendete sie: 1 < 2 &amp; <b>fett</b>."
BRIDGES = [{"title": "Tower Bridge • Geschichte", "url": "https://e.org/b?x=1&y=ü", "text": BRIDGE}]
EPISODES = {
    # three calls at once, of which one fails and one returns nothing; one without a thought; a page
    # with an image
    "author": Episode(
        "Where was the author of Faust born?",
        [
            ("I look up both.", [
                Call("c1", "search", {"query": "author of Faust"}, FOUND),
                Call("c2", "search", {"query": "Goethe born"}, "time-out", failed=True),
                Call("c3", "lookup", {"title": "Goethe", "section": 2}),
            ]),
            ("", [Call("c4", "search", {"query": "Goethe birthplace"}, "[]")]),
            ("I open his page.", [
                Call("c5", "browse", {"url": "https://e.org/goethe"}, "Goethe was born in Frankfurt.", image=True)
            ]),
        ],
        "So it is Frankfurt.",
        "Frankfurt",
    ),
    # several lines, many scripts, a system prompt, a thought in each turn, an answer through a tool
    "bridge": Episode(
        "Wer entwarf die „Tower Bridge“?\n請用一句話回答。",
        [
            ("Zuerst suchen:\n• Architekt?", [
                Call("c1", "search", {"query": "Tower Bridge 建築師"}, json.dumps(BRIDGES, ensure_ascii=False))
            ]),
            ("Die Seite hat ein Bild:\nansehen 🌍.", [
                Call("c2", "browse", {"url": "https://e.org/b"}, "Entwurf: Jones\n設計: 霍勒斯·瓊斯 🏛️", image=True)
            ]),
        ],
        "Beide nennen\nHorace Jones.",
        "Horace Jones\n(霍勒斯·瓊斯)",
        "Antworte knapp.\nBenutze Werkzeuge · 🌍.",
        reasoning=True,
    ),
}  # fmt: skip
# Of each step: the thought, which call, its evidence, its note, the answer, whether it is of the
# turn before.
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "author": [
        ("I look up both.", "c1", [("Faust", "https://e.org/faust", "by Goethe"), ("", "", "2 km")], "", None, False),
        (None, "c2", [], "time-out", None, True),
        (None, "c3", [], "", None, True),
        (None, "c4", [], "[]", None, False),
        ("I open his page.", "c5", [("", "", "Goethe was born in Frankfurt.")], "", None, False),
        ("So it is Frankfurt.", None, [], "", "Frankfurt", False),
    ],
    "bridge": [
        ("Zuerst suchen:\n• Architekt?", "c1",
         [("Tower Bridge • Geschichte", "https://e.org/b?x=1&y=ü", BRIDGE)], "", None, False),
        ("Die Seite hat ein Bild:\nansehen 🌍.", "c2",
         [("", "", "Entwurf: Jones\n設計: 霍勒斯·瓊斯 🏛️")], "", None, False),
        ("Beide nennen\nHorace Jones.", None, [], "", "Horace Jones\n(霍勒斯·瓊斯)", False),
    ],
}  # fmt: skip
FORMATS: dict[str, Any] = {}


def checked(name: str, kind: str, value: Any, **options: Any) -> Any:
    """The value as this class of a package dumps it, where the package is installed."""
    try:
        found = getattr(importlib.import_module(name), kind).model_validate(value)
    except ImportError:
        return value
    return json.loads(found.model_dump_json(exclude_none=True, **options))


def written(make: Any) -> Any:
    FORMATS[make.__name__] = make
    return make


def chat(e: Episode) -> list[dict[str, Any]]:
    """The episode as chat completions have it; an image stands beside the page's text."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": e.system}] if e.system else []
    messages.append({"role": "user", "content": e.question})
    for thought, calls in e.done():
        made = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
            }
            for c in calls
        ]
        said = (
            {"reasoning_content": thought, "content": ""}
            if e.reasoning
            else {"content": thought or None}
        )
        messages.append({"role": "assistant", **said, "tool_calls": made})
        messages += [{"role": "tool", "tool_call_id": c.id, "content": returned(c)} for c in calls]
    return (
        messages
        if e.reasoning
        else [*messages, {"role": "assistant", **thinking(e), "content": e.answer}]
    )


def thinking(e: Episode) -> dict[str, str]:
    return {"reasoning_content": e.last} if e.last else {}


def returned(c: Call, text: str = "text", image: str = "image_url") -> Any:
    if c.image:
        return [{"type": text, "text": c.returned}, {"type": image, "image_url": {"url": "data:…"}}]
    return json.dumps({"error": c.returned}) if c.failed else c.returned


@written
def openai(e: Episode) -> Any:
    dumped = [
        message
        if message["role"] != "assistant"
        else checked("openai.types.chat", "ChatCompletionMessage", message)
        for message in chat(e)
    ]
    return {"messages": dumped}


@written
def anthropic(e: Episode) -> Any:
    def result(c: Call) -> dict[str, Any]:
        if c.returned.startswith('[{"'):
            return {"content": [
                {"type": "search_result", "source": p["url"], "title": p["title"],
                 "content": [{"type": "text", "text": p["text"]}]}
                for p in json.loads(c.returned)
            ]}  # fmt: skip
        image = [{"type": "image", "source": {"type": "base64"}}] if c.image else []
        whole: Any = [{"type": "text", "text": c.returned}, *image] if image else c.returned
        return {**({"content": whole} if whole else {}), **({"is_error": True} if c.failed else {})}

    def thought(said: str, apart: bool) -> list[dict[str, Any]]:
        block = (
            {"type": "thinking", "thinking": said, "signature": "x"}
            if apart
            else {"type": "text", "text": said}
        )
        return [block] if said else []

    messages: list[dict[str, Any]] = [{"role": "user", "content": e.question}]
    for said, calls in e.done():
        uses = [
            {"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in calls
        ]
        messages.append({"content": [*thought(said, e.reasoning), *uses]})
        back = [{"type": "tool_result", "tool_use_id": c.id, **result(c)} for c in reversed(calls)]
        messages.append({"role": "user", "content": back})
    if not e.reasoning:
        messages.append({"content": [*thought(e.last, True), {"type": "text", "text": e.answer}]})
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": None, "stop_sequence": None,
    }  # fmt: skip
    dumped = [
        message
        if "role" in message
        else checked("anthropic.types", "Message", {**whole, "usage": usage, **message})
        for message in messages
    ]
    return {"system": e.system, "messages": dumped}


def items(e: Episode) -> list[dict[str, Any]]:
    """The episode as items of OpenAI's Responses."""

    def thought(said: str, number: int) -> list[dict[str, Any]]:
        summary = [] if e.reasoning else [{"type": "summary_text", "text": said}]
        content = {"content": [{"type": "reasoning_text", "text": said}]} if e.reasoning else {}
        item = {"type": "reasoning", "id": f"r{number}", "summary": summary, **content}
        return [checked("openai.types.responses", "ResponseReasoningItem", item)] if said else []

    made: list[dict[str, Any]] = []
    for number, (said, calls) in enumerate(e.done()):
        made += thought(said, number)
        for c in calls:
            call = {"type": "function_call", "id": f"f{c.id}", "call_id": c.id, "name": c.name,
                    "arguments": json.dumps(c.arguments)}  # fmt: skip
            made.append(checked("openai.types.responses", "ResponseFunctionToolCall", call))
        made += [
            {
                "type": "function_call_output",
                "call_id": c.id,
                "output": returned(c, "input_text", "input_image"),
            }
            for c in calls
        ]
    said_last = {"type": "output_text", "text": e.answer, "annotations": []}
    message = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [said_last],
    }
    return made if e.reasoning else [*made, *thought(e.last, 9), message]


@written
def responses(e: Episode) -> Any:
    return {
        "object": "response",
        "id": "r",
        "instructions": e.system,
        "input": e.question,
        "output": items(e),
    }


@written
def responses_in_and_out(e: Episode) -> Any:
    """The last response, with all items before it as its input."""
    made = items(e)[: -1 if e.reasoning else None]
    at = max(place for place, item in enumerate(made) if item["type"] == "function_call_output") + 1
    asked = [{"role": "developer", "content": e.system}, {"role": "user", "content": e.question}]
    return {"input": [*asked, *made[:at]], "output": made[at:]}


def langchain_messages(e: Episode) -> list[tuple[str, dict[str, Any]]]:
    def reasoned(thought: str, *more: Any) -> list[Any]:
        return [*([{"type": "reasoning", "reasoning": thought}] if thought else []), *more]

    made: list[tuple[str, dict[str, Any]]] = [("System", {"content": e.system})] if e.system else []
    made.append(("Human", {"content": e.question}))
    for thought, calls in e.done():
        asked = [
            {"id": c.id, "name": c.name, "args": c.arguments, "type": "tool_call"} for c in calls
        ]
        made.append(
            ("AI", {"content": reasoned(thought) if e.reasoning else thought, "tool_calls": asked})
        )
        for c in calls:
            status = "error" if c.failed else "success"
            content = c.returned if c.failed else returned(c)
            made.append(
                (
                    "Tool",
                    {"content": content, "tool_call_id": c.id, "name": c.name, "status": status},
                )
            )
    if not e.reasoning:
        made.append(("AI", {"content": reasoned(e.last, {"type": "text", "text": e.answer})}))
    full = [(kind, {**fields, "type": kind.lower()}) for kind, fields in made]
    return [
        (kind, checked("langchain_core.messages", f"{kind}Message", fields))
        for kind, fields in full
    ]


@written
def langchain(e: Episode) -> Any:
    """As `dumpd` writes messages."""
    dumped = [
        {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", f"{kind}Message"],
            "kwargs": fields,
        }
        for kind, fields in langchain_messages(e)
    ]
    return {"messages": dumped}


@written
def langchain_dicts(e: Episode) -> Any:
    """As `messages_to_dict` writes them, in a graph's state."""
    return {
        "values": {
            "messages": [
                {"type": kind.lower(), "data": fields} for kind, fields in langchain_messages(e)
            ]
        }
    }


@written
def gemini(e: Episode) -> Any:
    """An image stands beside the response in the message, or in the response itself."""

    def response(c: Call) -> dict[str, Any]:
        value = json.loads(c.returned) if c.returned[:1] in ("[", "{") else c.returned or None
        given = (
            {"error": value}
            if c.failed
            else value
            if isinstance(value, dict)
            else {"result": value}
        )
        image = (
            {"parts": [{"inlineData": {"data": "eA==", "mimeType": "image/png"}}]}
            if c.image
            else {}
        )
        return {"id": c.id, "name": c.name, "response": given, **(image if e.reasoning else {})}

    def thought(said: str) -> list[Any]:
        return [{"text": said, "thought": True}] if said else []

    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": e.question}]}]
    for said, calls in e.done():
        asked = [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in calls]
        contents.append({"role": "model", "parts": [*thought(said), *asked]})
        contents.append(
            {"role": "user", "parts": [{"functionResponse": response(c)} for c in calls]}
        )
        if calls[-1].image and not e.reasoning:
            contents[-1]["parts"].append({"inlineData": {"data": "eA==", "mimeType": "image/png"}})
    if e.reasoning:
        contents.pop()  # the last candidate has no response yet
    else:
        contents.append({"role": "model", "parts": [*thought(e.last), {"text": e.answer}]})
    dumped = [checked("google.genai.types", "Content", item, by_alias=True) for item in contents]
    system = {"systemInstruction": {"parts": [{"text": e.system}]}}
    return {**system, "contents": dumped[:-1], "candidates": [{"content": dumped[-1]}]}


@written
def inspect_ai(e: Episode) -> Any:
    """`basic_agent` leaves the call that hands in the answer; `react` writes the answer into the
    message instead.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": e.system}] if e.system else []
    messages.append({"role": "user", "content": e.question})
    kept: dict[str, str] = {}
    for thought, calls in e.done("submit") if e.reasoning else e.turns:
        asked = [
            {"id": c.id, "function": c.name, "arguments": c.arguments, "type": "function"}
            for c in calls
        ]
        content: Any = [{"type": "reasoning", "reasoning": thought}] if e.reasoning else thought
        messages.append({"role": "assistant", "content": content, "tool_calls": asked})
        for c in calls:
            back: Any = "" if c.failed else c.returned
            if c.image:  # what is long is stored apart
                kept = {"a1": c.returned, "a2": "data:image/png;base64,eA=="}
                back = [
                    {"type": "text", "text": "attachment://a1"},
                    {"type": "image", "image": "attachment://a2"},
                ]
            failed = {"error": {"type": "timeout", "message": c.returned}} if c.failed else {}
            messages.append(
                {
                    "role": "tool",
                    "content": back,
                    "tool_call_id": c.id,
                    "function": c.name,
                    **failed,
                }
            )
    said = {
        "role": "assistant",
        "content": "\n\n".join(filter(None, (e.last, e.answer))),
        "tool_calls": [],
    }
    event = {
        "event": "tool", "id": "z", "function": "submit", "arguments": {"answer": e.answer}, "result": e.answer,
        "timestamp": "2026-11-23T12:00:00+00:00", "working_start": 1.0, "events": [],
    }  # fmt: skip
    sample = {
        "id": "7", "epoch": 1, "input": e.question, "target": [e.answer, "another"], "attachments": kept,
        "messages": messages if e.reasoning else [*messages, said], "events": [] if e.reasoning else [event],
    }  # fmt: skip
    return checked("inspect_ai.log", "EvalSample", sample)


@written
def atif(e: Episode) -> Any:
    def content(c: Call) -> dict[str, Any]:
        image = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
        whole = [{"type": "text", "text": c.returned}, image] if c.image else returned(c)
        return {"source_call_id": c.id, **({"content": whole} if whole else {})}

    steps: list[dict[str, Any]] = [{"source": "system", "message": e.system}] if e.system else []
    steps.append({"source": "user", "message": e.question})
    for thought, calls in e.done():
        asked = [
            {"tool_call_id": c.id, "function_name": c.name, "arguments": c.arguments} for c in calls
        ]
        said = (
            {"message": "", "reasoning_content": thought} if e.reasoning else {"message": thought}
        )
        results = {"results": [content(c) for c in calls]}
        steps.append({"source": "agent", **said, "tool_calls": asked, "observation": results})
    if not e.reasoning:
        steps.append({"source": "agent", "message": e.answer, **thinking(e)})
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    agent = {"name": "a", "version": "1"}
    document = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": numbered}
    return checked("atif", "Trajectory", document)


@written
def smolagents(e: Episode) -> Any:
    """An agent's memory, which keeps nothing that calls at once returned where one of them
    fails.
    """
    steps: list[dict[str, Any]] = [{"task": e.question, "task_images": None}]
    for number, (thought, calls) in enumerate(e.done("final_answer"), start=1):
        made = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls
        ]
        failed = [FAILED.format(c.arguments, c.returned) for c in calls if c.failed]
        step = {
            "step_number": number,
            "model_output": thought or None,
            "tool_calls": [] if failed else made,
        }
        step["model_output_message"] = {
            "role": "assistant",
            "content": thought or None,
            "tool_calls": made,
        }
        step["error"] = (
            {"type": "AgentToolExecutionError", "message": failed[0]} if failed else None
        )
        step["observations"] = None if failed else calls[-1].returned
        step["observations_images"] = ["…"] if calls[-1].image else None
        steps.append(
            {**step, "action_output": None, "is_final_answer": calls[0].name == "final_answer"}
        )
    return {"steps": steps}


@written
def verifiers(e: Episode) -> Any:
    """Nodes of a trace; a branch that was left stands among them."""
    nodes = [
        {"parent": k - 1 if k else None, "message": message} for k, message in enumerate(chat(e))
    ]
    for node in nodes:
        calls = node["message"].pop("tool_calls", [])
        if calls:  # flat, unlike OpenAI's
            node["message"]["tool_calls"] = [
                {"id": one["id"], "type": "function", **one["function"]} for one in calls
            ]
    nodes[-1]["parent"] = len(nodes) - 2
    nodes.insert(
        len(nodes) - 1, {"parent": 0, "message": {"role": "assistant", "content": "another try"}}
    )
    nodes = [checked("verifiers.v1.graph", "MessageNode", node) for node in nodes]
    data = {"prompt": e.question, "answer": e.answer}
    return {"version": 1, "id": "t", "task": {"type": "Search", "data": data}, "nodes": nodes}


@written
def trl(e: Episode) -> Any:
    """A row of TRL's completions as its parquet gives it back: with every field in every message
    and every call.
    """
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    messages = chat(e)
    made = iter([c for _, calls in e.done() for c in calls])
    for message in messages:
        for call in message.get("tool_calls", []):
            call.pop("id")
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if message.pop("tool_call_id", None):
            c = next(made)
            message |= {
                "name": c.name,
                "content": str({"error": c.returned}) if c.failed else c.returned,
            }
    start = 2 if e.system else 1
    row = {
        "step": 3,
        "prompt": messages[:start],
        "completion": messages[start:],
        "em": 1.0,
        "advantage": 0.5,
    }
    pandas.DataFrame([row]).to_parquet(file := io.BytesIO())
    return parquet.read_table(file).to_pylist()[0]


@written
def trackio(e: Episode) -> Any:
    spans = [{"id": "1", "name": "search", "kind": "tool"}]
    return (
        pytest.importorskip("trackio")
        .Trace(chat(e), {"reward": 1.0}, spans)
        ._to_dict("project", "run")
    )


@written
def claude_code(e: Episode) -> Any:
    """Each block of a message on a line of its own."""
    lines: list[dict[str, Any]] = [{"type": "summary", "summary": "Faust", "leafUuid": "u"}]
    lines.append(
        {
            "type": "user",
            "isMeta": True,
            "sessionId": "s",
            "message": {"role": "user", "content": "caveat"},
        }
    )
    for message in anthropic(e)["messages"]:
        for block in (
            message["content"] if isinstance(message["content"], list) else [message["content"]]
        ):
            line = {
                "parentUuid": str(len(lines)),
                "sessionId": "s",
                "uuid": str(len(lines) + 1),
                "isSidechain": False,
            }
            own = {**message, "content": block if isinstance(block, str) else [block]}
            lines.append({**line, "type": message["role"], "message": own})
    side = {"role": "assistant", "content": "side"}
    return {"lines": [*lines, {**line, "type": "assistant", "isSidechain": True, "message": side}]}


@written
def codex(e: Episode) -> Any:
    def line(kind: str, payload: Any) -> dict[str, Any]:
        return {"timestamp": "t", "type": kind, "payload": payload}

    def told(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    given = [
        told("developer", e.system),
        told("user", "<environment_context>\n</environment_context>"),
    ]
    events = [line("event_msg", {"type": "token_count"}), line("turn_context", {"cwd": "/"})]
    said = [line("response_item", item) for item in (*given, told("user", e.question), *items(e))]
    return {"lines": [line("session_meta", {"id": "s"}), *events, *said]}


@written
def pi(e: Episode) -> Any:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": e.question}]}
    ]

    def thought(said: str) -> list[dict[str, Any]]:
        return [{"type": "thinking", "thinking": said}] if said else []

    for said, calls in e.done():
        asked = [
            {"type": "toolCall", "id": c.id, "name": c.name, "arguments": c.arguments}
            for c in calls
        ]
        messages.append({"role": "assistant", "content": [*thought(said), *asked]})
        for c in calls:
            content = [{"type": "text", "text": c.returned}]
            content += [{"type": "image", "data": "…"}] if c.image else []
            result = {
                "role": "toolResult",
                "toolCallId": c.id,
                "toolName": c.name,
                "content": content,
            }
            messages.append({**result, "isError": c.failed})
    if not e.reasoning:
        messages.append(
            {"role": "assistant", "content": [*thought(e.last), {"type": "text", "text": e.answer}]}
        )
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"}
    ]
    for number, message in enumerate(messages):
        parent = str(number - 1) if number else None
        lines.append({"type": "message", "id": str(number), "parentId": parent, "message": message})
    other = {"role": "assistant", "content": "other"}
    lines.insert(3, {"type": "message", "id": "b", "parentId": "0", "message": other})
    return {"lines": lines}


@written
def otel(e: Episode) -> Any:
    """The spans of two calls of a model: the later one was given all that came before."""
    told = []
    for message in chat(e):
        content = message["content"]
        text, *image = (
            [item.get("text") for item in content] if isinstance(content, list) else [content]
        )
        if message["role"] == "tool":
            parts = [
                {"type": "tool_call_response", "id": message["tool_call_id"], "response": text}
            ]
            parts += [{"type": "blob", "modality": "image", "content": "eA=="} for _ in image]
        else:
            thought = message.get("reasoning_content")
            parts = [{"type": "reasoning", "content": thought}] if thought else []
            parts += [{"type": "text", "content": text}] if text else []
            parts += [
                {"type": "tool_call", "id": i["id"], **i["function"]}
                for i in message.get("tool_calls", [])
            ]
        told.append({"role": message["role"], "parts": parts})
    told = told[: -1 if e.reasoning else None]  # what the last call returned went to no model

    def span(before: list[Any], after: list[Any]) -> dict[str, Any]:
        names = {"gen_ai.input.messages": before, "gen_ai.output.messages": after}
        attributes = [
            {"key": key, "value": {"stringValue": json.dumps(value)}}
            for key, value in names.items()
        ]
        return {"traceId": "t", "spanId": "1", "name": "chat", "attributes": attributes}

    spans = [
        span(told[:1], told[1:2]),
        span(told[:-1], told[-1:]),
        {"traceId": "t", "attributes": []},
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


REACT = """Answer the following questions as best you can. Use the following format:

Question: the input question you must answer
Thought: you should always think about what to do
Action: the action to take, should be one of [search, browse]
Observation: the result of the action
Final Answer: the final answer to the original input question

Begin!

"""


@written
def react(e: Episode) -> Any:
    """A text after LangChain's prompt, which has neither parallel calls nor images."""
    lines = [f"{REACT}Question: {e.question}"]
    for thought, calls in e.turns:
        if len(calls) > 1:
            pytest.skip("no parallel calls")
        (c,) = calls
        asked = json.dumps(c.arguments, ensure_ascii=False)
        lines += [
            f"Thought: {thought}",
            f"Action: {c.name}",
            f"Action Input: {asked}",
            f"Observation: {c.returned}",
        ]
    return {"output": "\n".join([*lines, f"Thought: {e.last}", f"Final Answer: {e.answer}"])}


def installed(name: str) -> dict[str, Any]:
    """An episode's rows in all formats that can express it and whose packages are here."""
    rows = {}
    for made, make in FORMATS.items():
        with contextlib.suppress(pytest.skip.Exception):
            rows[made] = json.loads(json.dumps(make(EPISODES[name])))
    return rows


def steps(found: Trajectory) -> list[tuple[Any, ...]]:
    return [
        (
            step.think,
            step.call and (step.call.name, step.call.arguments),
            [(item.title, item.url, item.text) for item in step.evidence],
            step.note,
            step.answer,
            step.same_turn,
        )
        for step in found.steps
    ]


LEAVE_OUT = {"verifiers", "claude_code", "pi", "react"}
"""Formats whose rows hold other branches, or a prompt's example."""
NO_IMAGES = {"react", "trl"}
FAILED = "Error executing tool 'search' with arguments {}: RuntimeError: {}\nPlease try again or use another tool"
SMOLAGENTS: list[tuple[Any, ...]] = [
    ("I look up both.", "c1", [], "", None, False),
    (None, "c2", [], "", None, True),
    (None, "c3", [], FAILED.format({"query": "Goethe born"}, "time-out"), None, True),
]
"""How the episode with a call that fails begins."""


@pytest.mark.parametrize("episode", EPISODES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_part_of_an_episode_comes_out_right(name: str, episode: str) -> None:
    e, expected = EPISODES[episode], EXPECTED[episode]
    if (name, episode) == ("smolagents", "author"):
        expected = [*SMOLAGENTS, *expected[len(SMOLAGENTS) :]]
    made = {c.id: (c.name, c.arguments) for _, calls in e.turns for c in calls}
    row = json.dumps(FORMATS[name](e))
    assert sum(each.read(json.loads(row)) is not None for each in formats.formats().values()) <= 1
    found = READER.parse(row.encode())
    assert steps(found) == [
        (think, made[called] if called else None, *rest) for think, called, *rest in expected
    ]
    assert (found.question, found.answer, found.dialect) == (e.question, e.answer, "openai")
    images = any(c.image for _, calls in e.turns for c in calls) and name not in NO_IMAGES
    kinds = {"content_unread"} if images or name in LEAVE_OUT else set()
    assert {issue.kind for issue in found.all_issues()} == kinds


def test_the_same_episode_gets_the_same_scores() -> None:
    rows = [READER.parse(json.dumps(row).encode()) for row in installed("bridge").values()]
    rewards = [
        own
        for name in metrics.names()
        if name != "evidence_sensitivity"
        for own in metrics.load(name).values()
    ]
    answered = [msgspec.structs.replace(row, answers=(EPISODES["bridge"].answer,)) for row in rows]
    assert len({tuple(reward.score(row).value for reward in rewards) for row in answered}) == 1
    assert len(rows) > 12


def test_both_kinds_of_inspects_logs_hold_the_same_samples(tmp_path: Path) -> None:
    samples = [FORMATS["inspect_ai"](e) for e in EPISODES.values()]
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as log:
        log.writestr("header.json", "{}")
        for number, sample in enumerate(samples, start=1):
            log.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
    (tmp_path / "log.json").write_text(
        json.dumps({"version": 2, "eval": {"task": "search"}, "samples": samples})
    )
    one, two = (
        [row.trajectory for row in read_trajectories(tmp_path / name)]
        for name in ("log.eval", "log.json")
    )
    assert one == two == [READER.parse(json.dumps(sample).encode()) for sample in samples]
