"""Calls as JSON between `<tool_call>` tags, the schemas they follow, and whose the tool response behind them is."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec

from ..trajectory import ToolCall
from .turns import GAP

OPEN, CLOSE = "<tool_response>", "</tool_response>"
_MOST_REPAIRED = 2_000
_MOST_BRACKETS = 40
_ROLE = "(?:user|tool|ipython)"
_CALL_END = "</tool_call>"
_ROLE_BEFORE = re.compile(
    rf"(?:<\|im_start\|>{_ROLE}|<\|start_header_id\|>{_ROLE}|<start_of_turn>user|>\s*+{_ROLE}(?=\n)){GAP.pattern}\Z"
)
LOOK_BACK = 200
"""So many characters before a tool response tell whose it is."""


class _Call(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Call).decode


def read_call(raw: str, strict: bool = False) -> ToolCall | None:
    """The call that this JSON writes, or `None`; arguments may be missing unless `strict`.

    Example:
        >>> read_call('{"name": "look"}'), read_call('{"name": "look"}', strict=True)
        (ToolCall(name='look', arguments={}, raw='{"name": "look"}'), None)
    """
    try:
        call = _decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if call.arguments is msgspec.UNSET:
        return None if strict else ToolCall(call.name, raw=raw)
    return ToolCall(call.name, call.arguments, raw)


def repair_call(raw: str) -> ToolCall | None:
    """The call that broken JSON was meant to be: a name and arguments, nothing else. Never raises.

    What stands before the first brace is left out, such as a code fence's mark. Neither long text nor text with many
    brackets is repaired: that would take long.

    Example:
        >>> repair_call("{'name': 'look', 'arguments': {'query': 'Rome'}").arguments
        {'query': 'Rome'}
        >>> repair_call("look for Rome") is None
        True
    """
    if len(raw) > _MOST_REPAIRED or not ("name" in raw and "arguments" in raw and "{" in raw):
        return None
    if raw.count("{") + raw.count("[") > _MOST_BRACKETS:
        return None
    import json_repair  # it loads slowly, and few calls are broken

    text = raw[raw.index("{") :]
    try:
        try:
            meant, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            meant, end = json_repair.loads(text), len(text)
        if "{" in text[end:] or not isinstance(meant, dict) or set(meant) != {"name", "arguments"}:
            return None
        call = read_call(json.dumps(meant), strict=True)  # so that all values are those that reading gives
    except Exception:  # the repair is made for the slips of models; what policies write may be anything
        return None
    return msgspec.structs.replace(call, raw=raw) if call else None


def asked_for(text: str, start: int, at: int) -> bool:
    """Whether a tool response that opens at `at`, in a turn from `start` on, is the environment's.

    It is when the end of a call or a role precedes it; else the agent wrote it itself.
    """
    if text.endswith(_CALL_END, start, at):
        return True
    start = max(start, at - LOOK_BACK)
    call = text.rfind(_CALL_END, start, at)
    if call >= 0 and GAP.fullmatch(text, call + len(_CALL_END), at):
        return True
    return _ROLE_BEFORE.search(text, start, at) is not None
