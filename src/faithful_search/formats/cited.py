"""What APIs send beside a text about its sources, as values: which words cite what.

| API | fields |
|---|---|
| OpenAI, xAI, Azure, OpenRouter | `annotations` of a text, or of a message: `url_citation`, `file_citation` |
| Anthropic | `citations` of a text, with `cited_text` |
| Cohere | `citations` of a message, with `start`, `end` and `sources` |
| Bedrock | `citations` of a `citationsContent`, with `location` and `sourceContent` |
| Gemini | `groundingMetadata` of a candidate, which frameworks keep in other places (`searches`) |

Addresses alone, as Perplexity's `citations`, are results of a search (`searches`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from ..trajectory import Citation, Span
from .base import first, mapping, mappings

# Fields that name a source, the most telling first
_TARGETS = (
    "url",
    "uri",
    "source",
    "file_id",
    "filename",
    "document_title",
    "id",
    "title",
    "document_index",
)
_STARTS = ("start_index", "startIndex", "start")
_ENDS = ("end_index", "endIndex", "end")
_PARTS = ("part_index", "partIndex")
_MOST = 10_000  # entries that are read of one list


def sent_with(text: str, fields: Mapping[str, Any]) -> tuple[Citation, ...]:
    """The citations that a part's or a message's `fields` have for its text.

    Example:
        >>> cited = {"citations": [{"url": "https://ex.org", "cited_text": "Born in Veldt."}]}
        >>> sent_with("In Veldt.", cited)
        (Citation(span=(0, 9), target='https://ex.org', how='api', quote='Born in Veldt.'),)
    """
    citations: list[Citation] = []
    for name in ("annotations", "citations"):
        entries = fields.get(name)
        if not isinstance(entries, list | tuple):
            continue
        for entry in entries[:_MOST]:
            if isinstance(entry, Mapping):
                citations += _citations(text, entry)
    return tuple(dict.fromkeys(citations))


def grounded(texts: Sequence[str], metadata: Mapping[str, Any]) -> tuple[Citation, ...]:
    """The citations in Gemini's `groundingMetadata`, with spans in all texts together.

    Args:
        texts: those of the answer's parts, each empty for a part that is no text.
        metadata: counts places in bytes of one part.

    Example:
        >>> segment = {"partIndex": 1, "endIndex": 9}
        >>> supports = [{"segment": segment, "groundingChunkIndices": [0]}]
        >>> chunks = [{"web": {"uri": "https://ex.org"}}]
        >>> metadata = {"groundingChunks": chunks, "groundingSupports": supports}
        >>> [citation] = grounded(["Well. ", "In Veldt."], metadata)
        >>> citation.span
        (6, 15)
    """
    parts = _Parts(texts)
    pages = [_page(chunk) for chunk in _either(metadata, "groundingChunks", "grounding_chunks")]
    citations = []
    for support in _either(metadata, "groundingSupports", "grounding_supports"):
        span = parts.span(mapping(support, "segment"))
        numbers = support.get("groundingChunkIndices") or support.get("grounding_chunk_indices")
        if span is None or not isinstance(numbers, list):
            continue
        for number in numbers:
            is_place = isinstance(number, int) and 0 <= number < len(pages)
            if is_place and pages[number]:
                citations.append(Citation(span, pages[number], "api"))
    return tuple(citations)


class _Parts:
    """The texts of an answer's parts, in which Gemini counts bytes."""

    def __init__(self, texts: Sequence[str]) -> None:
        lengths = [len(text) for text in texts]
        self._starts = list(accumulate(lengths, initial=0))
        self._encoded = [text.encode("utf-8", "replace") for text in texts]
        self._whole = b"".join(self._encoded)

    def span(self, segment: Mapping[str, Any]) -> Span | None:
        """Where a segment stands in all texts together; `None` where it names no end.

        A segment that its part has no room for, or that says other words than stand there, is
        counted in all texts: so it is where the parts are pieces of a streamed answer.
        """
        start = _number(segment, _STARTS) or 0
        end = _number(segment, _ENDS)
        if end is None:
            return None
        part = _number(segment, _PARTS) or 0
        if part < len(self._encoded):
            encoded = self._encoded[part]
            words = segment.get("text")
            agrees = True
            if isinstance(words, str):
                agrees = encoded[start:end] == words.encode("utf-8", "replace")
            if agrees and end <= len(encoded):
                offset = self._starts[part]
                return offset + _characters(encoded, start), offset + _characters(encoded, end)
        return _characters(self._whole, start), _characters(self._whole, end)


