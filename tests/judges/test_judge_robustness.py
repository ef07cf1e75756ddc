"""What must not matter to a judge: names, instructions, length, order, citation marks.

The last test measures a trained span judge: SPAN_JUDGE is its directory.
"""

import os
import random
import runpy
from typing import Any

import pytest
from paths import ROOT, SHARED

from faithful_search.judges import GroundingJudge, Pair, load
from faithful_search.measure.agreement.labelled import Labelled, load as load_labelled, sample

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "judge_robustness.py"))
CHANGES, moved = SCRIPT["CHANGES"], SCRIPT["moved"]
LABELS = SHARED / "data" / "faithfulness"


def row(number: int) -> Labelled:
    return Labelled(
        id=str(number),
        premise=f"Title\n\nThe engine of Ada May{number} stood in Rome{number} for years.",
        hypothesis=f"The engine of Ada May{number} stood in Rome{number}.",
        question="",
        label=number % 2 == 0,
        source="made",
        split="heldout",
        group=str(number),
    )


ROWS = [row(number) for number in range(30)]


def changed(kind: str) -> Pair:
    pair: Pair = CHANGES[kind](ROWS[0], ROWS, random.Random(0))
    return pair


@pytest.mark.parametrize("kind", list(CHANGES))
def test_every_change_changes_the_pair(kind):
    assert changed(kind) != ROWS[0].pair


def test_names_are_exchanged_on_both_sides():
    pair = changed("names")
    name = pair.hypothesis.split(" of ")[1].split(" stood")[0]
    assert name in pair.premise


def test_citation_marks_stand_before_the_full_stop():
    assert changed("citations").hypothesis.endswith("Rome0 [1].")


def test_the_evidence_is_still_whole_when_it_is_longer():
    assert ROWS[0].premise in changed("longer").premise


@pytest.mark.parametrize("kind", list(CHANGES))
def test_a_judge_of_words_is_hardly_moved(kind):
    result = moved(GroundingJudge(), ROWS, CHANGES[kind])
    assert (result["pairs"], result["turned"]) == (30, 0)


@pytest.fixture(scope="module")
def trained() -> Any:
    folder = os.environ.get("SPAN_JUDGE")
    if not folder or not LABELS.is_dir():
        pytest.skip("needs SPAN_JUDGE, a directory with a trained judge, and labelled rows")
    return load("span", folder)


# labels that may turn
MOST = {"names": 0.1, "instruction": 0.1, "longer": 0.15, "order": 0.1, "citations": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CHANGES))
def test_a_trained_judge_is_hardly_moved(trained, kind):
    rows = sample(load_labelled(LABELS, "heldout"), 100)
    assert moved(trained, rows, CHANGES[kind])["turned"] <= MOST[kind]
