"""verifiers: a trace, whose nodes are messages, each with the one before it."""

from __future__ import annotations

from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .blocks import first
from .messages import is_chat


class Verifiers(Format):
    """One line of a `traces.jsonl`: the messages on the way to the last node; other branches are left out."""

    what = "a verifiers trace"
    marks = frozenset({"nodes"})

    def read(self, value: Any) -> Chat | None:
        nodes = mappings(mapping(value).get("nodes"))
        if not nodes or not all("message" in node for node in nodes):
            return None
        path: list[int] = []
        at: Any = len(nodes) - 1
        # A trace may be broken: parents that go in a circle must end, too.
        while isinstance(at, int) and 0 <= at < len(nodes) and at not in path[-1:] and len(path) < len(nodes):
            path.append(at)
            at = nodes[at].get("parent")
        messages = [nodes[at]["message"] for at in reversed(path)]
        if not is_chat(messages):
            return None
        data = mapping(value, "task", "data")
        beside = len(nodes) - len(path)
        left = (f"{beside} messages of other branches",) if beside else ()
        answers = first(data, ("answers", "answer", "target", "ground_truth"))
        return Chat(messages, text(first(data, ("question", "prompt"))), answers, str(value.get("id", "")), left)
