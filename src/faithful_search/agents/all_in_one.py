"""All-in-one RAG: ReAct with one action, a search of everything at once.

In Proof-of-Use (section 4.1) it "fuses multiple retrievers into a unified interface": a query goes
to every tool that takes one, in parallel, and the model reads what all of them return.
"""

from typing import Any

from ..tools.toolbox import searches
from ..trajectory import ToolCall
from .react import React

_ACTION = "search"


class AllInOne(React):
    def actions(self) -> str:
        sources = ", ".join(searches(self.toolbox))
        return f"{_ACTION}: look the words of the input up in all sources at once ({sources})."

    def calls(self, action: str, arguments: dict[str, Any]) -> list[ToolCall]:
        sources = searches(self.toolbox)
        # A model that names one of the sources means to search, too.
        if action.strip().lower() not in (_ACTION, *sources):
            return []
        return [ToolCall(name, arguments) for name in sources]
