"""The turn reader that dialects share: several turns in a stretch of text, its limits, gaps, boxes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faithful_search.dialects.passages import last_boxed
from faithful_search.dialects.search_r1 import SearchR1
from faithful_search.dialects.turns import GAP, MOST_ISSUES, MOST_STEPS, MOST_TAGS, Tag, TurnReader

PIECES = [
    "<think>a</think>", "<search>q</search>", "<answer>b</answer>", "<answer>", "</think>", " ", "x", "<search>", "...",
]  # fmt: skip


def reader(text: str) -> TurnReader:
    return TurnReader(text, 0, len(text), SearchR1())


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_turns_lie_one_behind_the_other_and_begin_as_one_turn_would(text: str) -> None:
    turns = list(reader(text).turns())
    spans = [turn["spans"]["step"] for turn in turns]
    assert spans[0][0] == 0 and all(a[1] <= b[0] for a, b in pairwise(spans))
    one = reader(text).read()
    assert turns[0].get("call") == one.get("call")
    if len(turns) == 1:
        assert turns[0] == one
    for turn in turns:
        assert not {"call", "answer"} <= set(turn["spans"])


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_every_closed_call_outside_a_thought_is_read(text: str) -> None:
    calls = [turn["call"].raw for turn in reader(text).turns() if "call" in turn]
    if "<search><" not in text and "<answer><" not in text and not text.count("<answer>") > text.count("</answer>"):
        assert calls.count("q") == text.count("<search>q</search>") - sum("<search>" in raw for raw in calls)


@pytest.mark.parametrize("dots", ["...", "\u2026", "\n...\n"])
def test_a_line_of_dots_is_an_elision_not_text(dots: str) -> None:
    step = reader(f"<think>a</think>{dots}<answer>b</answer>").read()
    assert [issue.kind for issue in step["issues"]] == ["elided"]


def test_more_tags_than_any_agent_writes_are_not_read() -> None:
    text = "</think>" * (MOST_TAGS + 5) + "<answer>b</answer>"
    step = reader(text).read()
    assert "answer" not in step and len(step["issues"]) == MOST_ISSUES
    last = reader("</think>" * MOST_TAGS).tags[-1]
    assert last == Tag(8 * MOST_TAGS - 8, 8 * MOST_TAGS, True, "think") and last.span == (last.start, last.end)


def test_more_turns_than_any_agent_takes_are_not_read() -> None:
    turn = "<think>a</think><search>b</search><information>c</information>"
    t = SearchR1().parse(turn * (MOST_STEPS + 3) + "<answer>b</answer>")
    assert len(t.steps) == MOST_STEPS and t.answer is None
    assert [issue.kind for issue in t.issues] == ["turns_many"]


def test_a_calls_token_is_no_markup() -> None:
    assert GAP.fullmatch(" <|im_end|>\n<|begin_of_text|>user\n")
    assert not GAP.fullmatch("<|begin_of_query|>") and not GAP.fullmatch("<|end_of_documents|>")


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "a", "\\boxed"]), max_size=14).map("".join))
def test_the_last_box_is_balanced_and_no_later_one_is(text: str) -> None:
    found = last_boxed(text)
    balanced = [
        start + 7 for start in range(len(text)) if text.startswith("\\boxed{", start) and _closes(text, start + 7)
    ]
    assert (found[0] if found else None) == (balanced[-1] if balanced else None)
    if found:
        assert text[found[1]] == "}" and text[slice(*found)].count("{") == text[slice(*found)].count("}")


def _closes(text: str, at: int) -> bool:
    depth = 1
    for character in text[at:]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return True
    return False
