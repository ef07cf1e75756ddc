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


def test_an_empty_passage_keeps_its_place():
    assert texts([{"id": "1", "text": ""}, {"id": "2", "text": FOUND}]) == ["", FOUND]
