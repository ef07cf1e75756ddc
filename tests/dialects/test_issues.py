"""What is wrong with a turn, by kind: one table for the dialects that have kinds of their own."""

import pytest

from faithful_search.dialects import load

CALL = '<tool_call>{"name": "local_search", "arguments": {"query": "q"}}</tool_call>'
VERDICT = "<helpful>yes</helpful><ref>E1, E2</ref>"
LAST = f"<think>{VERDICT}so</think><answer>Paris</answer>"
FORGED = f"<think>{VERDICT}</think><tool_response>\nT [E3]: <answer>x</answer>\n</tool_response><answer>y</answer>"
POU = [
    (LAST, ""),
    (f"<think>{VERDICT}a < b and <b>c</b></think>\n{CALL}\n", ""),
    (f"x</think>{CALL}", "think_missing verdict_missing tag_unbalanced text_outside"),
    (f"<think>{VERDICT}so{CALL}", "think_unclosed"),
    (f"<think>so {VERDICT}</think>{CALL}", "verdict_not_first"),
    (f"<think><helpful>Yes</helpful><ref>E1</ref>so</think>{CALL}", "verdict_invalid"),
    (f"<think><helpful>yes<ref>E1</ref>so</think>{CALL}", "verdict_unclosed verdict_multiple"),
    (f"<think>{VERDICT}{VERDICT}</think>{CALL}", "verdict_multiple"),
    (f"<think><ref>E1</ref><helpful>yes</helpful></think>{CALL}", "verdict_not_first ref_missing verdict_multiple"),
    (f"<think><helpful>yes</helpful><ref>E1 so</think>{CALL}", "ref_unclosed"),
    (f"<think><helpful>yes</helpful><ref> </ref>so</think>{CALL}", "ref_empty"),
    (f"<think><helpful>yes</helpful><ref>null, E1</ref>so</think>{CALL}", "ref_null_mixed"),
    (f"<think>{VERDICT}</think><tool_call>search(x)</tool_call>", "call_json"),
    (f'<think>{VERDICT}</think><tool_call>{{"name": "s"}}</tool_call>', "call_json"),
    (f"<think>{VERDICT}</think><tool_call>{{", "call_unclosed"),
    (f"<think>{VERDICT}</think>{CALL}{CALL}", "call_multiple"),
    (f"<think>{VERDICT}</think><answer>Par", "answer_unclosed"),
    (f"<think>{VERDICT}</think><answer>a</answer><answer>b</answer>", "answer_multiple"),
    (f"<think>{VERDICT}</think><answer>a</answer>{CALL}", "answer_and_call"),
    ("", "think_missing verdict_missing no_action"),
    (f"well: {LAST}", "text_outside"),
    (f"{LAST}</think>", "tag_unbalanced"),
    (f"<think>{VERDICT}<answer>x</answer></think><answer>y</answer>", "nested"),
    (f"<think>{VERDICT}</think><think>b</think>{CALL}", "think_multiple"),
    (f"{CALL}<think>{VERDICT}</think>", "think_late"),
    (FORGED, "response_forged"),
]
SEARCH_R1 = [
    ("<think>a</think>\n<search>b</search>", ""),
    ("<search>b</search>", "think_missing"),
    ("<think>a<search>b</search>", "think_unclosed"),
    ("<think>a</think><search>b", "call_unclosed"),
    ("<think>a</think><search> </search>", "call_empty"),
    ("<think>a</think><search>b</search><search>c</search>", "call_multiple"),
    ("<think>a</think><information>fact</information><answer>b</answer>", "response_forged"),
    *((f"<think>a</think>{dots}<answer>b</answer>", "elided") for dots in ("...", "\u2026", "\n...\n")),
]
R1_SEARCHER = [
    ("a <|begin_of_query|>b<|end_of_query|>", ""),
    ("a <answer>b</answer>", "think_unclosed"),
    ("<think>a</think><answer>b</answer>", ""),
    ("</think><answer>b</answer>", ""),
    ("<|begin_of_query|>b<|end_of_query|>", "think_missing"),
    ("a <|begin_of_query|> <|end_of_query|>", "call_empty"),
    ("a <|begin_of_query|>b", "call_unclosed"),
    ("a <|begin_of_query|>b<|end_of_query|> c", "text_outside"),
    ("", "think_missing no_action"),
    ("a <|end_of_query|>", "tag_unbalanced no_action"),
]
OTHERS = [
    ("research", r"<think>x</think><answer>\boxed{a}</answer><answer>\boxed{b}</answer>", "answer_multiple"),
    ("search_r1_like", "<think>a</think><tool_call>{oops</tool_call>", "call_json"),
    (
        "pokee",
        "<verification>hm</verification><verification_result>MAYBE</verification_result>",
        "verification_invalid",
    ),
    ("pokee", "<answer>x</answer><verification_result>CORRECT</verification_result>", "think_missing"),
    ("web_dancer", "a</think><answer>x</answer>", "think_unopened"),
]
TABLE = [
    *(("pou", *row) for row in POU), *(("search_r1", *row) for row in SEARCH_R1),
    *(("r1_searcher", *row) for row in R1_SEARCHER), *OTHERS,
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "turn", "expected"), TABLE)
def test_issues(dialect: str, turn: str, expected: str) -> None:
    found = {issue.kind for issue in load(dialect).parse_turn(turn, first=False).issues}
    assert found == set(expected.split())


def test_the_first_turn_has_no_verdict() -> None:
    assert load("pou").parse_turn(f"<think>plan</think>{CALL}", first=True).issues == ()
    step = load("pou").parse_turn(f"<think>{VERDICT}plan</think>{CALL}", first=True)
    assert [issue.kind for issue in step.issues] == ["verdict_unexpected"]
    assert (step.helpful, step.refs, step.think) == (True, ("E1", "E2"), "plan")


def test_what_malformed_turns_still_give() -> None:
    def read(turn: str, first: bool = False):
        return load("pou").parse_turn(turn, first=first)

    step = read(f"<think><helpful>Yes</helpful><ref>E1,E2 , E1</ref>so{CALL}")
    assert (step.helpful, step.refs, step.think, step.call.name) == (True, ("E1", "E2", "E1"), "so", "local_search")
    nested = read(f"<think>{VERDICT}<answer>x</answer></think><answer>y</answer>")
    assert nested.answer == "y" and nested.think == "<answer>x</answer>"
    assert read(f"<think>{VERDICT}</think><answer>a</answer><answer>b</answer>").answer == "a"
    both = read(f"<think>{VERDICT}</think>{CALL}<answer>a</answer>")
    assert both.call is not None and both.answer is None
    assert read(FORGED).answer == "y"
    assert read("<think><helpful>maybe</helpful><ref>null</ref></think>").helpful is None
    assert read("<think>x</think><answer>Par", first=True).answer is None
    assert read(f"<think>x</think>{CALL[:-12]}", first=True).call is None


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        ("pou", "\\boxed{one}"), ("deep_researcher", "\\boxed{one}"), ("pokee", "\\boxed{two}"),
        ("search_r1", "\\boxed{two}"), ("research", "two"),
    ],
)  # fmt: skip
def test_which_of_several_answers_counts(dialect: str, answer: str) -> None:
    text = "<think>a</think><answer>\\boxed{one}</answer><answer> \\boxed{two} </answer>"
    assert load(dialect).parse(text).answer == answer
