"""R1-Searcher's dialect: thoughts without tags, special tokens, its three ways to write a passage, its prompts."""

from __future__ import annotations

import pytest

from faithful_search.dialects import load
from faithful_search.trajectory import Evidence, ToolCall

D = load("r1_searcher")
DOCS = (
    "\n\n<|begin_of_documents|>\n(1)Title: Seine Text:  runs through Paris\n(2)Title: Loire Text:  is long\n"
    "<|end_of_documents|>\n\n"
)
ASK = "I look for it.\n\n<|begin_of_query|> which river<|end_of_query|>"
END = "It is the Seine.</think>\n\n<answer>Seine</answer>"
BODY = f"{ASK}{DOCS}{END}"


def kinds(turn: str) -> list[str]:
    return [issue.kind for issue in D.parse_turn(turn, first=False).issues]


def docs(body: str) -> list[tuple[str, str]]:
    text = f"{ASK}\n\n<|begin_of_documents|>\n{body}\n<|end_of_documents|>\n\n"
    return [(e.title, e.text) for e in D.parse(text).steps[0].evidence]


def test_reads_a_trajectory_and_writes_it_back_to_the_letter() -> None:
    t = D.parse(BODY, question="Which?")
    one, two = t.steps
    assert (one.think, one.call) == ("I look for it.", ToolCall("search", {"query": "which river"}, " which river"))
    assert one.evidence == (Evidence("runs through Paris", "Seine", "E1"), Evidence("is long", "Loire", "E2"))
    assert (two.think, two.answer) == ("It is the Seine.", "Seine")
    assert (t.answer, t.stop_reason, t.question) == ("Seine", "answered", "Which?")
    assert not t.all_issues() and D.render(t) == BODY
    for step in t.steps:
        assert BODY[slice(*step.spans["think"])] == step.think


@pytest.mark.parametrize("opening", ["<think>", "<think> ", " \n", "<think>\n<think>"])
def test_a_thought_may_be_opened_or_not(opening: str) -> None:
    t = D.parse(opening + BODY)
    assert [s.think for s in t.steps][1:] == ["It is the Seine."] and t.answer == "Seine"
    assert t.steps[0].think.endswith("I look for it.")
    assert [i.kind for i in t.all_issues()] == (["nested"] if opening.count("<think>") == 2 else [])


def test_an_answer_without_any_query() -> None:
    t = D.parse(" I know.</think>\n\n <answer> Seine </answer>")
    assert (t.answer, len(t.steps), t.steps[0].think, t.all_issues()) == ("Seine", 1, "I know.", [])


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("a <|begin_of_query|>b<|end_of_query|>", []),
        ("a <answer>b</answer>", ["think_unclosed"]),
        ("<think>a</think><answer>b</answer>", []),
        ("</think><answer>b</answer>", []),
        ("<|begin_of_query|>b<|end_of_query|>", ["think_missing"]),
        ("a <|begin_of_query|> <|end_of_query|>", ["call_empty"]),
        ("a <|begin_of_query|>b", ["call_unclosed"]),
        ("a <|begin_of_query|>b<|end_of_query|> c", ["text_outside"]),
        ("a</think> c <answer>b</answer>", ["text_outside"]),
        ("a</think></think><answer>b</answer>", ["tag_unbalanced"]),
        ("a</think><answer>b</answer><answer>c</answer>", ["answer_multiple"]),
        ("a</think><answer>b", ["answer_unclosed"]),
        ("a", ["no_action"]),
        ("", ["think_missing", "no_action"]),
        ("a <|end_of_query|>", ["tag_unbalanced", "no_action"]),
    ],
)
def test_issues(turn: str, expected: list[str]) -> None:
    assert kinds(turn) == expected


def test_the_three_ways_to_write_a_passage() -> None:
    assert docs('(1)"Title: A ""b"" Text:  he said ""c""."\n(2)Title: D Text: e') == [
        ('A "b"', 'he said "c".'),
        ("D", "e"),
    ]
    assert docs("(1)Filippo the Elder   Filippo   was\n(2)no gap") == [
        ("Filippo the Elder", "Filippo   was"),
        ("", "no gap"),
    ]
    assert docs("(1)Title: A Text:  b\n(3) c\n(2)Title: D Text:  e\n(1) f") == [("A", "b\n(3) c"), ("D", "e\n(1) f")]


def test_documents_that_are_no_list_are_a_note() -> None:
    t = D.parse(f"{ASK}\n\n<|begin_of_documents|>\nNone\n<|end_of_documents|>\n\n{END}")
    assert (t.steps[0].note, t.steps[0].evidence, t.answer) == ("None", (), "Seine")
    written = D.render_observation((), "(1)Title: x")
    assert written == "\n\n<|begin_of_documents|>\n&#40;1)Title: x\n<|end_of_documents|>\n\n"
    assert written[slice(*D.response_span(written))] == "\n&#40;1)Title: x\n"
    assert D.response_span("no tokens") == (0, len("no tokens"))


def test_the_base_checkpoints_prompt_holds_no_answer_and_gives_the_question() -> None:
    base = (
        "The User asks a question, and the Assistant solves it.\ni.e., <think> x </think>\n\n<answer> y </answer> "
        "<|begin_of_query|> z <|end_of_query|> <|begin_of_documents|> <|end_of_documents|>"
        "\n\nUser:Who?\nAssistant: <think>"
    )
    assert (D.parse(base).answer, D.parse(base).question) == (None, "Who?")
    t = D.parse(base + BODY)
    assert (t.answer, t.question, len(t.steps), t.all_issues()) == ("Seine", "Who?", 2, [])
