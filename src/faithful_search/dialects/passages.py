"""Reads and writes what several dialects have in common: passages as numbered lines or JSON lists,
and answers in a box.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from .. import loose_json
from ..errors import DataError
from ..formats.base import first
from ..formats.blocks import as_json
from ..trajectory import Evidence, Span
from .fence import opening_line

# How passages in `Doc` lines begin, and a list that `read_list` reads; fences keep them out of
# retrieved text.
DOC_LINE = r'Doc [0-9]++(?: ?\(Title:|: ?"|:\n)'
JSON_LIST = r'\[\s*+\{\s*+"(?:query|url|search_query)"'
MOST_DOCUMENTS = 1_000  # passages read of one response; the last one holds the rest
_DOC = re.compile(r"Doc [0-9]++(?: ?\(Title: ?|(: ?(?=\")|:\n))")
_AFTER_TITLE = re.compile(r'"(?:\\n|\n|\Z)')
_LINE_END = re.compile(r"\n|\Z")
_NOT_IN_TITLE = re.compile(r'"(?=\))|[\n\r]')
_BRACE = re.compile(r"\\boxed\s*\{|[{}]")
_BY_RANK = (
    *("citationId", "citation_id", "docid", "doc_id", "document_id", "chunk_id", "passage_id"),
    *("source_id", "ref_id", "file_id", "id", "_id", "index", "number"),
    *("id_", "uuid", "paperId"),
)
_LABELS = frozenset(_BY_RANK)
_LONGEST_LABEL = 200
# Lists of Chroma's, with the field of a result that each holds
_COLUMNS = {"ids": "id", "documents": "text", "metadatas": "metadata", "uris": "url"}
_SNIPPET = re.compile(
    r"<(?P<tag>snippet|webpage)\b"
    r"(?:\s{1,9}+id=(?P<label>\"[^\"<>\n]{0,200}\"|'[^'<>\n]{0,200}'|[^\s<>]{1,200}))?+[^<>]{0,1000}>"
)
_SNIPPET_END = {tag: re.compile(rf"</{tag}>") for tag in ("snippet", "webpage")}
_FIELD = re.compile(
    r"^(?P<name>Title|URL|Url|(?:Search )?Snippet|Content|Text|Abstract):[ \t]*+", re.MULTILINE
)
_RESULTS = ("search_results", "web_page_info_list")
_TEXTS = ("description", "quick_summary", "snippet")


def headed(heads: Iterable[re.Match[str]], text: str) -> list[tuple[re.Match[str], str]]:
    """Each match with the text from its end to the next one; `MOST_DOCUMENTS` at most."""
    matches = list(islice(heads, MOST_DOCUMENTS))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    return [(match, text[match.end() : end]) for match, end in zip(matches, ends, strict=False)]


class DocLines:
    """Part of the dialects whose tool responses hold lines like `Doc 1(Title: "Seine") text`,
    numbered from 1 in each response.
    """

    prose_is_evidence = True
    numbers_passages = True

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        value = read_json(body)
        result = value.get("result") if isinstance(value, dict) else None
        # SkyRL puts the JSON in that its search server sent
        passages = read_docs(result if isinstance(result, str) else body)
        return passages, "" if passages else body

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        lines = []
        for number, passage in enumerate(evidence, start=1):
            title = _NOT_IN_TITLE.sub(lambda match: f"&#{ord(match[0])};", passage.title)
            lines.append(f'Doc {number}(Title: "{title}") {passage.text}\n')
        return "".join(lines)

    def write_note(self, note: str) -> str:
        return opening_line(note)


def read_docs(body: str) -> list[Evidence]:
    """The passages of a response in `Doc` lines.

    The title may also stand on a line of its own: after `Doc 1: `, in quotes, or after `Doc 1:` and
    a line break.
    """
    _, *pieces = _DOC.split(body, MOST_DOCUMENTS)
    passages = []
    for colon, inner in zip(pieces[::2], pieces[1::2], strict=True):
        title, text = _in_parentheses(inner) if colon is None else _on_own_line(inner)
        passages.append(Evidence(text.removesuffix("\n"), title))
    return passages


def _in_parentheses(inner: str) -> tuple[str, str]:
    """The title and the text behind `Doc 1(Title: `."""
    if inner.startswith('"'):  # the quotes are the format's, not the title's
        title, _, text = inner[1:].partition('")')
    else:
        title, _, text = inner.partition(")")
    return title, text.removeprefix(" ")


def _on_own_line(inner: str) -> tuple[str, str]:
    """The title and the text behind `Doc 1: ` or `Doc 1:` and a line break."""
    if inner.startswith('"'):
        start = 1
        end_of_title = _AFTER_TITLE.search(inner, start)
    else:
        start = 0
        end_of_title = _LINE_END.search(inner)
    if end_of_title is None:  # a quote that is not closed
        return inner[1:].rstrip('"\n'), ""
    title = inner[start : end_of_title.start()]
    return title, inner[end_of_title.end() :].removesuffix("\n\n")


def read_snippets(body: str) -> tuple[list[Evidence], str]:
    """DR Tulu's passages, and the text outside of them as a note.

    Each is `<snippet id=S_1>` or `<webpage id=S_2>` with the lines `Title:`, `URL:` and `Snippet:`;
    agents cite the id.
    """
    passages: list[Evidence] = []
    outside: list[str] = []
    end = 0
    while (head := _SNIPPET.search(body, end)) and len(passages) < MOST_DOCUMENTS:
        close = _SNIPPET_END[head["tag"]].search(body, head.end())
        if close is None:
            break
        outside.append(body[end : head.start()].strip())
        passages.append(_snippet(body[head.end() : close.start()], head["label"] or ""))
        end = close.end()
    outside.append(body[end:].strip())
    return passages, "\n".join(filter(None, outside))


def _snippet(inner: str, label: str) -> Evidence:
    title = url = ""
    start = 0
    for field in _FIELD.finditer(inner):
        if inner[start : field.start()].strip():
            break  # a line of the text that happens to begin so
        if field["name"] not in ("Title", "URL", "Url"):
            start = field.end()  # of the text
            break
        line_end = inner.find("\n", field.end())
        if line_end < 0:
            line_end = len(inner)
        value = inner[field.end() : line_end].strip()
        start = line_end
        if field["name"] == "Title":
            title = value
        else:
            url = value
    return Evidence(inner[start:].strip(), title, url=url, label=label.strip("\"'"))


def read_json(text: str) -> Any:
    """The JSON object or list that `text` is; its strings may hold bare line breaks. `None` for
    anything else.
    """
    text = text.strip()
    if text.startswith(("[", "{")):
        with suppress(DataError):
            return loose_json.decode(text, halves=True)  # evidence is read as it was written
    return None


def label_of(fields: Mapping[str, Any]) -> str:
    """The id or number that a search result has in its JSON, by which agents cite it."""
    if _LABELS.isdisjoint(fields):
        return ""
    value = first(fields, _BY_RANK)
    if not isinstance(value, str | int):
        return ""
    return str(value)[:_LONGEST_LABEL]


def text_of(value: Any) -> str:
    """The value of a JSON field as text: strings as they are, other values as JSON, null empty."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return as_json(value)


