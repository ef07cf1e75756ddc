"""The toolbox's tools in a smolagents agent.

```
pip install smolagents && python examples/smolagents_agent.py "What is the capital of Australia?"
python examples/smolagents_agent.py "…" --model HuggingFaceTB/SmolLM3-3B      # a model of the Hub's Inference Providers
```

Without `--model` a scripted stand-in searches once and repeats the first line it finds, to show the
wiring without one.
"""

import argparse
import asyncio
import inspect
import json
from typing import Any

from smolagents import InferenceClientModel, Model, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    get_clean_message_list,
)

from faithful_search import Toolbox, tool_functions
from faithful_search.tools import KnowledgeGraph, LocalSearch


def smolagents_tools(toolbox: Toolbox) -> list[Tool]:
    """Each tool as a `smolagents.Tool`; evidence comes as text with ids, failures as text too."""
    described = {schema["function"]["name"]: schema["function"] for schema in toolbox.schemas}
    return [_tool(function, described[function.__name__]) for function in tool_functions(toolbox)]


def _tool(function: Any, schema: dict[str, Any]) -> Tool:
    def forward(self: Tool, *values: Any, **arguments: Any) -> str:
        return asyncio.run(function(*values, **arguments))

    own = list(inspect.signature(function).parameters.values())
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *own]
    )
    optional = {item.name for item in own if item.default is not item.empty}
    inputs = {
        name: {
            **{key: about[key] for key in ("description", "items") if key in about},
            "type": _kind(about),
            **({"nullable": True} if name in optional else {}),
        }
        for name, about in schema["parameters"]["properties"].items()
    }
    members = {
        "name": schema["name"],
        "description": schema["description"],
        "inputs": inputs,
        "output_type": "string",
    }
    return type(schema["name"], (Tool,), {**members, "forward": forward})()


def _kind(about: dict[str, Any]) -> str:
    kinds = {item.get("type") for item in about.get("anyOf", [about])} - {"null"}
    return kinds.pop() if len(kinds) == 1 else "any"


class Scripted(Model):
    """Searches for the task, then answers with the first line of what was found."""

    def generate(self, messages: list[Any], **kwargs: Any) -> ChatMessage:
        chat = get_clean_message_list(messages, flatten_messages_as_text=True)
        found = [
            line for item in chat for line in str(item["content"]).splitlines() if "[E1]: " in line
        ]
        task = str(chat[1]["content"]).removeprefix("New task:").strip()
        name, arguments = (
            ("final_answer", {"answer": found[0]}) if found else ("local_search", {"query": task})
        )
        call = ChatMessageToolCallFunction(name=name, arguments=json.dumps(arguments))
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            content="",
            tool_calls=[ChatMessageToolCall(id="call", type="function", function=call)],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument(
        "--model", help="a model of the Hub's Inference Providers; its key is read from HF_TOKEN"
    )
    given = parser.parse_args()
    model = InferenceClientModel(model_id=given.model) if given.model else Scripted()
    with Toolbox(
        [LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]
    ) as toolbox:
        agent = ToolCallingAgent(tools=smolagents_tools(toolbox), model=model, max_steps=6)
        print(agent.run(given.question))


if __name__ == "__main__":
    main()
