"""What a search service says where it found nothing is a note."""

import json

import pytest

from faithful_search.evidence import note_kind, supported_by
from faithful_search.evidence.copies import texts_of
from faithful_search.trajectory import Evidence, ToolCall

QUERY = "Ada Mirov born"
BRAVE = {"type": "search", "query": {"original": QUERY, "country": "us", "bad_results": False}}
GOOGLE = {
    "kind": "customsearch#search",
    "url": {"type": "application/json", "template": "https://ex.org/v1?q={searchTerms}"},
    "queries": {"request": [{"title": f"Google Custom Search - {QUERY}", "searchTerms": QUERY}]},
    "context": {"title": "Our own engine"},
    "searchInformation": {"searchTime": 0.2, "totalResults": "0", "formattedTotalResults": "0"},
}
BING = {"_type": "SearchResponse", "queryContext": {"originalQuery": QUERY}, "rankingResponse": {}}
SEARXNG = {
    "query": QUERY,
    "number_of_results": 0,
    "results": [],
    "suggestions": ["Ada Mirov Veldt"],
    "infoboxes": [],
    "unresponsive_engines": [["google", "timeout"]],
}
FOUND_NOTHING = {
    "Brave": {**BRAVE, "mixed": {"type": "mixed", "main": []}, "web": {"results": []}},
    "Brave without pages": BRAVE,
    "Google": GOOGLE,
    "Google, another spelling": {**GOOGLE, "spelling": {"correctedQuery": "Eda Mirov born"}},
    "SearXNG": SEARXNG,
    "Bing": BING,
    "Bing with a list": {**BING, "webPages": {"webSearchUrl": "https://ex.org", "value": []}},
    "Bocha": {"code": 200, "log_id": "a1", "data": {**BING, "webPages": {"value": []}}},
    "You.com": {"results": {"web": [], "news": []}, "metadata": {"query": QUERY, "latency": 0.2}},
    "You.com, older": {"hits": [], "latency": 0.31},
    "DuckDuckGo": {
        "AbstractText": "",
        "RelatedTopics": [],
        "Results": [],
        "meta": {"description": "testing", "name": "Just Another Test"},
    },
    "Firecrawl": {"success": True, "data": {"web": []}, "creditsUsed": 2, "id": "0198-a1"},
    "Serper": {"organic": [], "relatedSearches": [{"query": "Ada Mirov Veldt"}], "credits": 1},
    "Jina": {"code": 200, "data": [], "meta": {"usage": {"tokens": 12}}},
    "Zhipu": {"id": "a1", "search_intent": [{"keywords": "Ada, born"}], "search_result": []},
    "Elasticsearch": {
        "took": 3,
        "_shards": {"total": 1},
        "hits": {"total": {"value": 0, "relation": "eq"}, "hits": []},
    },
    "Pinecone": {"matches": [], "namespace": "wiki", "usage": {"readUnits": 5}},
    "Azure": {"@odata.context": "https://ex.org/$metadata", "@odata.count": 0, "value": []},
    "Crossref": {
        "message-type": "work-list",
        "message": {"total-results": 0, "items": [], "items-per-page": 20},
    },
    "OpenAlex": {"meta": {"count": 0, "per_page": 25}, "results": []},
    "PubMed": {
        "header": {"version": "0.3"},
        "esearchresult": {"count": "0", "retmax": "0", "idlist": [], "querytranslation": "Ada"},
    },
    "Vertex": {"totalSize": 0, "attributionToken": "a1", "summary": {}},
    "SPARQL": {"head": {"link": [], "vars": ["item"]}, "results": {"bindings": []}},
    "Solr": {
        "responseHeader": {"status": 0, "QTime": 1, "params": {"q": QUERY, "wt": "json"}},
        "response": {"numFound": 0, "start": 0, "docs": []},
    },
    "Slack": {"messages": {"total": 0, "paging": {"count": 20, "page": 1}, "matches": []}},
    "Jira": {"startAt": 0, "maxResults": 50, "total": 0, "issues": []},
    "a retriever": {"query": QUERY, "top_k": 5, "results": []},
}
PAGE = {"title": "Ada Mirov", "description": "Ada Mirov was born in Veldt."}


def kind(response: str) -> str | None:
    call = ToolCall("search", {"query": QUERY})
    return note_kind(Evidence(response), texts_of(call))


@pytest.mark.parametrize("response", FOUND_NOTHING.values(), ids=FOUND_NOTHING)
def test_a_service_that_found_nothing_says_so_in_a_note(response):
    assert kind(json.dumps(response)) == "empty"


@pytest.mark.parametrize("response", FOUND_NOTHING.values(), ids=FOUND_NOTHING)
def test_so_does_what_python_printed_of_it(response):
    assert kind(str(response)) == "empty"


