"""Routing RAG: ReAct in which the model chooses a tool in each turn, by the question and what it
has read so far (Proof-of-Use, section 4.1).
"""

from typing import Any

from ..trajectory import ToolCall
from .react import React


class Routing(React):
    def actions(self) -> str:
        """A line for each tool: its name, what it does, and which arguments it takes."""
        lines = []
        for schema in self.toolbox.schemas:
            function = schema["function"]
            arguments = ", ".join(function["parameters"]["properties"]) or "nothing"
            lines.append(f"{function['name']}: {function['description']} Takes {arguments}.")
        return "\n".join(lines)

    def calls(self, action: str, arguments: dict[str, Any]) -> list[ToolCall]:
        """The call of the tool that the model named, whether there is such a tool or not."""
        return [ToolCall(action, arguments)]
