"""What several dialects write alike: passages as numbered lines or as lists in JSON, and answers in a box."""

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from ..formats.blocks import as_json
from ..trajectory import Evidence, Span
from .fence import opening_line

# How passages in `Doc` lines begin, and a list that `read_list` reads; fences keep them out of retrieved text.
DOC_LINE = r'Doc [0-9]++(?: ?\(Title:|: ?"|:\n)'
JSON_LIST = r'\[\s*+\{\s*+"(?:query|url|search_query)"'
MOST_DOCUMENTS = 1_000  # passages read of one response; the last one holds the rest
_DOC = re.compile(r"Doc [0-9]++(?: ?\(Title: ?|(: ?(?=\")|:\n))")
_AFTER_TITLE = re.compile(r'"(?:\\n|\n|\Z)')
_LINE_END = re.compile(r"\n|\Z")
_NOT_IN_TITLE = re.compile(r'"(?=\))|[\n\r]')
_BRACE = re.compile(r"\\boxed\s*\{|[{}]")
_LONGEST_PRINTED = 100_000
_ESCAPE = r"\\[\\'\"nrtxuU]"
_PRINTED = re.compile(
    rf"(?:'(?:[^'\\\n]|{_ESCAPE})*+'|\"(?:[^\"\\\n]|{_ESCAPE})*+\"|None|True|False|[-+0-9.e{{}}\[\](),: ])*+"
)
_LOOSE = json.JSONDecoder(strict=False)  # made once: that takes as long as to read a response
_RESULTS = ("search_results", "web_page_info_list")
_TEXTS = ("description", "quick_summary", "snippet")


def headed(heads: Iterable[re.Match[str]], text: str) -> list[tuple[re.Match[str], str]]:
    """Each match with the text from its end to the next one, `MOST_DOCUMENTS` at most."""
    found = list(islice(heads, MOST_DOCUMENTS))
    ends = [*(head.start() for head in found[1:]), len(text)]
    return [(head, text[head.end() : end]) for head, end in zip(found, ends, strict=False)]


class DocLines:
    """For dialects whose tool responses hold `Doc` lines, numbered from 1 in each: `Doc 1(Title: "Seine") text`."""

    prose = True

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        found = read_docs(body)
        return found, "" if found else body

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        lines = []
        for number, item in enumerate(evidence, start=1):
            title = _NOT_IN_TITLE.sub(lambda found: f"&#{ord(found[0])};", item.title)
            lines.append(f'Doc {number}(Title: "{title}") {item.text}\n')
        return "".join(lines)

    def write_note(self, note: str) -> str:
        return opening_line(note)


def read_docs(body: str) -> list[Evidence]:
    """The passages of a response in `Doc` lines; also of `Doc 1: "Seine"` or `Doc 1:` with title and text on lines."""
    _, *pieces = _DOC.split(body, MOST_DOCUMENTS)
    found = []
    for colon, text in zip(pieces[::2], pieces[1::2], strict=True):
        quoted = text.startswith('"')  # the quotes are the format's, not the title's
        if colon is not None:
            after = (_AFTER_TITLE if quoted else _LINE_END).search(text, quoted)
            title, text = (
                (text[quoted : after.start()], text[after.end() :])
                if after
                else (text[1:].rstrip('"\n'), "")
            )
            text = text.removesuffix("\n\n")
        else:
            title, _, text = text[quoted:].partition('")' if quoted else ")")
            text = text.removeprefix(" ")
        found.append(Evidence(text.removesuffix("\n"), title))
    return found


def read_json(text: str) -> Any:
    """The object or list of JSON in `text`, bare line breaks in its strings allowed; `None` for anything else."""
    text = text.strip()
    if text.startswith(("[", "{")):
        for decode in (
            msgspec.json.decode,
            _LOOSE.decode,
        ):  # strict JSON, as most is, takes half as long
            with suppress(ValueError, RecursionError):
                return decode(text)
    return None


def read_printed(text: str) -> Any:
    """The value in what Python printed (`{'error': …}`, `[{'title': …}]`); `None` for anything else."""
    text = text.strip()
    if len(text) > _LONGEST_PRINTED or not (
        text.startswith(("{'", "[{'")) and _PRINTED.fullmatch(text)
    ):
        return None  # nothing but plain values: Python takes long to read some others
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json.loads(json.dumps(ast.literal_eval(text)))
    return None


def text_of(value: Any) -> str:
    """A field of JSON as text: other values than strings as JSON, nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)


def read_list(body: str, keys: Sequence[str]) -> tuple[list[Evidence], str]:
    """Evidence of `[{key: …, …}, …]`, searches and pages, and failures as note; a body of another shape is a note."""
    value = read_json(body)
    items = value if isinstance(value, list) else [value]
    if not items or not all(
        isinstance(item, dict) and any(key in item for key in keys) for item in items
    ):
        return [], body
    evidence = [found for item in items for found in _listed(item)]
    note = "\n".join(
        filter(None, (text_of(item.get("error message", item.get("error"))) for item in items))
    )
    return evidence, note or ("" if evidence else body)


def search_of(evidence: Iterable[Evidence], key: str, results: str, text: str) -> dict[str, Any]:
    """One search of such a list, with its results."""
    return {
        key: "",
        results: [{"url": item.url, "title": item.title, text: item.text} for item in evidence],
    }


def _listed(item: Mapping[str, Any]) -> list[Evidence]:
    results = next((item[key] for key in _RESULTS if isinstance(item.get(key), list)), None)
    if results is None:
        text = item.get("information")  # a page's: a summary, or summaries of its parts
        if isinstance(text, list):
            parts = (
                text_of(part.get("page_summary") if isinstance(part, dict) else part)
                for part in text
            )
            text = "\n".join(filter(None, parts))
        return [Evidence(text_of(text), url=text_of(item.get("url")))] if text_of(text) else []
    found = []
    for result in results:
        if isinstance(result, dict):
            text = next((result[key] for key in _TEXTS if key in result), "")
            found.append(
                Evidence(
                    text_of(text), text_of(result.get("title")), url=text_of(result.get("url"))
                )
            )
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
