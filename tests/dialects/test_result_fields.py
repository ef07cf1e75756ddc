"""What tools return in JSON: no text is lost under a name that is not known."""

import json
from typing import Any

import pytest

from faithful_search.dialects import load

FOUND = "Ada was born in the town of Veldt."
RIVER = "Veldt lies on the river Sule."
PAGE = {"title": "Ada", "url": "https://ex.org/ada"}


def texts(body: Any) -> list[str]:
    evidence, _ = load("openai").read_body(json.dumps(body))
    return [passage.text for passage in evidence]


ALONE: dict[str, Any] = {
    "an empty field beside it": {"text": "", "observation": FOUND},
    "an empty list beside it": {"stdout": FOUND, "content": []},
    "an unknown name in a page": [{**PAGE, "chunk_text": FOUND}],
    "an unknown name in a result": {"results": [{**PAGE, "chunk_text": FOUND, "score": 0.3}]},
    "an answer without results": {"results": [], "answer": FOUND},
    "a resource of MCP's": {
        "content": [{"type": "resource", "resource": {"uri": "file://a", "text": FOUND}}],
        "isError": False,
    },
    "a link of MCP's": {
        "content": [{"type": "resource_link", "uri": "https://ex.org/a", "description": FOUND}],
        "isError": False,
    },
}


@pytest.mark.parametrize("body", ALONE.values(), ids=ALONE)
def test_the_text_is_evidence(body):
    assert texts(body) == [FOUND]


PAGES = [{**PAGE, "content": FOUND}, {"url": "https://ex.org/veldt", "content": RIVER}]
LISTED = json.dumps({"results": PAGES})
WRAPPED: dict[str, Any] = {
    "a part of MCP's": {"type": "text", "text": LISTED, "annotations": None, "meta": None},
    "a list of one part": [{"type": "text", "text": LISTED}],
    "a part for each page": [{"type": "text", "text": json.dumps(page)} for page in PAGES],
    "a text of JSON": LISTED,
    "a field": {"result": LISTED},
    "a field beside a status": {"status": "success", "data": LISTED, "error": None},
    "a field in a field": {"output": json.dumps({"result": LISTED})},
}


@pytest.mark.parametrize("body", WRAPPED.values(), ids=WRAPPED)
def test_pages_in_the_json_of_a_text_are_told_apart(body):
    assert texts(body) == [FOUND, RIVER]


@pytest.mark.parametrize("name", ["result", "output", "data"])
def test_prose_in_a_field_is_read_without_its_json(name):
    assert texts({name: f"[1] {FOUND}\n[2] {RIVER}"}) == [f"[1] {FOUND}\n[2] {RIVER}"]


def test_documents_in_the_json_of_a_search_server_are_told_apart():
    body = json.dumps({"result": f'Doc 1(Title: "Ada") {FOUND}\nDoc 2(Title: "Veldt") {RIVER}'})
    evidence, _ = load("search_r1").read_body(body)
    assert [(passage.title, passage.text) for passage in evidence] == [
        ("Ada", FOUND),
        ("Veldt", RIVER),
    ]


@pytest.mark.parametrize("body", ['{"result": ""}', '[{"type": "text", "text": ""}]'])
def test_a_wrapping_of_nothing_is_a_note(body):
    assert load("openai").read_body(body) == ([], body)


def test_a_backslash_in_quotation_marks_stays_one():
    quoted = r'"C:\new\table"'
    evidence, _ = load("openai").read_body(quoted)
    assert [passage.text for passage in evidence] == [quoted]


def test_a_quotation_stays_one():
    assert texts(FOUND) == [f'"{FOUND}"']


def test_structured_content_alone_is_evidence():
    structured = {"content": [], "structuredContent": {"born_in": FOUND}, "isError": False}
    assert FOUND in texts(structured)[0]


@pytest.mark.parametrize("name", ["answer", "summary"])
def test_what_a_service_says_of_its_results_stands_behind_them(name):
    assert texts({name: FOUND, "results": [{**PAGE, "content": RIVER}]}) == [RIVER, FOUND]


@pytest.mark.parametrize("name", ["peopleAlsoAsk", "topStories", "news"])
def test_further_lists_stand_behind_the_results(name):
    further = [{**PAGE, "snippet": FOUND}]
    assert texts({"organic": [{**PAGE, "snippet": RIVER}], name: further}) == [RIVER, FOUND]


@pytest.mark.parametrize(
    "field", [{"date": "on the 29th of November 2026"}, {"page_age": "about two years and a day"}]
)
def test_a_date_is_no_text(field):
    assert texts([{**PAGE, **field}]) == [""]


BESIDE: dict[str, Any] = {
    "Tavily": {"content": FOUND, "raw_content": RIVER},
    "You.com": {"description": FOUND, "snippets": [RIVER]},
    "Bocha": {"snippet": FOUND, "summary": RIVER},
    "Brave": {"description": FOUND, "extra_snippets": [RIVER]},
    "a part of an object": {"content": {"text": FOUND, "type": "TEXT"}, "excerpts": [RIVER]},
}


@pytest.mark.parametrize("fields", BESIDE.values(), ids=BESIDE)
def test_all_texts_of_a_page_are_evidence(fields):
    assert texts({"results": [{**PAGE, **fields}]}) == [f"{FOUND}\n{RIVER}"]


def test_a_text_that_another_holds_is_read_once():
    page = {**PAGE, "snippet": RIVER, "raw_content": f"{FOUND} {RIVER}", "highlights": [FOUND]}
    assert texts([page]) == [f"{FOUND} {RIVER}"]


