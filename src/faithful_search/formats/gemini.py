"""Gemini: `contents` of roles and parts, and the candidate that the model gave to them."""

from typing import Any

from .base import Chat, Format, mapping, mappings
from .messages import is_chat


def read(value: Any) -> Chat | None:
    """A request with `contents`, and the first candidate of its response where that stands beside it."""
    contents = mappings(value, "contents", pure=True)
    if not is_chat(contents):
        return None
    given = mappings(value, "candidates") or mappings(mapping(value, "response"), "candidates")
    said = [{"role": "model", **mapping(candidate, "content")} for candidate in given]
    return Chat([*contents, *said[:1]], left_out={"further candidates": len(said[1:])})


FORMAT = Format("Gemini contents", read, {"contents", "candidates"})
