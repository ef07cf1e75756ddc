"""ReSearch's dialect: hand-worked texts, the box of its answers, its prompts, passages with and without quotes."""

from __future__ import annotations

import pytest

from faithful_search.dialects import load
from faithful_search.trajectory import Evidence, Step, ToolCall

D = load("research")
RESULT = ' <result>\n"Seine"\nruns through\nParis\n\n"Loire"\nis long\n</result>\n'
END = "<think>so</think>\n<answer>It is \\[ \\boxed{Seine} \\]</answer>"
BODY = f"<think>plan</think>\n<search> which river </search>{RESULT}{END}"


def test_reads_a_trajectory() -> None:
    t = D.parse(BODY, question="Which?")
    one, two = t.steps
    assert (one.think, one.call) == ("plan", ToolCall("search", {"query": "which river"}, " which river "))
    assert one.evidence == (Evidence("runs through\nParis", "Seine", "E1"), Evidence("is long", "Loire", "E2"))
    assert (two.think, two.answer, two.helpful, two.refs) == ("so", "Seine", None, ())
    assert (t.answer, t.stop_reason, t.question, t.dialect) == ("Seine", "answered", "Which?", "research")
    assert not t.all_issues()
    assert D.render(t) == BODY.replace("It is", "The final answer is")


def test_observation_is_written_to_the_letter() -> None:
    assert D.render_observation((Evidence("runs through\nParis", "Seine"), Evidence("is long", "Loire"))) == RESULT
    assert D.render_observation((), "nothing to search") == " <result>\nnothing to search\n</result>\n"
    assert RESULT[slice(*D.response_span(RESULT))] == '\n"Seine"\nruns through\nParis\n\n"Loire"\nis long\n'


@pytest.mark.parametrize(
    ("inner", "answer"),
    [
        (r"\[ \boxed{a} \]", "a"),
        (r"\boxed{ a b }", "a b"),
        (r"\boxed{a} or \boxed{b}", "b"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a} or \boxed{b", "a"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"}} \boxed{a}", "a"),
        (r"\boxed {a}", "a"),
    ],
)
def test_the_last_balanced_box_is_the_answer(inner: str, answer: str) -> None:
    text = f"<think>\\boxed{{no}}</think><answer>{inner}</answer>"
    step = D.parse_turn(text, first=True)
    assert step.answer == answer == text[slice(*step.spans["answer"])].strip() and step.issues == ()


@pytest.mark.parametrize("inner", ["a", r"\boxed{a", "boxed{a}"])
def test_an_answer_without_a_box_is_read_and_noted(inner: str) -> None:
    step = D.parse_turn(f"<think>x</think><answer> {inner} </answer>", first=True)
    assert step.answer == inner and [i.kind for i in step.issues] == ["answer_unboxed"]


@pytest.mark.parametrize("answer", ["a", "{a}", r"\boxed{a}", "a}b", "{", r"\boxed{"])
def test_any_answer_survives_writing(answer: str) -> None:
    text = D.render_turn(Step(think="x", answer=answer))
    assert D.parse_turn(text, first=True).answer == ("a" if answer == r"\boxed{a}" else answer)


def test_the_last_answer_counts() -> None:
    t = D.parse(r"<think>x</think><answer>\boxed{a}</answer><answer>\boxed{b}</answer>")
    assert t.answer == "b" and [i.kind for i in t.all_issues()] == ["answer_multiple"]


@pytest.mark.parametrize(
    ("body", "evidence", "note"),
    [
        ("T\nx\n\nU\ny\nz", [("T", "x"), ("U", "y\nz")], ""),
        ('"T"\nx\n\nstill x\n\n"U"\ny', [("T", "x\n\nstill x"), ("U", "y")], ""),
        ("nothing to search", [], "nothing to search"),
        ("", [], ""),
        ("T\nx\n\nonly", [("T", "x"), ("", "only")], ""),
    ],
)
def test_results_of_the_real_kind(body: str, evidence: list[tuple[str, str]], note: str) -> None:
    step = D.parse(f"<think>a</think><search>q</search> <result>\n{body}\n</result>").steps[0]
    assert [(e.title, e.text) for e in step.evidence] == evidence and step.note == note


def test_the_base_checkpoints_prompt_holds_no_answer_and_gives_the_question() -> None:
    task = D.prompt("Who?", [])[0]["content"].partition("Given a question")[2]
    base = f"A conversation between User and Assistant. Given a question{task} User: Who?. Assistant:"
    assert (D.parse(base).steps, D.parse(base).answer, D.parse(base).question) == ((), None, "Who?")
    t = D.parse(f"{base} {BODY}")
    assert (t.answer, t.question, len(t.steps), t.all_issues()) == ("Seine", "Who?", 2, [])
    cut = D.parse(base[:-12])
    assert cut.steps == () and cut.answer is None