def moved(citations: Iterable[Citation], by: int) -> list[Citation]:
    """The citations with spans so many characters further on, for a text within a longer one.

    Citations without a place, whose span is (0, 0), stay as they are.
    """
    result = []
    for citation in citations:
        start, end = citation.span
        if start or end:
            citation = msgspec.structs.replace(citation, span=(start + by, end + by))
        result.append(citation)
    return result


def divided(citations: Iterable[Citation], lengths: Sequence[int]) -> list[list[Citation]]:
    """The citations of a text, for each of the stretches of these lengths that it consists of.

    A citation belongs to the stretch that its first word is in, and ends with it.

    Example:
        >>> citations = [Citation((0, 5), "a", "api"), Citation((5, 9), "b", "api")]
        >>> _, [citation] = divided(citations, [5, 9])
        >>> citation.span
        (0, 4)
    """
    stretches: list[list[Citation]] = [[] for _ in lengths]
    ends = list(accumulate(lengths))
    for citation in citations if stretches else ():
        start, end = citation.span
        # What cites at one place, without words, stands behind them
        place = bisect_right(ends, start) if end > start else bisect_left(ends, start)
        place = min(place, len(lengths) - 1)
        by = lengths[place] - ends[place]
        if by or end > lengths[place]:
            span = (start + by, min(end + by, lengths[place]))
            citation = msgspec.structs.replace(citation, span=span)
        stretches[place].append(citation)
    return stretches


def _citations(text: str, entry: Mapping[str, Any]) -> Iterator[Citation]:
    """The citations in one entry, one for each of its sources."""
    # OpenAI's chats have the fields one level down, under the name of the type.
    fields = {**entry, **mapping(entry, str(entry.get("type"))), **_of_bedrock(entry)}
    quote = fields.get("cited_text")
    if not isinstance(quote, str):
        quote = ""
    span = _span(text, fields)
    for source in mappings(fields, "sources") or [fields]:
        target = _result_of_tool(source) or first(source, _TARGETS)
        if isinstance(target, str | int) and str(target).strip():
            yield Citation(span, str(target), how="api", quote=quote)


def _of_bedrock(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a citation of Bedrock's says, in the fields of the other APIs; empty for any other."""
    words = [str(piece.get("text") or "") for piece in mappings(entry, "sourceContent")]
    page = mapping(entry, "location", "web")
    quote = {"cited_text": "\n".join(words)} if words else {}
    url = {"url": page["url"]} if page.get("url") else {}
    return {**quote, **url}


def _result_of_tool(source: Mapping[str, Any]) -> Any:
    """What names a source of Cohere's that a tool returned: its id counts the results of a call,
    and stands in none of them. `None` for any other source, and where nothing names it.
    """
    output = mapping(source, "tool_output")
    identity = source.get("id")
    is_counted = isinstance(identity, str) and identity.rpartition(":")[2].isdecimal()
    return first(output, _TARGETS) if is_counted else None


def _span(text: str, fields: Mapping[str, Any]) -> Span:
    """Where the words stand that cite; (0, 0) where that is not known."""
    start = _number(fields, _STARTS)
    end = _number(fields, _ENDS)
    if start is not None and end is not None and start <= end:
        return min(start, len(text)), min(end, len(text))
    place = _number(fields, ["index"])
    if place is not None:  # OpenAI's `file_citation` stands at one place
        return min(place, len(text)), min(place, len(text))
    if "cited_text" in fields:  # Anthropic's is of the whole part
        return 0, len(text)
    return 0, 0


def _page(chunk: Mapping[str, Any]) -> str:
    """The address, or else the title, of a page that Gemini was shown."""
    page = mapping(chunk, "web") or mapping(chunk, "retrievedContext")
    page = page or mapping(chunk, "retrieved_context") or mapping(chunk, "maps")
    return str(page.get("uri") or page.get("title") or "")


def _either(fields: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    """The mappings in the first of these fields that holds some."""
    for name in names:
        objects = mappings(fields, name)
        if objects:
            return objects
    return []


def _characters(encoded: bytes, count: int) -> int:
    """How many characters the first `count` bytes are."""
    return len(encoded[:count].decode("utf-8", "ignore"))


def _number(fields: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The first of these fields that holds something, where that is a place or a number of one."""
    value = first(fields, names)
    return value if isinstance(value, int) and value >= 0 else None
