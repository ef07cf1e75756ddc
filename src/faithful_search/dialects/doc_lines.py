"""Passages as numbered lines, `Doc 1(Title: "Seine") text`: written and read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..trajectory import Evidence
from .fence import Fence
from .segments import Segment
from .turns import ELLIPSES

HEAD = r'Doc [0-9]++(?: ?\(Title:|: ?")'
"""What begins a passage; retrieved text must not contain it."""
MOST_DOCUMENTS = 1_000
"""Passages read of one response; the last one holds the rest."""
_HEAD = re.compile(r"Doc [0-9]++(?: ?\(Title: ?|(: ?)(?=\"))")
_AFTER_TITLE = re.compile(r'"(?:\\n|\n|\Z)')
_NOT_IN_TITLE = re.compile(r'"(?=\))|[\n\r]')


def write(evidence: Sequence[Evidence], note: str, fence: Fence) -> str:
    """One passage a line, numbered from 1 in each response; the note, if there is no evidence."""
    escape = fence.escape
    lines = [
        f'Doc {number}(Title: "{_title(escape(item.title))}") {escape(item.text)}\n'
        for number, item in enumerate(evidence, start=1)
    ]
    if lines:
        return "".join(lines)
    return f"&#10;{escape(note[1:])}" if note.startswith("\n") else escape(note)


def read(segment: Segment) -> tuple[list[Evidence], str]:
    """The passages of a response, or its note.

    `Doc 1: "Seine"` with the text behind a line break, written out or as backslash and n, is understood too. Prose is
    one passage without a title, unless `write` wrote it: that writes prose for a note only.

    Example:
        >>> (seine,), note = read(Segment("tool", 'Doc 1(Title: "Seine") runs through Paris\\n', (0, 41)))
        >>> seine.title, seine.text, note
        ('Seine', 'runs through Paris', '')
    """
    body, fenced = segment.body, segment.fenced
    _, *pieces = _HEAD.split(body, MOST_DOCUMENTS)
    if not pieces:
        prose = body.strip()
        if fenced or not prose or prose in ELLIPSES:
            return [], body
        return [Evidence(prose)], ""
    found = []
    for colon, text in zip(pieces[::2], pieces[1::2], strict=True):
        title, text = _titled(text, colon is not None)
        found.append(Evidence(text, title))
    return found, ""


def _titled(body: str, colon: bool) -> tuple[str, str]:
    """Title and text; quotes around the title are the format's, not the title's."""
    if colon:
        after = _AFTER_TITLE.search(body, 1)
        title, text = (body[1 : after.start()], body[after.end() :]) if after else (body[1:].rstrip('"\n'), "")
        return title, text.removesuffix("\n")
    quoted = body.startswith('"')
    title, _, text = body[quoted:].partition('")' if quoted else ")")
    return title, text.removeprefix(" ").removesuffix("\n")


def _title(title: str) -> str:
    return _NOT_IN_TITLE.sub(lambda match: f"&#{ord(match[0])};", title)
