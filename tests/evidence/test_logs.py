"""In logs of other programs, too, what a tool says itself is a note, is counted, and is shown."""

import json

import pytest
from agent_rows import lines_of
from dialect_texts import EVERY, tool_of, verdict

from faithful_search import parse
from faithful_search.dialects import load
from faithful_search.evidence import supporting_passages
from faithful_search.measure.audit import audit
from faithful_search.rewards import AnswerSupport, SourceGated, ToolUse
from faithful_search.rewards.citation_support import CitationSupport
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

PASSAGE = {"title": "Ada", "url": "https://ex.org/ada", "text": "Ada was born in Veldt."}
TYPED = [{"type": "text", "text": "quota"}]


def chat(content, name: str = "search", **arguments):
    """A chat whose tool returned this; the answer is what the agent guessed in its query."""
    arguments = arguments or {"query": "Ada born Oslo"}
    call = {"id": "1", "function": {"name": name, "arguments": json.dumps(arguments)}}
    written = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return [
        {"role": "user", "content": "Where was Ada born?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": written},
        {"role": "assistant", "content": "Oslo"},
    ]


def read(content, **arguments) -> Step:
    return parse(chat(content, **arguments)).steps[0]


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("Error: no page about 'Ada born Oslo'", "Error: no page about 'Ada born Oslo'"),
        ({"content": TYPED, "isError": True}, "quota"),
        ({"isError": True, "structuredContent": {"results": [PASSAGE]}}, "failed"),
        ({"error": "quota", "results": []}, "quota"),
        ({"success": False, "message": "quota"}, "quota"),
        ({"status": "error", "content": "quota"}, "quota"),
        ({"content": [{"type": "text", "text": "No results."}], "isError": False}, "No results."),
        ([{"error": "quota"}, {"error": "down"}], "quota\ndown"),
        ({"query": "Ada born Oslo", "results": []}, '{"query": "Ada born Oslo", "results": []}'),
        ("{'error': 'quota'}", "quota"),
        ({"result": "No results found."}, "No results found."),
    ],
)
def test_a_call_that_failed_or_found_nothing_has_a_note(content, note):
    step = read(content)
    assert step.evidence == ()
    assert step.note == note


@pytest.mark.parametrize(
    "content",
    [
        {"structuredContent": {"results": [PASSAGE]}, "content": TYPED, "isError": False},
        {"content": [{"type": "text", "text": json.dumps([PASSAGE])}], "isError": False},
        {
            "content": [{"type": "text", "text": json.dumps({"results": [PASSAGE]})}],
            "isError": False,
        },
        {"error": None, "results": [PASSAGE]},
        {"status": 200, "results": [PASSAGE]},
        [PASSAGE],
        [PASSAGE | {"status": "failed"}],
    ],
)
def test_what_was_found_is_evidence(content):
    [item] = read(content).evidence
    assert (item.title, item.url, item.text) == tuple(PASSAGE.values())


@pytest.mark.parametrize(
    "content",
    [
        [PASSAGE, {"url": "https://ex.org/b", "error": "quota"}],
        {"error": "quota", "results": [PASSAGE]},
        [PASSAGE, {"note": "quota"}],
    ],
)
def test_a_failure_beside_a_result_is_a_note_beside_evidence(content):
    step = read(content)
    assert [item.title for item in step.evidence] == ["Ada"]
    assert step.note == "quota"


@pytest.mark.parametrize("content", [{"result": 0}, {"answer": 0}, {"answer": False}])
def test_a_number_that_a_tool_returned_is_evidence(content):
    [item] = read(content).evidence
    assert item.text == json.dumps(content)


UNSEEN = "\u200b\ufeff"


def test_a_page_of_characters_without_width_is_empty():
    pages = read([PASSAGE, {"title": "Bo", "url": "https://ex.org/bo", "text": UNSEEN}]).evidence
    assert [page.text for page in pages] == [PASSAGE["text"], ""]


