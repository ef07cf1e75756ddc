"""PDF to a title and blocks that know their page."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from typing import Any

from ....errors import ToolError
from .base import Block
from .plain import clean

_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\n(?=[^\W\d_])")
_ENDS = (".", "!", "?", ":", "\u3002")


def read_pdf(body: bytes, deadline: float) -> tuple[str, list[Block], str]:
    """Title, blocks, and what was left out because the deadline (`time.monotonic`) came.

    Raises:
        ToolError: when it is locked by a password, or has no text.
        ImportError: without pypdf.
    """
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolError("the PDF is locked by a password")
    pages = len(reader.pages)
    blocks: list[Block] = []
    done = 0
    for done in range(1, pages + 1):
        text = reader.pages[done - 1].extract_text()
        blocks += [Block(part, place=f"p. {done}") for part in _parts(text)]
        # what was read by now is worth more than nothing
        if time.monotonic() > deadline:
            break
    if not blocks:
        raise ToolError("the PDF has no text: its pages may be images")
    return _title(reader), blocks, f"the first {done} of its {pages} pages" if done < pages else ""


def _title(reader: Any) -> str:
    """The document's own title; a broken one is no reason to lose the document."""
    try:
        return clean(str((reader.metadata or {}).get("/Title") or ""))
    except Exception:  # pypdf fails on such metadata in many unrelated ways
        return ""


def _parts(text: str) -> Iterator[str]:
    """Lines put together again: a paragraph ends at a blank line, or where a sentence ends in a short line."""
    lines = [line.strip() for line in _HYPHEN.sub("", text).splitlines()]
    widest = max(map(len, lines), default=0)
    held: list[str] = []
    for line in [*lines, ""]:
        held.append(line)
        if not line or (line.endswith(_ENDS) and len(line) < 0.7 * widest):
            if part := clean(" ".join(held)):
                yield part
            held = []
