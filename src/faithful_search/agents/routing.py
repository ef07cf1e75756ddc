"""Routing RAG: ReAct in which the model chooses a tool in each turn, by the question and what it
has read so far (Proof-of-Use, section 4.1).
"""

from typing import Any

from ..trajectory import ToolCall
from .react import React


class Routing(React):
    def actions(self) -> str:
        lines = []
        for schema in self.toolbox.schemas:
            function = schema["function"]
            arguments = ", ".join(function["parameters"]["properties"]) or "nothing"
            lines.append(f"{function['name']}: {function['description']} Takes {arguments}.")
        return "\n".join(lines)

    def calls(self, action: str, arguments: dict[str, Any]) -> list[ToolCall]:
        return [ToolCall(action, arguments)]