@pytest.mark.parametrize("content", [UNSEEN, {"result": UNSEEN}, [{"text": UNSEEN}], [UNSEEN]])
def test_a_response_of_characters_without_width_is_a_note(content):
    step = read(content)
    assert step.evidence == ()
    assert step.note


def test_in_a_text_with_tags_such_a_response_is_no_evidence():
    text = f"<search>Ada</search><information>{UNSEEN}</information><answer>Oslo</answer>"
    assert parse(text, "search_r1").passages == []


WALL = {"title": "Ada", "url": "https://ex.org/b", "text": "Verify you are human to see Oslo."}


def test_a_wall_among_pages_keeps_its_place_and_supports_nothing():
    found = parse(chat([PASSAGE, WALL]))
    assert [item.url for item in found.passages] == ["https://ex.org/ada", "https://ex.org/b"]
    assert [item.url for item in supporting_passages(found)] == ["https://ex.org/ada"]
    assert AnswerSupport().score(found).value == 0.0


@pytest.mark.parametrize(("number", "value"), [(1, 1.0), (2, 0.0)])
def test_a_citation_of_a_wall_is_not_supported(number, value):
    messages = chat([PASSAGE, WALL])
    messages[-1]["content"] = f"Ada was born in Veldt [{number}]."
    assert CitationSupport().score(parse(messages)).value == value


def test_what_a_thinking_tool_repeats_is_a_note():
    step = read("Reflection recorded: it is Oslo", name="think", reflection="it is Oslo")
    assert step.evidence == ()


@pytest.mark.parametrize("name", EVERY)
def test_in_every_dialect_an_error_in_prose_is_a_note(name):
    call = ToolCall(tool_of(name), {"query": "Ada born Oslo"})
    first = Step(think="a", call=call, note="SLOT")
    last = Step(think="b", answer="Oslo", **verdict(name))
    text = load(name).render(Trajectory((first, last)))
    for note in ("No results found for 'Ada born Oslo'.", "Error: Ada born Oslo: 429"):
        found = parse(text.replace("SLOT", note), name)
        assert found.steps[0].evidence == ()
        assert SourceGated().score(found).value in (None, 0.0)


def test_a_call_answered_by_a_note_wastes_no_evidence():
    assert ToolUse("unused").score(parse(chat("Error: 429"))).value is None


def test_our_own_text_is_read_as_it_was_written():
    call = ToolCall("search", {"query": "q"})
    items = (Evidence("No results.", "A page", "E1"),)
    last = Step(think="b", answer="x", helpful=True, refs=("E1",))
    text = load("pou").render(Trajectory((Step(think="a", call=call, evidence=items), last)))
    assert parse(text, "pou", fenced=True).steps[0].evidence == items


def rows(path, *contents):
    lines = (json.dumps({"messages": chat(content), "answers": ["Veldt"]}) for content in contents)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_audit_counts_what_was_taken_for_a_note(tmp_path):
    contents = [
        "Error: 429",
        "No results.",
        "Verify you are human.",
        "Ada born Oslo",
        {"note": "x"},
    ]
    path = rows(tmp_path / "a.jsonl", *contents, [PASSAGE], [PASSAGE, {"error": "quota"}])
    found = audit(path, tmp_path / "out")
    assert found.noted == {"error": 2, "empty": 1, "wall": 1, "echo": 1, "other": 1}
    assert found.evidence == 2
    assert found.clean == found.n


def test_an_audit_says_what_was_taken_for_a_note(tmp_path):
    path = rows(tmp_path / "a.jsonl", "Error: 429", "Error: 503", "No results.", [PASSAGE])
    shown = str(audit(path, tmp_path / "out"))
    assert "notes, which are no evidence: 3 (errors 2, nothing found 1)" in shown
    assert [line["notes"] for line in lines_of(tmp_path / "out" / "scores.jsonl")] == [
        {"error": 1},
        {"error": 1},
        {"empty": 1},
        {},
    ]


def test_an_audit_without_notes_says_nothing_of_them(tmp_path):
    shown = str(audit(rows(tmp_path / "a.jsonl", [PASSAGE]), tmp_path / "out"))
    assert "which are no evidence" not in shown
