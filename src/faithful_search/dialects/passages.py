"""What several dialects write alike: passages as numbered lines or as lists in JSON, and answers in a box."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..trajectory import Evidence, Span
from .fence import opening_line
from .turns import ELLIPSES

DOC_LINE = r'Doc [0-9]++(?: ?\(Title:|: ?"|:\n)'
"""How a passage in `Doc` lines begins; retrieved text must not contain it."""
JSON_LIST = r'\[\s*+\{\s*+"(?:query|url|search_query)"'
"""How a list that `read_list` reads begins; where a fence forbids it, no note can be taken for one."""
MOST_DOCUMENTS = 1_000
"""Passages read of one response; the last one holds the rest."""
_DOC = re.compile(r"Doc [0-9]++(?: ?\(Title: ?|(: ?(?=\")|:\n))")
_AFTER_TITLE = re.compile(r'"(?:\\n|\n|\Z)')
_LINE_END = re.compile(r"\n|\Z")
_NOT_IN_TITLE = re.compile(r'"(?=\))|[\n\r]')
_BRACE = re.compile(r"\\boxed\s*\{|[{}]")
_LENIENT = json.JSONDecoder(strict=False)  # tools write line breaks into strings
_LONGEST_PRINTED = 100_000
_ESCAPE = r"\\[\\'\"nrtxuU]"
_PRINTED = re.compile(
    rf"(?:'(?:[^'\\\n]|{_ESCAPE})*+'|\"(?:[^\"\\\n]|{_ESCAPE})*+\"|None|True|False|[-+0-9.e{{}}\[\](),: ])*+"
)
_RESULTS = ("search_results", "web_page_info_list")
_TEXTS = ("description", "quick_summary", "snippet")


def stretches(heads: Sequence[re.Match[str]], end: int) -> list[tuple[re.Match[str], int]]:
    """Each match with where the next one begins, the last with `end`."""
    return list(zip(heads, [*(head.start() for head in heads[1:]), end], strict=False))


class DocLines:
    """For dialects whose tool responses hold `Doc` lines, numbered from 1 in each: `Doc 1(Title: "Seine") text`."""

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        return read_docs(body, fenced)

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        lines = []
        for number, item in enumerate(evidence, start=1):
            title = _NOT_IN_TITLE.sub(lambda found: f"&#{ord(found[0])};", escape(item.title))
            lines.append(f'Doc {number}(Title: "{title}") {escape(item.text)}\n')
        return "".join(lines)

    def write_note(self, note: str) -> str:
        return opening_line(note)


def read_docs(body: str, fenced: bool) -> tuple[list[Evidence], str]:
    """The passages of a response in `Doc` lines, or its note.

    Also read are `Doc 1: "Seine"` with the text behind a line break (or a backslash and n), and a title on a line of
    its own, in quotes or not. Prose is one passage without a title, unless our own engine wrote it (`fenced`): that
    writes prose for a note only.

    Example:
        >>> (seine,), note = read_docs('Doc 1(Title: "Seine") runs through Paris\\n', fenced=False)
        >>> seine.title, seine.text, note
        ('Seine', 'runs through Paris', '')
    """
    _, *pieces = _DOC.split(body, MOST_DOCUMENTS)
    if not pieces:
        prose = body.strip()
        return ([], body) if fenced or not prose or prose in ELLIPSES else ([Evidence(prose)], "")
    found = []
    for colon, text in zip(pieces[::2], pieces[1::2], strict=True):
        quoted = text.startswith('"')  # the quotes are the format's, not the title's
        if colon is not None:
            after = (_AFTER_TITLE if quoted else _LINE_END).search(text, quoted)
            title, text = (text[quoted : after.start()], text[after.end() :]) if after else (text[1:].rstrip('"\n'), "")
            text = text.removesuffix("\n\n")
        else:
            title, _, text = text[quoted:].partition('")' if quoted else ")")
            text = text.removeprefix(" ")
        found.append(Evidence(text.removesuffix("\n"), title))
    return found, ""


def read_json(text: str) -> Any:
    """The JSON value in `text`, bare line breaks in its strings allowed; `None` for anything else."""
    try:
        value, end = _LENIENT.raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if not text.lstrip()[end:].strip() else None


def read_printed(text: str) -> Any:
    """The value in what Python printed (`{'error': …}`, `[{'title': …}]`); `None` for anything else.

    Example:
        >>> read_printed("[{'title': 'Rome', 'url': None}]")
        [{'title': 'Rome', 'url': None}]
    """
    text = text.strip()
    if len(text) > _LONGEST_PRINTED or not (text.startswith(("{'", "[{'")) and _PRINTED.fullmatch(text)):
        return None  # nothing but plain values: Python takes long to read some others
    try:
        return json.loads(json.dumps(ast.literal_eval(text)))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def write_json(value: Any) -> str:
    """JSON as the tools of these systems write it, one line."""
    return json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    """A field of JSON as text: other values than strings as JSON, nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else write_json(value)


def read_list(body: str, keys: Sequence[str]) -> tuple[list[Evidence], str]:
    """Evidence and note of `[{key: …, …}, …]`, searches and pages; a body of another shape is a note.

    A failure in the list is the note.
    """
    value: Any = read_json(body) if body.lstrip().startswith(("[", "{")) else None
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, dict) and any(key in item for key in keys) for item in items):
        return [], body
    evidence = [found for item in items for found in _listed(item)]
    notes = (text_of(item.get("error message", item.get("error"))) for item in items)
    note = "\n".join(filter(None, notes))
    return evidence, note or ("" if evidence else body)


def write_list(evidence: Sequence[Evidence], escape: Callable[[str], str], key: str, results: str, text: str) -> str:
    """One search's results."""
    found = [{"url": escape(item.url), "title": escape(item.title), text: escape(item.text)} for item in evidence]
    return write_json([{key: "", results: found}])


def _listed(item: Mapping[str, Any]) -> list[Evidence]:
    results = next((item[key] for key in _RESULTS if isinstance(item.get(key), list)), None)
    if results is None:
        text = item.get("information")  # a page's: a summary, or summaries of its parts
        if isinstance(text, list):
            parts = (text_of(part.get("page_summary") if isinstance(part, dict) else part) for part in text)
            text = "\n".join(filter(None, parts))
        return [Evidence(text_of(text), url=text_of(item.get("url")))] if text_of(text) else []
    found = []
    for result in results:
        if isinstance(result, dict):
            text = next((result[key] for key in _TEXTS if key in result), "")
            found.append(Evidence(text_of(text), text_of(result.get("title")), url=text_of(result.get("url"))))
    return found


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
