"""inspect_ai: the samples of a log, of `.eval` (a zip of them) and `.json` alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, mapping, text
from .messages import is_chat

_SCHEME = "attachment://"


class InspectAI(Format):
    """One sample, an `EvalSample`."""

    what = "an inspect_ai sample"
    marks = frozenset({"epoch", "target", "eval"})

    def read(self, value: Any) -> Chat | None:
        """Its messages, with what was stored apart from them put back; its target is the gold answer."""
        if not isinstance(value, Mapping) or not {"messages", "epoch", "target"} <= value.keys():
            return None
        kept = {_SCHEME + name: item for name, item in mapping(value, "attachments").items()}
        fields: dict[str, Any] = {name: value.get(name) for name in ("messages", "input", "target")}
        messages, asked, target = (_restored(fields, kept) if kept else fields).values()
        return Chat(list(messages), text(asked), target, str(value.get("id", ""))) if is_chat(messages) else None


def _restored(item: Any, kept: Mapping[str, Any]) -> Any:
    """The value with every text that stands for an attachment replaced."""
    if isinstance(item, str):
        return kept.get(item, item)
    if isinstance(item, dict):
        return {name: _restored(inner, kept) for name, inner in item.items()}
    return [_restored(inner, kept) for inner in item] if isinstance(item, list) else item
