"""The bounds of what is read of other models' texts: where each rule of `test_strange_texts` ends."""

import json
from typing import Any

import pytest
from dialect_texts import kinds
from test_strange_texts import HERMES, LIMA, SEARCH_R1, USER, calls_of, said, tongyi

from faithful_search.dialects import load, parse

FOUND = "Ada was born in the town of Veldt."

# prompts in other words

NAMES = "Think between <think> and </think>, answer between <answer> and </answer>."


def test_one_tag_that_is_named_makes_no_prompt() -> None:
    read = load("search_r1").parse(f"I use <search> and </search>.\n{SEARCH_R1}")
    assert read.issues == ()


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (f"{NAMES} Question: Where?\n", "Where?"),
        (f"{NAMES} Question: What does <answer> mean?\n", "What does <answer> mean?"),
        (f"{NAMES} Question:\n", None),
        (f"{NAMES} Where is Lima?\n", None),
        (
            f"{NAMES}\n<think>I know.</think>\n<answer>Beijing</answer>\nQuestion: Where?\n",
            "Where?",
        ),
        (f"{'Be brief. ' * 200}{NAMES} Question: Where?\n", "Where?"),
    ],
    ids=["plain", "a tag in it", "empty", "none", "an example before it", "a long prompt"],
)
def test_a_prompt_ends_before_the_agents_first_line(prompt: str, question: str | None) -> None:
    read = load("search_r1").parse(f"{prompt}{SEARCH_R1}")
    assert read.question == question
    assert [step.think for step in read.steps] == ["a", "b"]


def test_our_own_engines_texts_have_no_prompt_in_other_words() -> None:
    read = load("search_r1").parse(f"{NAMES} Question: Where?\n{SEARCH_R1}", fenced=True)
    assert read.question is None


# whole texts


@pytest.mark.parametrize("blank", ["\u2581", "\u0120"])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("{0}a{0}b{0}c{0}d{0}e{0}f", True),
        ("{0}a{0}b{0}c{0}d", False),
    ],
    ids=["many", "few"],
)
def test_a_text_of_tokens_has_more_than_a_few(blank: str, answer: str, expected: bool) -> None:
    read = parse([USER, said(answer.format(blank))])
    assert ("text_undecoded" in kinds(read)) == expected


def test_marks_of_tokens_among_more_blanks_are_words() -> None:
    read = parse([USER, said("The mark \u0120 is a blank. " * 9)])
    assert "text_undecoded" not in kinds(read)


def test_a_text_with_both_ends_of_lines_stays_as_it_is() -> None:
    text = SEARCH_R1.replace("\n", "\r\n", 1)
    assert parse(text).text == text


# tags


@pytest.mark.parametrize(
    "text",
    [
        f"{SEARCH_R1.replace('b</think>', 'b <observation>x</observation></think>')}",
        "<think>a <external> is a tag</think><answer>Lima</answer>",
    ],
    ids=["beside evidence", "not closed"],
)
def test_tags_that_hide_no_evidence_are_none(text: str) -> None:
    assert "tags_unread" not in kinds(parse(text))


def test_calls_are_read_in_a_usual_dialect_that_has_such() -> None:
    text = tongyi('{"name": "open_page", "arguments": {"query": "Peru"}}')
    text = text.replace("A Google search for 'Peru' found 1 results:\n\n## Web Results\n", "")
    assert parse(text, usual="web_dancer").dialect == "web_dancer"


# calls that are nested too deeply


def nested(depth: int) -> Any:
    value: Any = "Peru"
    for _ in range(depth):
        value = [value]
    return value


def test_the_result_of_a_call_nested_too_deeply_is_its_own() -> None:
    deep = {"name": "a", "arguments": {"query": nested(400)}}
    flat = {"name": "b", "arguments": "{}"}
    written = [{"id": "1", "function": deep}, {"id": "2", "function": flat}]
    results = [{"role": "tool", "tool_call_id": "2", "content": "of b"}]
    results += [{"role": "tool", "tool_call_id": "1", "content": "of a"}]
    messages = (USER, {"role": "assistant", "content": "", "tool_calls": written}, *results)
    read = parse(messages, responses="messages")
    assert [[item.text for item in step.evidence] for step in read.steps] == [["of a"], ["of b"]]


# responses


def test_each_call_without_a_response_is_an_issue() -> None:
    structured = {"id": "1", "function": {"name": "search", "arguments": "{}"}}
    read = parse(
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [structured]},
            {"role": "user", "content": "Which?"},
            said(HERMES),
            {"role": "user", "content": "Go on."},
            said("Lima"),
        ],
        "openai",
    )
    assert kinds(read).count("response_missing") == 2


def test_a_response_is_not_missing_where_one_came_before_other_words() -> None:
    result = {"role": "user", "content": f"<tool_response>\n{LIMA}\n</tool_response>"}
    others = {"role": "user", "content": "Go on."}
    read = parse([USER, said(HERMES), result, others, said("I think."), said("Lima")], "openai")
    assert "response_missing" not in kinds(read)


