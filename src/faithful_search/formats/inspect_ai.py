"""inspect_ai: the samples of a log, of `.eval` (a zip of them) and `.json` alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .base import Chat, Format, mapping, text
from .messages import is_chat

_SCHEME = "attachment://"


class InspectAI(Format):
    """One sample, an `EvalSample`."""

    what: ClassVar[str] = "an inspect_ai sample"
    marks: ClassVar[frozenset[str]] = frozenset(
        (
            "epoch",
            "target",
            "eval",
        )
    )

    def read(self, value: Any) -> Chat | None:
        """Its messages, with what was stored apart from them put back; its target is the gold answer."""
        if not isinstance(value, Mapping) or not {"messages", "epoch", "target"} <= value.keys():
            return None
        kept = mapping(value, "attachments")
        found = _restored(value, {_SCHEME + name: item for name, item in kept.items()}) if kept else value
        if not is_chat(found["messages"]):
            return None
        given = found.get("input")
        asked = given if isinstance(given, str) else None
        return Chat(list(found["messages"]), text(asked), found["target"], str(value.get("id", "")))


def _restored(value: Mapping[str, Any], kept: Mapping[str, Any]) -> Any:
    """The sample's fields that are read, with every text that stands for an attachment replaced."""

    def restore(item: Any) -> Any:
        if isinstance(item, str):
            return kept.get(item, item)
        if isinstance(item, dict):
            return {name: restore(inner) for name, inner in item.items()}
        return [restore(inner) for inner in item] if isinstance(item, list) else item

    return restore({name: value.get(name) for name in ("messages", "input", "target")})
