"""The turn reader that dialects share: several turns in a stretch of text, and its limits."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from faithful_search.dialects.search_r1 import SearchR1
from faithful_search.dialects.turns import MOST_ISSUES, MOST_STEPS, MOST_TAGS, Tag, TurnReader

PIECES = [
    "<think>a</think>", "<search>q</search>", "<answer>b</answer>", "<answer>", "</think>", " ", "x", "<search>", "...",
]  # fmt: skip


def reader(text: str) -> TurnReader:
    return TurnReader(SearchR1(), text, 0, len(text))


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_turns_lie_one_behind_the_other_and_begin_as_one_turn_would(text: str) -> None:
    turns, (one,) = reader(text).read(), reader(text).read(alone=True)
    spans = [turn["spans"]["step"] for turn in turns]
    assert spans[0][0] == 0 and all(a[1] <= b[0] for a, b in pairwise(spans))
    assert turns[0].get("call") == one.get("call") and (len(turns) > 1 or turns == [one])
    assert not any({"call", "answer"} <= set(turn["spans"]) for turn in turns)


def test_more_tags_and_turns_than_any_agent_writes_are_not_read() -> None:
    (step,) = reader("</think>" * (MOST_TAGS + 5) + "<answer>b</answer>").read(alone=True)
    assert "answer" not in step and len(step["issues"]) == MOST_ISSUES
    last = reader("</think>" * MOST_TAGS).tags[-1]
    assert last == Tag(8 * MOST_TAGS - 8, 8 * MOST_TAGS, True, "think") and last.span == (last.start, last.end)
    turn = "<think>a</think><search>b</search><information>c</information>"
    t = SearchR1().parse(turn * (MOST_STEPS + 3) + "<answer>b</answer>")
    assert len(t.steps) == MOST_STEPS and t.answer is None
    assert [issue.kind for issue in t.issues] == ["turns_many"]
