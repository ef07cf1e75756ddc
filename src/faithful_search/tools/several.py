"""One thing or a list of such, as a call's arguments give it: `url` or `url_list`, `query` or `query_list`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ToolError

MOST = 5
"""In a list."""


def one_or_several(name: str, one: str, several: Sequence[str] | None) -> list[str]:
    """What was given as the argument `name` or `name_list`: each once, without white space around it.

    Raises:
        ToolError: when it is neither or both, one of several is empty, or there are more than `MOST`.

    Example:
        >>> one_or_several("query", "", ["tea", " tea ", "milk"])
        ['tea', 'milk']
    """
    if bool(one.strip()) == bool(several):
        raise ToolError(f"Give either {name}, which must not be empty, or {name}_list, not both.")
    given = list(dict.fromkeys(each.strip() for each in several or [one]))
    if len(given) > MOST:
        raise ToolError(f"{name}_list has {len(given)} entries; give at most {MOST}.")
    if not all(given):
        raise ToolError(f"An entry of {name}_list is empty.")
    return given
