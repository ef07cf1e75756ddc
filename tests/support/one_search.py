"""The messages of one short conversation in the form of the chat API."""

from typing import Any

QUESTION = "Where was Ada born?"
PASSAGE = "Ada was born in the town of Veldt."
"""What the search returns."""
ARGUMENTS = '{"query": "Ada"}'
ASKED = {"role": "user", "content": QUESTION}
CALL: dict[str, Any] = {
    "id": "1",
    "type": "function",
    "function": {"name": "search", "arguments": ARGUMENTS},
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": PASSAGE}
ANSWER = {"role": "assistant", "content": "Veldt"}
