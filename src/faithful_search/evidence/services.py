"""Responses of search services, in JSON, that hold no result.

Beside its lists of results a service says what it was asked, what that cost, and what else might be
asked. This module takes that out of a response whose lists are empty; what is then left in it, such
as an answer, is evidence. A field that may state a fact stays.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_DEEPEST = 20
# Names of fields are compared in lower case, their words joined by "_"
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
# Fields by which a response says that it is a search's, and what Brave, Bing and Google write there
_KIND_FIELDS = ("type", "kind")
_SEARCH_KIND = re.compile(r"(?:\w{1,40}#)?search(?:_?(?:response|results))?", re.IGNORECASE)
_RESULTS = frozenset(
    (
        *("results", "result", "search_results", "search_result", "organic", "organic_results"),
        *("web", "news", "web_pages", "value", "hits", "items", "data", "documents", "docs"),
        *("passages", "sources", "chunks", "matches", "entries", "records", "papers", "articles"),
        *("search", "idlist", "related_topics", "bindings"),
    )
)
_TOTAL = re.compile(
    r"(?:formatted_|odata_)?(?:total|count|(?:total|count|num|number|hit|found|result)"
    r"(?:_?(?:of|results?|hits?|size|count|found|items|estimated|matches)){1,3})"
)
# Fields that are left out with all that stands in them: what was asked, how that went, and what else
# may be asked
_OF_REQUEST = re.compile(
    r"search_?(?:parameters|params|metadata|information|info|intent)|shards|meta|usage|queries"
    r"|(?:query|request)_(?:context|info|metadata|parameters)|ranking_response|response_header"
    r"|pagination|\w{1,40}_pagination|paging|cost_dollars|suggestions|corrections|spelling"
    r"|related_searches|unresponsive_engines|query_?translation|translation_?set|error_?list"
    r"|warning_?list"
)
# Fields that are left out where they hold a single word, and where they hold a number. A name that
# may also be that of a fact, as `cost`, `index` or `relation`, is in neither.
_WORD_OF_REQUEST = re.compile(
    r"(?:request|response|search|query|log|trace|session)_(?:id|uuid)"
    r"|(?:next_|next_page_|page_|attribution_|continuation_)token"
    r"|(?:search|response|request|query|total|elapsed|processing|formatted_search)_time(?:_taken)?"
    r"|resolved_search_type|namespace|odata_context|(?:web_)?search_url|message_(?:type|version)"
)
_NUMBER_OF_REQUEST = re.compile(
    r"latency|took|(?:took|elapsed|search|response|query|request|processing)_(?:time_)?(?:ms|millis)"
    r"|credits(?:_used)?|page|offset|limit|(?:items_)?per_page|page_size|start_index|start_at"
    r"|max_results|top_k|retmax|retstart"
)
# Fields whose 0 or "false" states no fact: how many results there are, and how a program ended. A
# `result`, a `value` or `data` may be a fact.
_COUNTED = _RESULTS - {"result", "value", "data"} | {"found"}
_OF_PROGRAM = re.compile(r"(?:exit|return)_?(?:code|status)")
# Fields that are left out where they hold these fields and no others: of Google what it says of its
# engine and its address, of PubMed its header, of SPARQL the columns, of Elasticsearch how exact a
# total is
_OF_SERVICE = {
    "context": frozenset(("title", "facets")),
    "url": frozenset(("type", "template")),
    "header": frozenset(("type", "version")),
    "head": frozenset(("vars", "link")),
    "total": frozenset(("value", "relation")),
}


class _Field(NamedTuple):
    """A field anywhere in a response; its name as `_in_words` writes it."""

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


def tells_how_it_went(name: str) -> bool:
    """Whether a 0 or a "false" in a field of this name says how a search or a program went.

    Example:
        >>> tells_how_it_went("totalResults"), tells_how_it_went("temperature")
        (True, False)
    """
    words = _in_words(name)
    if words in _COUNTED or _TOTAL.fullmatch(words):
        return True
    return _OF_PROGRAM.fullmatch(words) is not None


def _found_nothing(response: Mapping[str, Any]) -> bool:
    """Whether the response says that it is a search's, or has a list or a total of results; and all
    of these lists and totals are empty.
    """
    is_of_search = any(_is_search_kind(_in_words(key), value) for key, value in response.items())
    for name, value in _fields(response):
        if name in _RESULTS and isinstance(value, list):
            if any(_holds_something(entry) for entry in value):
                return False
            is_of_search = True
        elif _TOTAL.fullmatch(name) and str(value).isdecimal():
            if not _is_zero(value):
                return False
            is_of_search = True
    return is_of_search


def _fields(value: Any, depth: int = 0) -> Iterator[_Field]:
    """All fields in a response, however deep, but those of `_OF_REQUEST` and what is in them."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for entry in value:
            yield from _fields(entry, depth + 1)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            name = _in_words(key)
            if not _OF_REQUEST.fullmatch(name):
                yield _Field(name, entry)
                yield from _fields(entry, depth + 1)


def _kept(value: Any, field: str = "", depth: int = 0) -> Any:
    """The value without what it says of the request; `field` is the name of the field it is in."""
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_kept(entry, field, depth + 1) for entry in value]
    if not isinstance(value, Mapping):
        return value
    fields = {}
    for key, entry in value.items():
        name = _in_words(key)
        if _OF_REQUEST.fullmatch(name) or _is_of_service(name, entry):
            continue
        if isinstance(entry, list | Mapping):
            fields[key] = _kept(entry, name, depth + 1)
        elif field != "query" and not _is_of_request(name, entry):  # Brave writes what was asked
            fields[key] = entry
    return fields


def _is_of_request(name: str, entry: Any) -> bool:
    """Whether a field that holds no other fields only speaks of the request."""
    if _is_search_kind(name, entry):
        return True
    if isinstance(entry, int | float) and entry == 0:  # also `False`, as in `"timed_out": false`
        return True
    if _TOTAL.fullmatch(name):
        return _is_zero(entry)
    if _NUMBER_OF_REQUEST.fullmatch(name):
        return isinstance(entry, int | float) or str(entry).isdecimal()
    return _WORD_OF_REQUEST.fullmatch(name) is not None and len(str(entry).split()) < 2


def _is_search_kind(name: str, entry: Any) -> bool:
    """Whether a response says by this field that it is a search's."""
    if name not in _KIND_FIELDS or not isinstance(entry, str):
        return False
    return _SEARCH_KIND.fullmatch(entry) is not None


def _is_of_service(name: str, entry: Any) -> bool:
    """Whether an object is one of `_OF_SERVICE`."""
    allowed = _OF_SERVICE.get(name)
    return allowed is not None and isinstance(entry, Mapping) and entry.keys() <= allowed


def _is_zero(value: Any) -> bool:
    return str(value) == "0"


def _holds_something(value: Any, depth: int = 0) -> bool:
    """Whether anything but `None` and empty texts stands in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list) and depth <= _DEEPEST:
        return any(_holds_something(entry, depth + 1) for entry in value)
    return value not in (None, "")


def _in_words(key: str) -> str:
    """The name of a field in lower case, its words joined by "_": "webPages" is "web_pages"."""
    return _BETWEEN_WORDS.sub("_", key).strip("_").lower()
