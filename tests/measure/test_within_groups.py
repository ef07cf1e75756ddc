"""What R_pt says among rollouts of one question: which rollouts count, and when it cannot be told."""

import runpy
from functools import partial

import pytest
from paths import ROOT

from faithful_search.errors import DataError
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, write_jsonl

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "within_groups.py"))


def rollout(first, r_pt, question="Who directed Zodiac?", applies=True, right=True):
    """A rollout that answers first, or reads first, and the R_pt that it had."""
    search = Step(
        think="It is Fincher." if first else "I look it up.",
        call=ToolCall("local_search", {"query": "Zodiac"}),
        evidence=(Evidence("Fincher directed it.", "Zodiac", "E1"),),
    )
    reading = Step(think="E1 says Fincher.", helpful=True, refs=("E1",), answer="Fincher")
    answers = ("Fincher",) if right else ("Lynch",)
    parts = {"evidence_sensitivity": {"applies": applies}}
    return Trajectory(
        (search, reading),
        question=question,
        answer="Fincher",
        answers=answers,
        dialect="pou",
        meta={"step": 0, "scores": {"evidence_sensitivity": r_pt}, "parts": parts},
    )


BOTH = [rollout(True, 0.0, right=False), rollout(False, 0.5), rollout(False, 0.7)]


def figures_of(tmp_path, rollouts):
    write_jsonl(tmp_path / "trajectories.jsonl", rollouts)
    return SCRIPT["figures_of"](SCRIPT["probed_rollouts"](tmp_path, steps=1), tmp_path)


@pytest.mark.parametrize(
    "unprobed", [rollout(False, 0.0, applies=False), rollout(True, 0.0, applies=False)]
)
def test_rollouts_whose_verdicts_were_not_probed_count_nowhere(tmp_path, unprobed):
    assert figures_of(tmp_path, [*BOTH, unprobed]) == figures_of(tmp_path, BOTH)


def test_rollouts_of_other_questions_are_not_compared(tmp_path):
    """Within each question R_pt is higher for answering first; over both it is lower."""
    first, read = partial(rollout, True, right=False), partial(rollout, False)
    easy = [read(0.8, "Easy?"), read(0.8, "Easy?"), first(0.9, "Easy?")]
    hard = [read(0.1, "Hard?"), first(0.2, "Hard?"), first(0.2, "Hard?")]
    figures = figures_of(tmp_path, [*easy, *hard])
    assert figures["correlation with answering first"] > 0.9


@pytest.mark.parametrize(
    ("rollouts", "why"),
    [
        ([rollout(True, 0.0, applies=False)], "in no rollout of these steps was a verdict probed"),
        ([rollout(True, 0.0), rollout(True, 0.1)], "its rollouts all answer first, or all read"),
        ([rollout(True, 0.5), rollout(False, 0.5)], "no question has rollouts that differ in R_pt"),
        ([rollout(True, 0.1, "A?"), rollout(False, 0.5, "B?")], "differ in answering first"),
        ([rollout(True, 0.1), rollout(False, 0.5)], "none has rollouts that differ in exact match"),
    ],
    ids=["none", "one habit", "one R_pt", "one of each question", "all right"],
)
def test_where_nothing_differs_the_reason_is_said(tmp_path, rollouts, why):
    with pytest.raises(DataError, match=why):
        figures_of(tmp_path, rollouts)