def test_a_note_is_no_reason_to_take_a_cut_call_for_a_call() -> None:
    text = SEARCH_R1.replace("</search>", "").replace(
        SEARCH_R1[SEARCH_R1.index("Doc 1") : SEARCH_R1.index("\n</information>")],
        "No results found.",
    )
    assert calls_of(load("search_r1").parse(text)) == []


def test_a_response_that_was_left_out_is_a_note() -> None:
    left_out = SEARCH_R1.replace(f'Doc 1(Title: "Peru") {LIMA}', "...")
    [step, _] = load("search_r1").parse(left_out).steps
    assert (step.evidence, step.note.strip()) == ((), "...")


def test_a_response_to_one_of_two_calls_is_missed_once() -> None:
    others = {"role": "user", "content": "Go on."}
    result = {"role": "user", "content": f"<tool_response>\n{LIMA}\n</tool_response>"}
    turns = [said(HERMES), others, said(HERMES + HERMES), result, said("Lima")]
    read = load("openai").parse_messages([USER, *turns])
    assert kinds(read).count("response_missing") == 2


@pytest.mark.parametrize("call", [HERMES, f"{HERMES}\nI wait."])
def test_a_response_behind_a_call_of_another_dialect_is_not_the_agents(call: str) -> None:
    read = load("search_r1").parse(SEARCH_R1.replace("<search>Peru</search>", call))
    assert "response_forged" not in kinds(read)


# answers


@pytest.mark.parametrize(
    ("text", "answer", "issues"),
    [
        ("Cusco</answer> no: <answer>Lima", "Lima", ["answer_unclosed"]),
        ("<answer>a <answer> in it</answer>", "a <answer> in it", []),
    ],
    ids=["a stray end", "a tag in it"],
)
def test_answer_tags_that_do_not_pair(text: str, answer: str, issues: list[str]) -> None:
    read = load("openai").parse(f"<think>a</think>{text}")
    assert read.answer == answer
    assert kinds(read) == issues


@pytest.mark.parametrize("end", ["<|im_end|>", "<|im_end|>\n", "<|im_end|> "])
def test_blanks_behind_a_token_hide_it_not(end: str) -> None:
    assert parse(f"<think>a</think><answer>Lima{end}</answer>", "search_r1").answer == "Lima"


# calls


def test_code_stands_beside_the_other_arguments() -> None:
    call = '{"name": "python", "arguments": {"limit": 1}}\n<code>\nprint(1)\n</code>'
    assert calls_of(parse(tongyi(call), "web_dancer")) == [
        ("python", {"limit": 1, "code": "print(1)"})
    ]


@pytest.mark.parametrize(
    ("inner", "query"),
    [
        ("Peru", {"query": "Peru"}),
        ('[{"name": "search"}]', None),
        ("<function=search><parameter=q>Peru</parameter></function>", {"q": "Peru"}),
        ("search<arg_key>q</arg_key><arg_value>Peru</arg_value>", {"q": "Peru"}),
    ],
)
def test_a_bare_query_is_none_in_another_form(inner: str, query: dict[str, str] | None) -> None:
    call = load("search_r1_like").read_call(inner)
    assert (call and call.arguments) == query


# results in JSON

PAGE = {"title": "Ada", "url": "https://ex.org/ada"}


def read_body(body: Any) -> list[str]:
    return [passage.text for passage in load("openai").read_body(json.dumps(body))[0]]


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"results": [{**PAGE, "text": FOUND}], "answer": " "}, [FOUND]),
        ([{**PAGE, "mood": "calm and quiet"}], [""]),
        ([{"text": "", "content": FOUND}], [FOUND]),
        ([{"name": "Ada", "text": "", "city": "Veldt"}], [""]),
    ],
    ids=["a blank answer", "a few words", "the second field", "an empty text with a name"],
)
def test_passages_of_json(body: Any, texts: list[str]) -> None:
    assert read_body(body) == texts


@pytest.mark.parametrize("body", [[{"name": "Ada", "bio": FOUND}], [{"text": "", "city": "Veldt"}]])
def test_objects_that_are_no_passages_are_one_text(body: Any) -> None:
    assert read_body(body) == [json.dumps(body)]


@pytest.mark.parametrize("call", ['{"name": "search"}', '{"name": "search", "arguments": {}}]'])
def test_a_call_without_arguments_is_none_where_they_are_needed(call: str) -> None:
    dialect = load("pou")
    assert (dialect.read_call(call), dialect.evident_call(call)) == (None, None)


def test_a_result_behind_a_structured_call_beside_an_answer_is_evidence() -> None:
    structured = {"id": "1", "function": {"name": "search", "arguments": "{}"}}
    called = {**said("<answer>x</answer>"), "tool_calls": [structured]}
    read = parse([USER, called, {"role": "user", "content": LIMA}, said(SEARCH_R1)], "search_r1")
    assert LIMA in [item.text for item in read.steps[0].evidence]