@pytest.mark.parametrize("response", FOUND_NOTHING.values(), ids=FOUND_NOTHING)
def test_an_answer_beside_it_is_evidence(response):
    assert kind(json.dumps({**response, "answer": "Veldt"})) is None


@pytest.mark.parametrize(
    "response",
    [
        {**BRAVE, "web": {"results": [PAGE]}},
        {**BRAVE, "news": {"results": [PAGE]}, "web": {"results": []}},
        {**SEARXNG, "infoboxes": [{"content": "Ada Mirov is a poet."}]},
        {**GOOGLE, "context": {"title": "Our own engine", "text": "Ada Mirov is a poet."}},
        {"total": 120, "items": []},
        {"population": 709037, "sources": []},
        {"temperature": 21.5, "items": []},
        {"capital": "Oslo", "results": []},
        {"type": "search", "answer": "Oslo"},
        {"type": "search_result", "place": "Oslo"},
        {"query": {"pages": {"7": {"extract": "Ada Mirov is a poet."}}}, "search": []},
        {"time": "between nine and ten", "results": []},
        {"total": 12},
        {"balance": 1200, "items": []},
        {"corruption_index": 64, "sources": []},
        {"launch_time": "2021-05-03", "sources": []},
        {"credits": "Nolan", "items": []},
        {"is_member": True, "records": []},
        {"relation": "sister", "results": []},
        {"metadata": {"title": "Dune", "author": "Frank Herbert"}, "entries": []},
        {"lap_ms": 81200, "results": []},
        {"native_token": "ETH", "data": []},
        {"response_token": "Ada was born in Veldt.", "results": []},
        {"data": [{"page": 12, "offset": 3}]},
        {"information": {"born": "Oslo"}, "results": []},
        {"head": {"text": "Ada Mirov is a poet."}, "results": {"bindings": []}},
        {"head": {"vars": ["name"]}, "results": {"bindings": [{"name": {"value": "Veldt"}}]}},
    ],
)
def test_what_else_stands_there_is_evidence(response):
    assert kind(json.dumps(response)) is None


ZERO = [
    {"result": 0},
    {"result": False},
    {"result": 0.0, "error": None},
    {"success": True, "result": 0},
    {"query": QUERY, "result": False},
    {"output": 0},
    {"value": 0},
    {"result": {"value": 0}},
    {"result": 0, "unit": ""},
    {"temperature": 0},
    {"is_prime": False},
    [0],
]


@pytest.mark.parametrize("response", ZERO)
def test_a_number_of_none_that_is_all_a_tool_returned_is_evidence(response):
    assert kind(json.dumps(response)) is None


@pytest.mark.parametrize("response", ZERO)
def test_so_is_such_a_number_that_python_printed(response):
    assert kind(str(response)) is None


@pytest.mark.parametrize(
    "response",
    [
        {"count": 0, "items": []},
        {"total": 0},
        {"success": False},
        {"found": False},
        {"hits": 0},
        {"result": None},
        {"result": {"count": 0}},
        {"result": False, "items": []},
        {"exit_code": 0, "stdout": ""},
        {"returnCode": 0},
        {"text": "", "length": 0},
        {"data": [], "has_more": False},
        {"total": 0, "timed_out": False},
        {"query": QUERY, "total": 0},
        {"message": "No results found.", "start": 0},
        {"result": False, "message": "No results found."},
    ],
)
def test_a_number_of_none_that_says_how_it_went_is_a_note(response):
    assert kind(json.dumps(response)) in ("empty", "echo")


@pytest.mark.parametrize("response", [{"claim": QUERY, "upheld": False}, {"x": QUERY, "result": 0}])
def test_what_was_asked_beside_such_a_number_supports_nothing(response):
    call = ToolCall("search", {"query": QUERY})
    [passage] = supported_by([Evidence(json.dumps(response))], call)
    assert QUERY not in passage.text


@pytest.mark.parametrize(
    "text", ["\u200b", "\ufeff", "\u200b \u2060\n\u00ad", '{"text": "\u200d"}']
)
def test_characters_without_width_are_a_note(text):
    assert kind(text) == "empty"


def test_words_among_characters_without_width_are_evidence():
    assert kind("\u200bOslo\u200b") is None


@pytest.mark.parametrize("text", ["<results></results>", "<documents>\n</documents>", "<none />"])
def test_tags_around_nothing_are_a_note(text):
    assert kind(text) == "empty"


@pytest.mark.parametrize("text", ["<a>Oslo</a>", '<img alt="Oslo">', "a < b > c"])
def test_tags_that_say_something_are_evidence(text):
    assert kind(text) is None


def test_a_deep_response_is_read():
    assert kind('{"results": ' + "[" * 5_000 + "]" * 5_000 + "}") is None


def test_a_long_response_is_read():
    pages = [{"page": number, "results": []} for number in range(600)]
    assert kind(json.dumps({"pages": pages})) == "empty"