def in_columns(response: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The results of a response that lists their ids, texts and metadata apart, in the same order,
    as Chroma does: for one query, or in a list for each. `None` for any other response.

    Example:
        >>> in_columns({"ids": [["d1"]], "documents": [["Rome"]], "metadatas": [[{"page": 7}]]})
        [{'id': 'd1', 'text': 'Rome', 'metadata': {'page': 7}}]
    """
    listed: dict[str, list[Any]] = {}
    for name, field in _COLUMNS.items():
        column = response.get(name)
        if isinstance(column, list):
            of_queries = bool(column) and all(isinstance(entry, list) for entry in column)
            listed[field] = list(chain.from_iterable(column)) if of_queries else column
    lengths = {len(column) for column in listed.values()}
    if "id" not in listed or len(listed) < 2 or len(lengths) > 1:
        return None
    results = []
    for values in zip(*listed.values(), strict=True):
        result = dict(zip(listed, values, strict=True))
        results.append({field: value for field, value in result.items() if value is not None})
    return results


def read_list(body: str, keys: Sequence[str]) -> tuple[list[Evidence], str]:
    """The evidence in `[{key: …, …}, …]`, a list of searches and pages, and its failures as a note.

    A body of another shape is a note as a whole.
    """
    value = read_json(body)
    entries = value if isinstance(value, list) else [value]
    evidence: list[Evidence] = []
    failures: list[str] = []
    for entry in entries:
        if not isinstance(entry, dict) or not any(key in entry for key in keys):
            return [], body
        evidence += _passages(entry)
        failure = text_of(entry.get("error message", entry.get("error")))
        if failure:
            failures.append(failure)
    note = "\n".join(failures)
    return evidence, note or ("" if evidence else body)


def search_of(evidence: Iterable[Evidence], key: str, results: str, text: str) -> dict[str, Any]:
    """One search of such a list with its results, under the field names that a dialect uses."""
    entries = []
    for passage in evidence:
        entries.append({"url": passage.url, "title": passage.title, text: passage.text})
    return {key: "", results: entries}


def _passages(entry: Mapping[str, Any]) -> list[Evidence]:
    """The evidence in one search, or in one page."""
    results = next((entry[key] for key in _RESULTS if isinstance(entry.get(key), list)), None)
    if results is None:
        summary = _summary(entry.get("information"))
        return [Evidence(summary, url=text_of(entry.get("url")))] if summary else []
    return [_result(result) for result in results if isinstance(result, dict)]


def _result(fields: Mapping[str, Any]) -> Evidence:
    """One result of a search."""
    text = next((fields[key] for key in _TEXTS if key in fields), None)
    return Evidence(
        text_of(text),
        text_of(fields.get("title")),
        url=text_of(fields.get("url")),
        label=label_of(fields),
    )


def _summary(information: Any) -> str:
    """A page's summary, which may be a list of summaries of its parts."""
    if not isinstance(information, list):
        return text_of(information)
    summaries = []
    for part in information:
        if isinstance(part, dict):
            part = part.get("page_summary")
        summaries.append(text_of(part))
    return "\n".join(filter(None, summaries))


def last_boxed(text: str, start: int = 0, end: int | None = None) -> Span | None:
    r"""Where the content of the last `\boxed{…}` with balanced braces stands; `None`: there is none.

    Example:
        >>> text = r"\boxed{a}, no: \boxed{b_{1}} and \boxed{cut"
        >>> text[slice(*last_boxed(text))]
        'b_{1}'
    """
    open_braces: list[int | None] = []  # where the content of each box begins; `None`: no box
    last: Span | None = None
    for match in _BRACE.finditer(text, start, len(text) if end is None else end):
        if match[0] == "{":
            open_braces.append(None)
        elif match[0] != "}":
            open_braces.append(match.end())
        elif open_braces:
            content_start = open_braces.pop()
            if content_start is None:
                continue
            if last is None or content_start > last[0]:  # not around a box that closed before
                last = (content_start, match.start())
    return last
