"""A passage as one text, the way the Search-R1 family stores and sends it: its quoted title on the first line."""

from __future__ import annotations

LONGEST_TITLE = 300
"""A longer first line without quotation marks is no title."""


def join_contents(title: str, text: str) -> str:
    r"""The passage as one text. Whatever the title holds, the first line break ends it and nothing of the text is lost.

    Example:
        >>> join_contents("Paris\n(city)", "The capital of France.")
        '"Paris (city)"\nThe capital of France.'
    """
    return f'"{" ".join(title.split())}"\n{text}'


def split_contents(contents: str) -> tuple[str, str]:
    r"""Title and text of such a passage; the title may be unquoted, and a text of one line has none.

    Example:
        >>> split_contents('"Paris"\nThe capital of France.')
        ('Paris', 'The capital of France.')
        >>> split_contents("Only a text.")
        ('', 'Only a text.')
    """
    line, line_break, rest = contents.partition("\n")
    first = line.strip()
    if line_break and len(first) >= 2 and first[0] == first[-1] == '"':
        return first[1:-1], rest
    if line_break and len(first) <= LONGEST_TITLE:
        return first, rest
    return "", contents
