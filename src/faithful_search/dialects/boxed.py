"""The `\\boxed{…}` in which LaTeX-minded agents put their final answer."""

from __future__ import annotations

import re

from ..trajectory import Span

_BRACE = re.compile(r"\\boxed\s*\{|[{}]")


def last_boxed(text: str, start: int = 0, end: int | None = None) -> Span | None:
    r"""Where the content of the last `\boxed{…}` with balanced braces is, or `None`.

    Example:
        >>> text = r"\boxed{a}, no: \boxed{b_{1}} and \boxed{cut"
        >>> text[slice(*last_boxed(text))]
        'b_{1}'
    """
    open_braces: list[int | None] = []
    found: Span | None = None
    for match in _BRACE.finditer(text, start, len(text) if end is None else end):
        if match[0] != "}":
            open_braces.append(match.end() if len(match[0]) > 1 else None)
        elif open_braces:
            inner = open_braces.pop()
            if inner is not None and (found is None or inner > found[0]):
                found = (inner, match.start())
    return found
