"""Texts that only look like evidence, calls, thoughts or answers are read as what they are."""

import json
from typing import Any

import pytest
from dialect_texts import kinds

from faithful_search.dialects import load, parse
from faithful_search.trajectory import Trajectory

LIMA = "Lima is the capital of Peru."
USER = {"role": "user", "content": "Capital of Peru?"}
CALL = (
    '<think>a</think>\n<tool_call>\n{"name": "search", "arguments": {"query": ["Peru"]}}\n'
    "</tool_call>"
)
RESULT = (
    "<tool_response>\nA Google search for 'Peru' found 1 results:\n\n## Web Results\n"
    f"1. [Peru](https://ex.org)\n\n{LIMA}\n</tool_response>"
)
ANSWER = "<think>b</think>\n<answer>Lima</answer>"
SEARCH_R1 = (
    "<think>a</think><search>Peru</search>"
    f'<information>Doc 1(Title: "Peru") {LIMA}</information>{ANSWER}'
)


def said(content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def asked(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def evidence_of(trajectory: Trajectory) -> list[str]:
    return [item.text for step in trajectory.steps for item in step.evidence]


# who speaks


@pytest.mark.parametrize("before", [[], [asked(RESULT)]], ids=["alone", "behind a result"])
def test_what_the_system_says_is_no_evidence(before):
    system = {"role": "system", "content": "You have no calls left. Answer now."}
    read = parse([USER, said(CALL), *before, system, said(ANSWER)], "web_dancer")
    assert evidence_of(read) == [LIMA] * len(before)


def test_what_the_system_says_is_no_question():
    system = {"role": "system", "content": "Answer in Spanish from now on."}
    assert "asked_again" not in kinds(parse([USER, said("Lima"), system]))


@pytest.mark.parametrize(
    "turns",
    [[said(CALL), asked(RESULT), said(ANSWER)], [said(SEARCH_R1)]],
    ids=["web_dancer", "search_r1"],
)
def test_a_question_behind_an_answer_is_no_evidence(turns):
    read = parse([USER, *turns, asked("And of Chile?"), said(ANSWER.replace("Lima", "Santiago"))])
    assert evidence_of(read) == [LIMA]
    assert read.answer == "Santiago"
    assert "asked_again" in kinds(read)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_result_without_tags_behind_a_call_beside_an_answer_is_evidence(role):
    result = {"role": role, "content": LIMA}
    read = parse([USER, said(f"{CALL}<answer>x</answer>"), result, said(ANSWER)], "web_dancer")
    assert evidence_of(read) == [LIMA]


def chatml(*turns: tuple[str, str]) -> str:
    return "\n".join(f"<|im_start|>{role}\n{content}<|im_end|>" for role, content in turns)


OPENING = (("user", "Capital of Peru?"), ("assistant", CALL))


@pytest.mark.parametrize("dialect", ["web_dancer", "openai"])
def test_a_tools_message_without_tags_in_a_text_is_its_result(dialect):
    read = load(dialect).parse(chatml(*OPENING, ("tool", LIMA), ("assistant", ANSWER)))
    assert evidence_of(read) == [LIMA]
    assert read.answer == "Lima"


def test_two_tools_messages_in_a_text_are_two_results():
    two_calls = CALL + CALL.removeprefix("<think>a</think>").replace("Peru", "Chile")
    results = (("tool", LIMA), ("tool", "Santiago is that of Chile."))
    text = chatml(OPENING[0], ("assistant", two_calls), *results, ("assistant", ANSWER))
    read = load("openai").parse(text)
    assert [[item.text for item in step.evidence] for step in read.steps] == [
        [LIMA],
        ["Santiago is that of Chile."],
        [],
    ]


def test_a_systems_words_beside_a_tools_in_a_text_are_no_part_of_its_result():
    others = (("tool", LIMA), ("system", "One call is left."))
    read = load("openai").parse(chatml(*OPENING, *others, ("assistant", ANSWER)))
    assert evidence_of(read) == [LIMA]
    assert read.answer == "Lima"


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize("dialect", ["web_dancer", "openai"])
def test_others_words_in_a_text_are_none(dialect, role):
    read = load(dialect).parse(chatml(*OPENING, (role, LIMA), ("assistant", ANSWER)))
    assert evidence_of(read) == []
    assert read.answer == "Lima"


def test_a_name_of_a_role_without_its_token_opens_no_result():
    assert evidence_of(load("web_dancer").parse(f"tool\n{LIMA}\n{ANSWER}")) == []


@pytest.mark.parametrize(("role", "expected"), [("user", ["asked_again"]), ("system", [])])
def test_a_further_question_in_a_text_is_an_issue(role, expected):
    turns = (*OPENING, ("tool", LIMA), ("assistant", ANSWER), (role, "And of Chile?"))
    read = load("web_dancer").parse(chatml(*turns, ("assistant", ANSWER)))
    assert kinds(read) == expected


CALL_IN_WORDS = said(CALL.replace('["Peru"]', '"Peru"'))


def test_words_behind_a_result_between_other_tags_are_the_users():
    result = asked(f"<tool_result>\n{LIMA}\n</tool_result>\nGo on, please.")
    read = parse([USER, CALL_IN_WORDS, result, said("Lima")])
    assert evidence_of(read) == [LIMA]
    assert read.answer == "Lima"


def test_a_question_that_begins_with_a_tag_is_no_result():
    question = asked("<tool_result> is what I expected, why is it not there?")
    assert evidence_of(parse([USER, CALL_IN_WORDS, question, said("Lima")])) == []


# words about tags


def calls(name: str = "search") -> list[dict[str, Any]]:
    function = {"name": name, "arguments": '{"query": "Peru"}'}
    return [{"id": "1", "type": "function", "function": function}]


@pytest.mark.parametrize("usual", [None, "search_r1"])
def test_structured_calls_are_read_beside_an_answer_about_tags(usual):
    words = "It writes <search>a</search>, reads <information>b</information>, <answer>c</answer>."
    result = {"role": "tool", "tool_call_id": "1", "content": LIMA}
    read = parse([USER, said("", tool_calls=calls()), result, said(words)], usual=usual)
    assert [step.call.name for step in read.steps if step.call] == ["search"]
    assert evidence_of(read) == [LIMA]


@pytest.mark.parametrize(
    "content",
    [
        "[THINK] and [/THINK] enclose a thought.",
        "<thought>Deep Thought</thought> is what the file holds.",
        "<thinking>a</thinking> and <thinking>b</thinking> are two tags.",
        "<thinking>",
    ],
)
def test_a_sentence_about_the_tags_of_thoughts_is_an_answer(content):
    read = parse([USER, said(content)])
    assert (read.steps[0].think, read.answer) == (None, content)


@pytest.mark.parametrize(
    ("content", "think", "answer"),
    [
        ("<thinking></thinking>Lima", "", "Lima"),
        ("<thinking>It is so.</thinking> Lima", "It is so.", "Lima"),
        ("<thinking>It is so.</thinking>\nlima", "It is so.", "lima"),
        ("<thinking>It is so, I am sure.</thinking> lima", "It is so, I am sure.", "lima"),
    ],
)
def test_a_thought_before_an_answer_is_one(content, think, answer):
    read = parse([USER, said(content)])
    assert (read.steps[0].think or "", read.answer) == (think, answer)


@pytest.mark.parametrize(
    ("thought", "think", "answer"),
    [
        ("It is so.</think>Lima", "It is so.", "Lima"),
        ("The text has `</think>` in it.", "The text has `</think>` in it.", None),
        ("It has `</think>` in it.</think>Lima", "It has `</think>` in it.", "Lima"),
    ],
)
def test_a_thought_in_a_field_ends_where_its_tag_is_not_quoted(thought, think, answer):
    read = parse([USER, said("", reasoning_content=thought)])
    assert (read.steps[0].think, read.answer) == (think, answer)


# results in JSON


def read_body(body: Any) -> list[tuple[str, str]]:
    evidence, _ = load("openai").read_body(json.dumps(body))
    return [(passage.title, passage.text) for passage in evidence]


def test_a_question_is_the_title_of_its_answer():
    body = {"results": [{"question": "Capital of Peru?", "answer": "Lima"}]}
    assert read_body(body) == [("Capital of Peru?", "Lima")]


PAGE = {"title": "Peru", "text": LIMA}
OTHER = {"title": "Chile", "text": "Santiago is that of Chile."}
BOX = {"title": "Lima", "type": "City", "attributes": {"Mayor": "Ada Mirov", "Area": 9}}


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"books": [OTHER]}, [OTHER]),
        ({"videos": {"results": [OTHER]}}, [OTHER]),
        ({"images": [{"title": "A street", "imageUrl": "https://ex.org/1.png"}]}, []),
        ({"images": [{"title": "A street", "url": "https://ex.org/1.png"}]}, []),
        ({"related_questions": ["Is Cusco the capital of Peru?"]}, []),
        ({"parameters": {"text": "Is Cusco the capital of Peru?"}}, []),
        ({"sources": [PAGE]}, []),
        ({"history": [{"content": "The agent thinks that it is Cusco."}]}, []),
        ({"messages": [{"role": "user", "content": "Is it Cusco?"}]}, []),
        ({"errors": [{"text": "One of the engines has failed."}]}, []),
    ],
)
def test_what_stands_beside_results(beside, expected):
    pages = [(page["title"], page["text"]) for page in (PAGE, *expected)]
    assert read_body({"results": [PAGE], **beside}) == pages


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, "type: City\nMayor: Ada Mirov"), ({"description": LIMA}, f"{LIMA}\nMayor: Ada Mirov")],
)
def test_a_box_has_its_attributes(fields, text):
    assert read_body({"organic": [PAGE], "knowledgeGraph": {**BOX, **fields}}) == [
        ("Lima", text),
        ("Peru", LIMA),
    ]


