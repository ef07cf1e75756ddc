"""Responses of search services, in JSON, that hold no result.

Beside its lists of results a service says what it was asked, what that cost, and what else might be
asked. Where the lists are empty, that is all it says.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_DEEPEST = 20
# Names are compared in lower case, their words joined by "_"
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
# A response that calls itself one of a search: Brave's, Bing's, Google's
_OF_SEARCH = re.compile(r"(?:\w{1,40}#)?search(?:_?(?:response|results))?", re.IGNORECASE)
_KINDS = ("type", "kind")
_RESULTS = frozenset(
    (
        *("results", "result", "search_results", "search_result", "organic", "organic_results"),
        *("web", "news", "web_pages", "value", "hits", "items", "data", "documents", "docs"),
        *("passages", "sources", "chunks", "matches", "entries", "records", "papers", "articles"),
        *("search", "idlist", "related_topics", "bindings"),
    )
)
_TOTAL = re.compile(
    r"(?:formatted_|odata_)?(?:total|count|num|number|hit|found|result)"
    r"(?:_?(?:of|results?|hits?|size|count|found|items|estimated|matches)){0,3}"
)
# What was asked, how it went, and what else may be asked, with all that stands in them
_OF_REQUEST = re.compile(
    r"search_?(?:parameters|params|metadata|information|info|intent)|_?shards|meta|metadata|usage"
    r"|queries|(?:query|request)_(?:context|info|metadata|parameters)|ranking_response"
    r"|response_header|paging|pagination|\w{1,40}_pagination|cost_dollars|suggestions|corrections|spelling"
    r"|related_searches|unresponsive_engines|query_?translation|translation_?set|error_?list"
    r"|warning_?list"
)
# Names of a single code, address or time, and of a single number. A name that may also be that of a
# fact, as `cost`, `index` or `time`, is none of them.
_CODE_OF_REQUEST = re.compile(
    r"(?:request|response|search|query|log|trace|session)_(?:id|uuid)|(?:\w{1,40}_)?token"
    r"|(?:search|response|request|query|total|elapsed|processing|formatted_search)_time(?:_taken)?"
    r"|resolved_search_type|namespace|relation|odata_context|(?:web_)?search_url"
    r"|message_(?:type|version)"
)
_NUMBER_OF_REQUEST = re.compile(
    r"latency|took|(?:\w{1,40}_)?(?:ms|millis)|credits(?:_used)?|page|offset|limit"
    r"|(?:items_)?per_page|page_size|start_index|start_at|max_results|top_k|retmax|retstart"
)
# What Google says of the engine that its user made, PubMed of its response, and SPARQL of a table
_OF_SERVICE = {
    "context": frozenset(("title", "facets")),
    "url": frozenset(("type", "template")),
    "header": frozenset(("type", "version")),
    "head": frozenset(("vars", "link")),
}


class _Field(NamedTuple):
    """A field anywhere in a response, by the words of its name."""

    name: str
    value: Any


def without_request(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response of a service that found nothing, without what it says of the request. Any other
    object stays as it is.

    Example:
        >>> without_request({"latency": 0.3, "hits": [], "answer": "Oslo"})
        {'hits': [], 'answer': 'Oslo'}
        >>> without_request({"latency": 0.3, "answer": "Oslo"})
        {'latency': 0.3, 'answer': 'Oslo'}
    """
    return _kept(response) if _found_nothing(response) else response


def _found_nothing(response: Mapping[str, Any]) -> bool:
    """Whether the response is of a search, and no list of results in it holds any."""
    is_empty = any(_names_a_search(_words_of(key), value) for key, value in response.items())
    for name, value in _fields(response):
        if name in _RESULTS and isinstance(value, list):
            if any(_holds_something(entry) for entry in value):
                return False
            is_empty = True
        elif _TOTAL.fullmatch(name) and str(value).isdecimal():
            if not _is_zero(value):
                return False
            is_empty = True
    return is_empty


def _fields(value: Any, depth: int = 0) -> Iterator[_Field]:
    """All fields in a response but those of the request."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for entry in value:
            yield from _fields(entry, depth + 1)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            name = _words_of(key)
            if not _OF_REQUEST.fullmatch(name):
                yield _Field(name, entry)
                yield from _fields(entry, depth + 1)


def _kept(value: Any, inside: str = "", depth: int = 0) -> Any:
    """The value without what it says of the request; `inside` is the name of its field."""
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_kept(entry, inside, depth + 1) for entry in value]
    if not isinstance(value, Mapping):
        return value
    fields = {}
    for key, entry in value.items():
        name = _words_of(key)
        is_nested = isinstance(entry, list | Mapping)
        if _OF_REQUEST.fullmatch(name) or _is_of_service(name, entry):
            continue
        if is_nested or not (inside == "query" or _is_about_request(name, entry)):
            fields[key] = _kept(entry, name, depth + 1)
    return fields


def _is_about_request(name: str, entry: Any) -> bool:
    """Whether this says of the request what kind it was, what it cost, or that it brought nothing."""
    if entry is False or (_TOTAL.fullmatch(name) and _is_zero(entry)):
        return True
    if _names_a_search(name, entry):
        return True
    if _NUMBER_OF_REQUEST.fullmatch(name):
        return isinstance(entry, int | float) or str(entry).isdecimal()
    return _CODE_OF_REQUEST.fullmatch(name) is not None and len(str(entry).split()) < 2


def _names_a_search(name: str, entry: Any) -> bool:
    """Whether a response calls itself one of a search by this field."""
    is_kind = name in _KINDS and isinstance(entry, str)
    return is_kind and _OF_SEARCH.fullmatch(entry) is not None


def _is_of_service(name: str, entry: Any) -> bool:
    """Whether this is what a service says of itself."""
    fields = _OF_SERVICE.get(name)
    return fields is not None and isinstance(entry, Mapping) and entry.keys() <= fields


def _is_zero(value: Any) -> bool:
    return str(value) == "0"


def _holds_something(value: Any, depth: int = 0) -> bool:
    """Whether a text or a number stands anywhere in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list) and depth <= _DEEPEST:
        return any(_holds_something(entry, depth + 1) for entry in value)
    return value not in (None, "")


def _words_of(key: str) -> str:
    return _WORD_BEGINS.sub("_", key).strip("_").lower()
