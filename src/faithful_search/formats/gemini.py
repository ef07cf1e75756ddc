"""Gemini: `contents` of roles and parts, and the candidate that the model gave to them."""

from __future__ import annotations

from typing import Any

from .base import Chat, Format, mapping, mappings, only_mappings
from .messages import is_chat


class Gemini(Format):
    """A request with `contents`, and the first candidate of its response where that stands beside it."""

    what = "Gemini contents"
    marks = frozenset({"contents", "candidates"})

    def read(self, value: Any) -> Chat | None:
        contents = only_mappings(mapping(value).get("contents"))
        if not is_chat(contents):
            return None
        given = value.get("candidates") or mapping(value, "response").get("candidates")
        said = [{"role": "model", **mapping(candidate, "content")} for candidate in mappings(given)]
        more = (f"{len(said) - 1} further candidates",) if len(said) > 1 else ()
        return Chat([*contents, *said[:1]], left_out=more)
