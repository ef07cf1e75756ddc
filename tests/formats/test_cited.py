"""What APIs send beside a text about its sources."""

import pytest

from faithful_search import parse
from faithful_search.citations import read_answer
from faithful_search.reading.rows import READER
from faithful_search.trajectory import Citation, Trajectory

FOUND = '[{"title": "Ada Mirov", "url": "https://ex.org/ada", "text": "Born in Veldt."}]'
CALL = {"id": "1", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
SEARCH = [
    {"role": "user", "content": "Where was Ada born?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": FOUND},
]
ANSWER = "In Veldt. It is old."
ADA = "https://ex.org/ada"


def cited(message: dict) -> tuple[Citation, ...]:
    """The citations of the answer in the last message of a chat."""
    return parse([*SEARCH, {"role": "assistant", **message}]).steps[-1].citations


GROUNDED = {
    "grounding_chunks": [{"web": {"uri": ADA, "title": "ex.org"}}],
    "grounding_supports": [
        {"segment": {"start_index": 0, "end_index": 9}, "grounding_chunk_indices": [0]}
    ],
}
URL = {"type": "url_citation", "start_index": 0, "end_index": 9, "url": ADA, "title": "Ada"}
MESSAGES = {
    "openai, text": {
        "content": [{"type": "output_text", "text": ANSWER, "annotations": [URL]}]
    },
    "openai, chat": {
        "content": ANSWER,
        "annotations": [{"type": "url_citation", "url_citation": {**URL, "type": None}}],
    },
    "anthropic": {
        "content": [
            {
                "type": "text",
                "text": "In Veldt.",
                "citations": [{"type": "web_search_result_location", "url": ADA, "cited_text": ""}],
            },
            {"type": "text", "text": " It is old."},
        ]
    },
    "cohere": {
        "content": ANSWER,
        "citations": [{"start": 0, "end": 9, "text": "In Veldt.", "sources": [{"id": ADA}]}],
    },
    "gemini": {
        "content": ANSWER,
        "groundingMetadata": {
            "groundingChunks": [{"web": {"uri": ADA, "title": "ex.org"}}],
            "groundingSupports": [
                {"segment": {"startIndex": 0, "endIndex": 9}, "groundingChunkIndices": [0]}
            ],
        },
    },
    "gemini, in Python": {"content": ANSWER, "grounding_metadata": GROUNDED},
    "gemini, through LangChain": {
        "content": ANSWER,
        "response_metadata": {"grounding_metadata": GROUNDED},
    },
    "gemini, through the AI SDK": {
        "content": ANSWER,
        "providerMetadata": {"google": {"groundingMetadata": GROUNDED, "safetyRatings": None}},
    },
    "gemini, twice": {
        "content": ANSWER,
        "grounding_metadata": GROUNDED,
        "response_metadata": {"grounding_metadata": GROUNDED},
    },
}  # fmt: skip


@pytest.mark.parametrize("api", MESSAGES)
def test_words_and_address_of_a_citation(api):
    assert cited(MESSAGES[api]) == (Citation((0, 9), ADA, "api"),)


@pytest.mark.parametrize("api", MESSAGES)
def test_a_citation_finds_the_passage(api):
    found = parse([*SEARCH, {"role": "assistant", **MESSAGES[api]}])
    ((passage,),) = [source.passages for source in read_answer(found).sources]
    assert passage.evidence.text == "Born in Veldt."


@pytest.mark.parametrize("api", MESSAGES)
def test_what_cites_comes_back_from_json(api):
    found = parse([*SEARCH, {"role": "assistant", **MESSAGES[api]}])
    assert Trajectory.from_json(found.to_json()) == found


def test_places_behind_a_thought_are_the_answers():
    message = {"reasoning_content": "So I know it.", **MESSAGES["openai, chat"]}
    assert cited(message) == (Citation((0, 9), ADA, "api"),)


def test_places_of_several_texts_are_those_of_all():
    parts = [
        {"type": "text", "text": "It is old. "},
        *MESSAGES["anthropic"]["content"][:1],
    ]
    assert cited({"content": parts}) == (Citation((11, 20), ADA, "api"),)


def test_places_in_bytes_are_read_as_characters():
    supports = [{"segment": {"startIndex": 12, "endIndex": 21}, "groundingChunkIndices": [0]}]
    metadata = {"groundingChunks": [{"web": {"uri": ADA}}], "groundingSupports": supports}
    message = {"content": "Zürich é. In Veldt.", "groundingMetadata": metadata}
    assert cited(message) == (Citation((10, 19), ADA, "api"),)


def of_gemini(parts: list[dict], *segments: dict) -> dict:
    """A message of these parts, of which these segments cite a page."""
    supports = [{"segment": segment, "groundingChunkIndices": [0]} for segment in segments]
    metadata = {"groundingChunks": [{"web": {"uri": ADA}}], "groundingSupports": supports}
    return {"role": "model", "parts": parts, "groundingMetadata": metadata}


OLD, VELDT = {"text": "Zürich é. "}, {"text": "In Veldt. Old."}
CODE = [{"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}]
THOUGHT = {"text": "So I know it.", "thought": True}
SECOND = {"partIndex": 1, "startIndex": 0, "endIndex": 9}
PIECES = [{"text": "So. "}, {"text": "Well. In Veldt. It is old."}]
LATER = {"startIndex": 10, "endIndex": 19}
PLACES = {
    "second": ([OLD, VELDT], SECOND, "In Veldt."),
    "second, in Python": ([OLD, VELDT], {"part_index": 1, "end_index": 9}, "In Veldt."),
    "second, in bytes": ([VELDT, OLD], {"partIndex": 1, "endIndex": 11}, "Zürich é."),
    "first": ([OLD, VELDT], {"endIndex": 11}, "Zürich é."),
    "behind a thought": ([THOUGHT, VELDT], SECOND, "In Veldt."),
    "behind code": ([*CODE, VELDT], {"partIndex": 2, "endIndex": 9}, "In Veldt."),
    "behind words and code": ([OLD, *CODE, VELDT], {"partIndex": 3, "endIndex": 9}, "In Veldt."),
    "in pieces": (PIECES, LATER, "In Veldt."),
    "in pieces, by words": (PIECES, {**LATER, "partIndex": 1, "text": "In Veldt."}, "In Veldt."),
    "no such part": ([OLD, VELDT], {"partIndex": 9, "endIndex": 11}, "Zürich é."),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_places_in_a_part_are_read_in_the_answer(place):
    parts, segment, words = PLACES[place]
    step = parse([SEARCH[0], of_gemini(parts, segment)]).steps[-1]
    assert [step.answer[slice(*citation.span)] for citation in step.citations] == [words]


def test_what_is_said_before_a_result_cites_there():
    segments = [{"endIndex": 11}, {"partIndex": 3, "endIndex": 9}]
    steps = parse([SEARCH[0], of_gemini([OLD, *CODE, VELDT], *segments)]).steps
    assert [citation.span for citation in steps[-2].citations] == [(0, 9)]


def test_a_file_is_cited_behind_the_words_before_a_result():
    result = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    content = [{"type": "text", "text": "So."}, call, result, {"type": "text", "text": "In Veldt."}]
    beside = [{"type": "file_citation", "file_id": "f", "index": place} for place in (3, 12)]
    steps = parse(
        [SEARCH[0], {"role": "assistant", "content": content, "annotations": beside}]
    ).steps
    spans = [[citation.span for citation in step.citations] for step in steps]
    assert spans == [[(3, 3)], [(9, 9)]]


@pytest.mark.parametrize("name", ["web", "retrievedContext", "retrieved_context", "maps"])
def test_a_page_is_cited_whatever_gemini_found_it_with(name):
    supports = [{"segment": {"endIndex": 9}, "groundingChunkIndices": [0]}]
    metadata = {"groundingChunks": [{name: {"uri": ADA}}], "groundingSupports": supports}
    message = {"content": ANSWER, "groundingMetadata": metadata}
    assert cited(message) == (Citation((0, 9), ADA, "api"),)


def test_a_file_is_cited_at_a_place():
    beside = [{"type": "file_citation", "file_id": "file-1", "filename": "a.pdf", "index": 9}]
    assert cited({"content": ANSWER, "annotations": beside}) == (Citation((9, 9), "file-1", "api"),)


def test_a_source_without_a_place_is_cited_by_no_sentence():
    beside = [{"type": "url_citation", "url": ADA}]
    assert cited({"content": ANSWER, "annotations": beside}) == (Citation((0, 0), ADA, "api"),)


def test_what_an_api_quotes_is_the_text_of_a_page_without_one():
    page = {"type": "web_search_result", "url": ADA, "title": "Ada", "encrypted_content": "x"}
    quoted = {"type": "web_search_result_location", "url": ADA, "cited_text": "Born in Veldt."}
    content = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "Ada"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]},
        {"type": "text", "text": "In Veldt.", "citations": [quoted]},
    ]
    found = parse([SEARCH[0], {"role": "assistant", "content": content}])
    assert [item.text for item in found.passages] == ["Born in Veldt."]


def test_azure_numbers_its_documents():
    documents = [{"content": "It is old.", "url": ADA}, {"content": "Born in Veldt.", "url": ADA}]
    context = {"citations": documents, "intent": "Ada"}
    reply = {"role": "assistant", "content": "In Veldt [doc2].", "context": context}
    [source] = read_answer(parse([*SEARCH, reply])).sources
    assert [passage.text for passage in source.passages] == ["Born in Veldt."]


def test_what_an_api_quotes_takes_no_texts_place():
    quoted = {"type": "web_search_result_location", "url": ADA, "cited_text": "Something else."}
    content = [{"type": "text", "text": "In Veldt.", "citations": [quoted]}]
    found = parse([*SEARCH, {"role": "assistant", "content": content}])
    assert [item.text for item in found.passages] == ["Born in Veldt."]


@pytest.mark.parametrize(
    "beside",
    [
        {"annotations": 3},
        {"annotations": [3, None, [], {"type": "url_citation"}]},
        {"annotations": [{"url": ADA, "start_index": "a", "end_index": -1}]},
        {"annotations": [{"url": ADA, "start_index": 900, "end_index": 1000}]},
        {"annotations": [{"url": [ADA], "start_index": 9, "end_index": 2}]},
        {"citations": [{"sources": 3, "cited_text": 4}]},
        {"citations": ["https://ex.org/a"]},
        {"groundingMetadata": {"groundingSupports": [{"groundingChunkIndices": [9, "a"]}]}},
        {"groundingMetadata": {"groundingChunks": [3], "groundingSupports": [{"segment": 3}]}},
    ],
)
def test_broken_fields_break_nothing(beside):
    for citation in cited({"content": ANSWER, **beside}):
        assert 0 <= citation.span[0] <= citation.span[1] <= len(ANSWER)


def test_old_files_without_labels_and_citations_load():
    line = b'{"steps": [{"answer": "x", "evidence": [{"text": "y", "id": "E1"}]}], "answer": "x"}'
    assert READER.parse(line).steps[0].citations == ()


@pytest.mark.parametrize("name", ["id", "docid", "citationId", "_id", "index"])
def test_the_id_of_a_result_is_its_label(name):
    found = parse([*SEARCH[:2], {**SEARCH[2], "content": f'[{{"{name}": 7, "text": "Veldt."}}]'}])
    assert [item.label for item in found.passages] == ["7"]


def test_passages_numbered_in_each_response_have_their_numbers():
    docs = 'Doc 1(Title: "Seine") long\nDoc 2(Title: "Loire") longer\n'
    turn = f"<think>x</think><search>q</search><information>{docs}</information>"
    found = parse(f"{turn}{turn}<think>x</think><answer>Loire</answer>", dialect="search_r1")
    assert [item.label for item in found.passages] == ["1", "2", "1", "2"]


def test_citations_keep_their_places_in_messages_that_are_joined():
    first = {"role": "assistant", "content": "I know."}
    second = {"role": "assistant", "content": ANSWER, "annotations": [URL]}
    step = parse([*SEARCH, first, second]).steps[-1]
    [citation] = step.citations
    assert step.answer[slice(*citation.span)] == "In Veldt."
