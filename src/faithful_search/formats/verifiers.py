"""verifiers: a trace, whose nodes are messages, each with the one before it."""

from typing import Any

from .base import Chat, Format, branch, first, mapping, mappings, text


def read(value: Any) -> Chat | None:
    """One line of a `traces.jsonl`: the messages on the way to the last node; other branches are
    left out.
    """
    nodes = mappings(value, "nodes")
    if not nodes or not all("message" in node for node in nodes):
        return None
    path = branch({str(number): node for number, node in enumerate(nodes)}, "parent")
    data = mapping(value, "task", "data")
    answers = first(data, ("answers", "answer", "target", "ground_truth"))
    question = text(first(data, ("question", "prompt")))
    beside = {"messages of other branches": len(nodes) - len(path)}
    return Chat(
        [node["message"] for node in path], question, answers, str(value.get("id", "")), beside
    )


FORMAT = Format("a verifiers trace", read, {"nodes"})
