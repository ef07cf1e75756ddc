"""Text from files and servers as it is shown: one function for each medium, and templates that use
them unless told otherwise.

Names of tools and files, ids, stop reasons and errors may hold anything. Nothing in them may begin
a line, a cell, a link or an element, or move a terminal's cursor. HTML is escaped by Jinja itself.
"""

import json
import re
from collections.abc import Callable
from os import PathLike
from typing import Any

# Control characters, halves of surrogate pairs, tags, and what turns the direction of writing: a
# line could read otherwise than it stands.
_OBEYED = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f"
)
# Names that differ in these look alike; prose may hold them.
_UNSEEN = "\t\n\u00ad\u180e\u200b\u2060-\u2065\ufeff"
_CONTROLS = re.compile(f"[{_OBEYED}]")
_LINE_CONTROLS = re.compile(f"[{_OBEYED}{_UNSEEN}]")
# Characters with a meaning anywhere, underscores around words, addresses, and what begins a list.
_MARKUP = re.compile(r"[\\`*\[\]<>!#|~&$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?i:(?<=www)\.)|\A[-+=]")
_NUMBER = re.compile(r"\A([0-9]{1,9})(?=[.)](?:\s|\Z))")
_FENCE = re.compile("`{3,}")


class Written(str):
    """Text that is escaped already, which a template takes as it is."""


def printable(text: str) -> str:
    """`text` with control characters spelled out, so that a terminal shows and does not obey them.

    Line breaks and tabs stay. Marks that turn the direction of writing are spelled out, too.

    Example:
        >>> print(printable("a\\x1b[2Jb"))
        a\\x1b[2Jb
    """
    return _CONTROLS.sub(_spelled, text)


def as_line(text: str) -> str:
    """`text` on one line of a terminal, a table or a log: line breaks, tabs and what cannot be seen
    are spelled out, too.

    Example:
        >>> print(as_line("pou\\nall rows passed"))
        pou\\nall rows passed
    """
    return _LINE_CONTROLS.sub(_spelled, text)


def as_markdown(text: str) -> Written:
    """`text` as one line of Markdown that shows it as it is, without markup, links, HTML or table
    cells of its own.
    """
    line = printable(" ".join(text.split()))
    without_markup = _MARKUP.sub(r"\\\g<0>", line)
    return Written(_NUMBER.sub(r"\1\\", without_markup))


def as_code(text: str) -> Written:
    """`text` as code within a line of Markdown or a table's cell, which nothing in it can end."""
    line = printable(" ".join(text.split()))
    code = line.replace("`", "'").replace("|", "¦")
    return Written(f"`{code or ' '}`")


def as_block(text: str, language: str = "") -> Written:
    """`text` as a block of code in Markdown, between fences that are longer than any in it.

    Example:
        >>> print(as_block("ls", "bash"))
        ```bash
        ls
        ```
    """
    code = printable(text).rstrip("\n")
    longest_run = max(map(len, _FENCE.findall(code)), default=0)
    fence = "`" * max(3, longest_run + 1)
    return Written(f"{fence}{language}\n{code}\n{fence}")


def as_literal(text: str) -> Written:
    """`text` as a string of Python."""
    return Written(printable(json.dumps(text, ensure_ascii=False)))


_MEDIA: dict[str, Callable[[str], str]] = {"md": as_markdown, "txt": as_line, "py": as_literal}


def finalizer(template: str) -> Callable[[Any], Any]:
    """What Jinja does to each value that this template shows, by the ending of what it makes:
    `card.md.j2` makes Markdown, `audit.txt.j2` lines of a terminal, `snippet.py.j2` Python, where
    it is a string. `Written` text stays as it is.
    """
    medium = template.removesuffix(".j2").rpartition(".")[2]
    escape = _MEDIA[medium]

    def finalize(value: Any) -> Any:
        if isinstance(value, Written) or not isinstance(value, str | PathLike):
            return value
        return escape(str(value))

    return finalize


def _spelled(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