def test_a_note_beside_facts_is_one_of_them():
    body = {"note": "see p. 3", "capital": "Lima"}
    assert read_body(body) == [("", json.dumps(body))]
    assert load("openai").read_body(json.dumps({"note": "see p. 3", "status": "ok"})) == (
        [],
        "see p. 3",
    )


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        ({}, LIMA),
        ({"tool_call_id": "functions.search:0"}, LIMA),
        ({"tool_call_id": "1"}, f"## Return of functions.search:0\n{LIMA}"),
    ],
    ids=["no id", "that id", "another id"],
)
def test_a_heading_is_a_line_of_a_template_where_no_other_call_is_named(identity, text):
    named = [{**calls()[0], "id": identity.get("tool_call_id", "functions.search:0")}]
    result = {"role": "tool", "content": f"## Return of functions.search:0\n{LIMA}", **identity}
    read = parse([USER, said("", tool_calls=named), result, said("Lima")])
    assert evidence_of(read) == [text]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"director": "Ada Mirov"}, "director: Ada Mirov\n"),
        ({"year": 1952}, "year: 1952\n"),
        ({"score": 0.5, "is_open": True, "date": "today", "note_2": ""}, ""),
    ],
)
def test_what_a_page_says_in_a_word_is_kept_beside_its_sentences(fields, expected):
    body = [{"url": "https://ex.org", **fields, "plot": "A town waits for its poet."}]
    assert read_body(body) == [("", f"{expected}A town waits for its poet.")]
