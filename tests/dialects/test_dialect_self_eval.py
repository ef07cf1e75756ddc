"""Trajectory self-evaluation's dialect: a text worked by hand, results in lines and in prose."""

from __future__ import annotations

from faithful_search.dialects import load
from faithful_search.trajectory import Evidence, ToolCall

D = load("self_eval")
DOCS = 'Doc 1(Title: "Seine") runs through Paris\nDoc 2(Title: "Loire") is long\n'
RESULTS = f"\n<search_results>{DOCS}</search_results>\n"
END = "<think>so</think>\n<answer>Seine</answer>"
BODY = f"<think>plan</think>\n<search>which river</search>{RESULTS}{END}"


def test_reads_a_trajectory_and_writes_it_back_to_the_letter() -> None:
    t = D.parse(BODY)
    one, two = t.steps
    assert (one.think, one.call) == ("plan", ToolCall("search", {"query": "which river"}, "which river"))
    assert one.evidence == (Evidence("runs through Paris", "Seine", "E1"), Evidence("is long", "Loire", "E2"))
    assert (two.think, two.answer, t.answer, t.stop_reason) == ("so", "Seine", "Seine", "answered")
    assert not t.all_issues() and D.render(t) == BODY
    assert D.render_observation((), "No results.") == "\n<search_results>No results.</search_results>\n"


def test_results_in_prose_are_one_passage() -> None:
    prose = "\n<search_results>\nThe Seine.\n\nThe Loire.\n</search_results>\n"
    t = D.parse(f"<think>a</think><search>q</search>{prose}{END}")
    assert t.steps[0].evidence == (Evidence("The Seine.\n\nThe Loire.", "", "E1"),)
