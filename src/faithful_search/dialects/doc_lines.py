"""Passages as numbered lines, `Doc 1(Title: "Seine") text`, written and read; and what all lists of passages share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..trajectory import Evidence
from .turns import ELLIPSES

HEAD = r'Doc [0-9]++(?: ?\(Title:|: ?"|:\n)'
"""What begins a passage; retrieved text must not contain it."""
MOST_DOCUMENTS = 1_000
"""Passages read of one response; the last one holds the rest."""
_HEAD = re.compile(r"Doc [0-9]++(?: ?\(Title: ?|(: ?(?=\")|:\n))")
_AFTER_TITLE = re.compile(r'"(?:\\n|\n|\Z)')
_LINE_END = re.compile(r"\n|\Z")
_NOT_IN_TITLE = re.compile(r'"(?=\))|[\n\r]')


def stretches(heads: Sequence[re.Match[str]], end: int) -> list[tuple[re.Match[str], int]]:
    """Each match with where the next one begins, the last with `end`."""
    return list(zip(heads, [*(head.start() for head in heads[1:]), end], strict=False))


def write(evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
    """One passage a line, numbered from 1 in each response."""
    titles = (_NOT_IN_TITLE.sub(lambda found: f"&#{ord(found[0])};", escape(item.title)) for item in evidence)
    return "".join(
        f'Doc {number}(Title: "{title}") {escape(item.text)}\n'
        for number, (title, item) in enumerate(zip(titles, evidence, strict=True), start=1)
    )


def read(body: str, fenced: bool) -> tuple[list[Evidence], str]:
    """The passages of a response, or its note.

    `Doc 1: "Seine"` with the text behind a line break, written out or as backslash and n, is understood too, and so is
    a title on a line of its own, in quotes or not. Prose is
    one passage without a title, unless our own engine wrote it (`fenced`): that writes prose for a note only.

    Example:
        >>> (seine,), note = read('Doc 1(Title: "Seine") runs through Paris\\n', fenced=False)
        >>> seine.title, seine.text, note
        ('Seine', 'runs through Paris', '')
    """
    _, *pieces = _HEAD.split(body, MOST_DOCUMENTS)
    if not pieces:
        prose = body.strip()
        return ([], body) if fenced or not prose or prose in ELLIPSES else ([Evidence(prose)], "")
    found = []
    for colon, text in zip(pieces[::2], pieces[1::2], strict=True):
        if colon is not None:
            quoted = text.startswith('"')
            after = (_AFTER_TITLE if quoted else _LINE_END).search(text, quoted)
            title, text = (text[quoted : after.start()], text[after.end() :]) if after else (text[1:].rstrip('"\n'), "")
            text = text.removesuffix("\n\n")
        else:
            quoted = text.startswith('"')  # the quotes are the format's, not the title's
            title, _, text = text[quoted:].partition('")' if quoted else ")")
            text = text.removeprefix(" ")
        found.append(Evidence(text.removesuffix("\n"), title))
    return found, ""