def test_a_text_that_is_quoted_in_pieces_is_read_once():
    page = {**PAGE, "text": f"{FOUND} So it is. {RIVER}", "highlights": [FOUND, RIVER]}
    assert texts([page]) == [page["text"]]


def test_a_switch_is_no_text():
    assert texts([{**PAGE, "text": FOUND, "answer": True}]) == [FOUND]


@pytest.mark.parametrize("name", ["pages", "points"])
@pytest.mark.parametrize("numbers", [["12", "34"], [12, 34], [[0, 1]], [{"number": 1}]])
def test_what_a_page_lists_of_itself_is_no_passage(name, numbers):
    assert texts([{**PAGE, "abstract": FOUND, name: numbers}]) == [FOUND]


STORED: dict[str, Any] = {
    "Qdrant": [{"id": "7", "score": 0.9, "payload": {**PAGE, "page_content": FOUND}}],
    "points": {"points": [{"id": "7", "payload": {"text": FOUND, "metadata": PAGE}}]},
    "LlamaIndex": [{"node": {"id_": "7", "text": FOUND, "metadata": PAGE}, "score": 0.8}],
    "Haystack": {"documents": [{"id": "7", "content": FOUND, "meta": PAGE}]},
    "LangChain": [
        {"id": 7, "lc": 1, "type": "constructor", "kwargs": {"text": FOUND, "metadata": PAGE}}
    ],
    "Bedrock": {
        "retrievalResults": [
            {
                "id": "7",
                "title": "Ada",
                "content": {"text": FOUND, "type": "TEXT"},
                "location": {"type": "WEB", "webLocation": {"url": PAGE["url"]}},
            }
        ]
    },
    "Azure": {"value": [{"id": "7", "@search.score": 0.9, **PAGE, "chunk": FOUND}]},
    "by id": {"results": {"7b": {**PAGE, "text": FOUND}}},
    "Parallel": {"results": [{"id": "7", **PAGE, "excerpts": [FOUND]}]},
    "Firecrawl": {
        "data": {
            "id": "7",
            "markdown": FOUND,
            "metadata": {"title": "Ada", "sourceURL": PAGE["url"]},
        }
    },
}


@pytest.mark.parametrize("body", STORED.values(), ids=STORED)
def test_what_a_store_or_a_service_says_of_a_passage_is_found(body):
    [passage], _ = load("openai").read_body(json.dumps(body))
    assert (passage.title, passage.url, passage.text) == ("Ada", PAGE["url"], FOUND)
    assert passage.label.startswith("7")


def test_what_a_result_is_wrapped_in_is_no_label():
    evidence, _ = load("openai").read_body(json.dumps([{"page": {**PAGE, "text": FOUND}}]))
    assert [passage.label for passage in evidence] == [""]


def test_pages_of_wikipedia_are_told_apart_without_their_numbers():
    pages = {"12": {"title": "Ada", "extract": FOUND}, "13": {"title": "Veldt", "extract": RIVER}}
    evidence, _ = load("openai").read_body(json.dumps({"query": {"pages": pages}}))
    assert [(page.title, page.text, page.label) for page in evidence] == [
        ("Ada", FOUND, ""),
        ("Veldt", RIVER, ""),
    ]


@pytest.mark.parametrize(
    "results", [{"weather": {"text": FOUND}, "degrees": 21}, {"a": {"n": 1}, "b": {"text": FOUND}}]
)
def test_an_object_with_other_fields_is_evidence_as_a_whole(results):
    body = {"results": results}
    assert texts(body) == [json.dumps(body)]


def test_an_empty_passage_keeps_its_place():
    assert texts([{"id": "1", "text": ""}, {"id": "2", "text": FOUND}]) == ["", FOUND]


OF_CHROMA: dict[str, Any] = {
    "ids": [["d1", "d2"]],
    "documents": [[FOUND, RIVER]],
    "metadatas": [[{"title": "Ada", "source": "https://ex.org/ada"}, None]],
    "distances": [[0.1, 0.4]],
    "embeddings": None,
}
IN_COLUMNS: dict[str, Any] = {
    "of a query": OF_CHROMA,
    "of two queries": {
        "ids": [["d1"], ["d2"]],
        "documents": [[FOUND], [RIVER]],
        "metadatas": [[{"title": "Ada", "source": "https://ex.org/ada"}], [None]],
    },
    "got by ids": {name: lists and lists[0] for name, lists in OF_CHROMA.items()},
    "in a result": {"result": OF_CHROMA, "results": [OF_CHROMA]},
}


@pytest.mark.parametrize("body", IN_COLUMNS.values(), ids=IN_COLUMNS)
def test_lists_side_by_side_are_results(body):
    evidence, _ = load("openai").read_body(json.dumps(body))
    read_passages = [(passage.label, passage.title, passage.text) for passage in evidence]
    assert read_passages == [("d1", "Ada", FOUND), ("d2", "", RIVER)]


def test_an_address_among_metadata_is_the_results():
    evidence, _ = load("openai").read_body(json.dumps(OF_CHROMA))
    assert [passage.url for passage in evidence] == ["https://ex.org/ada", ""]


def test_lists_of_nothing_side_by_side_are_a_note():
    body = {"ids": [[]], "documents": [[]], "metadatas": [[]], "included": ["documents"]}
    assert texts(body) == []


@pytest.mark.parametrize(
    "body",
    [
        {"ids": ["d1", "d2"], "documents": [FOUND]},
        {"ids": "d1", "documents": [[FOUND]]},
        {"ids": [["d1"], []], "documents": [[FOUND]], "metadatas": [[None], [None]]},
    ],
)
def test_of_lists_that_do_not_fit_no_text_is_lost(body):
    assert FOUND in "".join(texts(body))
