"""Agreement of judges with labels and each other: the statistics by hand; what is asked, kept and
written.
"""

import json
import math
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from agent_rows import CountingJudge, file_of, lines_of
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace
from paths import SHARED

from faithful_search.errors import ConfigError, DataError, JudgeError
from faithful_search.judges import ContainmentJudge, GroundingJudge, Judge, Pair
from faithful_search.measure.agreement import from_scores, is_scores, labelled, parse_judge, run
from faithful_search.measure.agreement.labelled import Labelled, load
from faithful_search.measure.agreement.statistics import (
    agreement_rate,
    auroc,
    brier,
    calibration_error,
    cohen_kappa,
    fleiss_kappa,
    reliability,
)
from faithful_search.rewards.base import JudgedReward, Score, StepPair
from faithful_search.trajectory import Trajectory

DRAWS = {"draws": 50}


def two(yes, first, second, no):
    """Two raters from their 2 x 2 table: both yes, only the first, only the second, both no."""
    a = [True] * (yes + first) + [False] * (second + no)
    b = [True] * yes + [False] * first + [True] * second + [False] * no
    return a, b


YES, MIXED = [True] * 4, [True, False, True, False]
EIGHT = (
    [False, False, True, False, True, True, True, True],
    [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9],
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (agreement_rate(*two(20, 5, 10, 15)), 0.7),
        # p_o = 35/50 = 0.7; rates 25/50 and 30/50: p_e = 0.5·0.6 + 0.5·0.4 = 0.5; κ = 0.2 / 0.5
        (cohen_kappa(*two(20, 5, 10, 15)), 0.4),
        # yes counts 3, 2, 0, 1: P_i = 1, 1/3, 1, 1/3, mean 2/3; p = 6/12: P_e = 1/2; κ = (1/6) /
        # (1/2)
        (
            fleiss_kappa(
                [[True, True, False, True], [True, True, False, False], [True, False, False, False]]
            ),
            1 / 3,
        ),
        # true 0.8, 0.5, 0.3 over false 0.5, 0.1: of six comparisons 2 + 1.5 + 1 are won
        (auroc([True, True, True, False, False], [0.8, 0.5, 0.3, 0.5, 0.1]), 4.5 / 6),
        # two bins of four: mean p 0.25 with 1 of 4 true, mean p 0.75 with 4 of 4 true: (0 + 0.25) /
        # 2
        (calibration_error(*EIGHT, bins=2), 0.125),
        (brier([True, False, False], [1.0, 0.5, 0.2]), (0 + 0.25 + 0.04) / 3),
        # one class, and raters that are constant
        (cohen_kappa(YES, YES), None),
        (fleiss_kappa([YES, YES, YES]), None),
        (cohen_kappa(YES, MIXED), 0.0),
        (cohen_kappa([True] * 3, [False] * 3), 0.0),
        (auroc(YES, [0.1, 0.2, 0.3, 0.4]), None),
        (auroc(MIXED, [0.7] * 4), 0.5),
        (calibration_error(YES, [1.0] * 4), 0.0),
    ],
)
def test_statistics_by_hand(found, expected):
    assert found.value is expected is None or found.value == pytest.approx(expected)
    assert found.n in (3, 4, 5, 8, 50)
    assert found.low is None or found.low - 1e-9 <= found.value


def test_bins_hold_equally_many_and_keep_ties_together():
    assert [b.n for b in reliability([True] * 100, np.linspace(0, 1, 100).tolist())] == [10] * 10
    lopsided = reliability([True] * 97 + [False] * 3, [0.0] * 97 + [1.0] * 3)
    assert [(b.p, b.n) for b in lopsided] == [(0.0, 97), (1.0, 3)]


def test_missing_verdicts_are_counted_and_left_out():
    some, nobody, truth = [True, None, True], [None] * 3, [True, False, False]
    for found in (
        cohen_kappa(nobody, truth),
        fleiss_kappa([nobody, truth]),
        auroc(truth, nobody),
        calibration_error(truth, nobody),
    ):
        assert (found.value, found.n, found.abstained) == (None, 0, 3)
    assert reliability([True], [None]) == []
    for found in (
        agreement_rate(some, truth),
        auroc(truth, [0.9, None, 0.1]),
        fleiss_kappa([some, truth, truth]),
    ):
        assert (found.n, found.abstained) == (2, 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_kappa_is_symmetric_and_1_only_for_full_agreement(
    rows,
):
    a, b = map(list, zip(*rows, strict=True))
    value, perfect = cohen_kappa(a, b, **DRAWS).value, a == b and len(set(a)) == 2
    assert (value == 1.0) is (fleiss_kappa([a, b, a], **DRAWS).value == 1.0) is perfect
    assert value == cohen_kappa(b, a, **DRAWS).value
    flipped = cohen_kappa([not x for x in a], [not x for x in b], **DRAWS).value
    assert value is flipped is None or (-1 <= value <= 1 and value == pytest.approx(flipped))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=30))
def test_auroc_is_the_share_of_comparisons_won(rows):
    truth, scores = map(list, zip(*rows, strict=True))
    yes = [score for label, score in rows if label]
    no = [score for label, score in rows if not label]
    assume(yes and no)
    won = sum((y > n) + (y == n) / 2 for y in yes for n in no)
    for shown in (scores, [math.exp(score) - 3 for score in scores]):  # only the order counts
        assert auroc(truth, shown, **DRAWS).value == pytest.approx(won / (len(yes) * len(no)))


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=40), st.integers(1, 12)
)
def test_calibration_is_the_weighted_gap_of_its_bins(rows, bins):
    truth, p = map(list, zip(*rows, strict=True))
    curve = reliability(truth, p, bins)
    assert sum(b.n for b in curve) == len(rows)
    assert len(curve) <= bins
    assert [b.p for b in curve] == sorted(b.p for b in curve)
    expected = sum(b.n * abs(b.share - b.p) for b in curve) / len(rows)
    assert calibration_error(truth, p, bins=bins, **DRAWS).value == pytest.approx(
        expected, abs=1e-12
    )


def test_repeated_pairs_of_a_group_do_not_narrow_the_interval():
    rng = np.random.default_rng(1)
    truth = (rng.random(60) < 0.5).tolist()
    p = [0.5 * label + 0.7 * rng.random() for label in truth]
    groups = [place for place in range(60) for _ in range(5)]
    often = [[value for value in column for _ in range(5)] for column in (truth, p)]
    for measure in (auroc, brier):
        single, grouped, naive = measure(truth, p), measure(*often, groups=groups), measure(*often)
        assert grouped.n == 60
        assert naive.n == 300
        assert grouped.stderr == pytest.approx(single.stderr, rel=1e-6)
        assert naive.stderr < 0.6 * grouped.stderr


# --- judges beside labels and each other

CITIES = ("Lima", "Oslo", "Rome", "Kyiv", "Cairo", "Quito")


def rows(count=12):
    """Half of them supported; two sources."""
    found = []
    for n in range(count):
        premise, hypothesis = (
            f"The office number {n} is in {CITIES[n % 6]}.",
            CITIES[(n + n % 2) % 6],
        )
        source = "ab"[n >= count // 2]
        found += [
            Labelled(
                f"r{n}", premise, hypothesis, "Where?", n % 2 == 0, source, "heldout", f"g{n // 2}"
            )
        ]
    return found


def office(pair):
    return int(pair.premise.split()[3])


def knowing(*silent, name="recorder"):
    """A judge that knows that even offices are where they are said to be."""
    return CountingJudge(
        lambda pair: None if office(pair) in silent else office(pair) % 2 == 0, name
    )


def against(found, judge, source="all"):
    return next(row for row in found.against if (row.judge, row.source) == (judge, source))


def test_judges_beside_labels_and_each_other(tmp_path):
    asked = {"lexical": GroundingJudge(), "knows": knowing()}
    found = run(rows(), asked, tmp_path, **DRAWS)
    knows = against(found, "knows")
    assert (knows.agreement.value, knows.kappa.value, knows.auroc.value) == (1.0, 1.0, 1.0)
    assert (knows.pairs, knows.abstained, knows.true, knows.bins) == (12, 0, 0.5, 2)
    assert knows.calibration.value == pytest.approx(0.25)
    assert knows.brier.value == pytest.approx(0.0625)
    assert knows.agreement.n == 6  # groups
    named = [(judge, source) for source in ("a", "b", "all") for judge in asked]
    assert [(row.judge, row.source) for row in found.against] == named
    said = [
        verdict["label"]
        for verdict in lines_of(tmp_path / "verdicts.jsonl")
        if verdict["judge"] == "lexical"
    ]
    truth = [row.label for row in rows()]
    assert (
        found.between[-1].kappa.value
        == cohen_kappa(said, truth).value
        == found.among["all"].value
        == 1.0
    )


def test_a_second_run_asks_only_what_has_no_verdict(
    tmp_path,
):
    row = against(run(rows(), {"r": knowing(3, 4)}, tmp_path, **DRAWS), "r")
    assert (row.pairs, row.abstained, row.agreement.abstained, row.agreement.value) == (
        10,
        2,
        2,
        1.0,
    )
    second, third, fourth = knowing(), knowing(), knowing()
    again = run(rows(14), {"r": second}, tmp_path, **DRAWS)
    assert list(map(office, second.asked)) == [3, 4, 12, 13]
    assert (against(again, "r").abstained, against(again, "r").pairs) == (0, 14)
    assert run(rows(14), {"r": third}, tmp_path, **DRAWS) == again
    assert third.asked == []
    moved = Labelled(
        "r3", "The office number 3 moved.", "Oslo", "Where to?", False, "a", "heldout", "g1"
    )
    run(
        [*rows(3), moved, moved, replace(moved, task="info_think")],
        {"r": fourth},
        tmp_path,
        **DRAWS,
    )
    pair = Pair("The office number 3 moved.", "Oslo", "Where to?", "support")
    assert fourth.asked == [pair, replace(pair, task="info_think")]


def test_the_table_and_the_file_hold_every_number(tmp_path):
    asked = {"lexical": GroundingJudge(), "containment": ContainmentJudge(), "r": knowing(0)}
    found = run(rows(), asked, tmp_path, **DRAWS, limit=5)
    text = found.table()
    assert text.splitlines()[0].split()[:4] == ["judge", "labels", "pairs", "true"]
    assert (
        sum(
            line.startswith(("lexical ", "containment ", "r "))
            for line in text.split("\n\n")[0].splitlines()
        )
        == 9
    )
    assert "Fleiss' κ of 3 judges" in text
    stored = json.loads((tmp_path / "agreement.json").read_text(encoding="utf-8"))
    assert stored["settings"]["judges"]["r"] == "recorder"
    assert stored["settings"]["pairs"] == {
        "a": 5,
        "b": 5,
    }
    assert [(own["p"], own["share"]) for own in stored["curves"]["lexical"]] == [
        (0.0, 0.0),
        (1.0, 1.0),
    ]
    assert stored == json.loads(msgspec.json.encode(found))


def test_what_cannot_be_run_is_refused(tmp_path):
    class Short(Judge):
        name = "short"

        def judge_batch(self, pairs):
            return []

    for asked, judges, message in (
        (rows(), {}, "at least one judge"),
        ([], {"r": knowing()}, "no labelled rows"),
        (rows(), {"short": Short()}, "short gave 0 verdicts for 12 pairs"),
    ):
        with pytest.raises((ConfigError, DataError, JudgeError), match=message):
            run(asked, judges, tmp_path)


def test_specs_name_their_judges(monkeypatch):
    for spec, message in (
        ("oracle", "unknown judge 'oracle'"),
        ("endpoint:m@ftp://h", "endpoint:MODEL@URL"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_judge(spec)
    made = []
    monkeypatch.setattr(labelled, "load_judge", lambda *args, **knobs: made.append((args, knobs)))
    specs = ("nli:org/model", "generator:/some/dir/", "endpoint:org/m@v1@http://127.0.0.1:8000/v1")
    assert [parse_judge(spec)[0] for spec in specs] == [
        "nli:model",
        "generator:dir",
        "endpoint:m@v1",
    ]
    assert made[2] == (
        ("endpoint", "org/m@v1"),
        {"url": "http://127.0.0.1:8000/v1", "together": False},
    )


@dataclass(frozen=True)
class Everything(JudgedReward):
    """Asks about each (premise, hypothesis) that the question holds."""

    name = "info_think"

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        offices = [int(word) for word in trajectory.question.split()]
        return [
            StepPair(step, Pair(f"The office number {n} is in Oslo.", "Oslo"))
            for step, n in enumerate(offices, 1)
        ]


def audited(path, judge, metric="info_think_faithfulness", texts=("0 1", "2 3 4", "5"), drop=()):
    """A scores.jsonl as an audit writes it, of a reward that asked `judge`."""

    def record(score):
        return {"value": score.value, "why": score.why, "parts": score.parts}

    scores = Everything(judge).score_batch([Trajectory(question=text) for text in texts])
    records = [
        {
            "row": row,
            "digest": f"d{text}",
            "scores": {metric: record(score), "format": record(Score(1.0))},
        }
        for row, (text, score) in enumerate(zip(texts, scores, strict=True), start=1)
        if row not in drop
    ]
    return file_of(path, [*records, {"row": 99, "digest": "dd", "error": "half a line"}])


@pytest.mark.parametrize("ending", ["lexical", "counted", "containment"])
def test_audits_by_words_have_the_pairs_of_one_by_a_model(ending, tmp_path):
    one = audited(tmp_path / "one.jsonl", knowing())
    two = audited(tmp_path / "two.jsonl", GroundingJudge(), f"info_think_{ending}")
    assert [row.source for row in from_scores([one, two], **DRAWS).between] == ["info_think"]


def test_two_audits_are_compared_with_a_persons_labels(tmp_path):
    one = audited(tmp_path / "one.jsonl", knowing())
    two = audited(tmp_path / "two.jsonl", GroundingJudge(), "info_think_lexical")
    found = from_scores([one, two], tmp_path / "out", **DRAWS)
    assert found.judges == ("recorder", "lexical")
    assert found.against == []
    assert found.curves == {}
    (row,) = found.between
    assert (row.source, row.agreement.value, row.agreement.n) == (
        "info_think",
        0.5,
        3,
    )  # 0, 2, 4 of six; three rows
    assert row.kappa.value == 0.0
    assert (tmp_path / "out" / "agreement.json").exists()
    for path in (one, two):  # a pair that needed no judge is nobody's verdict
        records = lines_of(path)
        for record in records[:-1]:
            judged = next(
                score for name, score in record["scores"].items() if name.startswith("info_think")
            )
            judged["parts"]["pairs"].append(
                {"step": 9, "p": 0.0, "label": False, "why": "rule", "settled": True}
            )
        file_of(path, records)
    assert from_scores([one, two], **DRAWS).between[0] == row
    same = [two, audited(tmp_path / "same.jsonl", GroundingJudge(), "info_think_lexical")]
    found = from_scores(same, labels=one, **DRAWS)
    assert found.judges == tuple(map(str, same))  # both call themselves lexical
    assert [(row.agreement.value, row.true, row.pairs) for row in found.against] == [
        (0.5, 0.5, 6)
    ] * 2


def test_rows_of_only_one_audit_are_left_out(
    tmp_path,
):
    one = audited(tmp_path / "one.jsonl", knowing(), drop=(1,))
    two = audited(tmp_path / "two.jsonl", knowing(name="b"), texts=("5", "2 3 4", "0 1", "0 1"))
    found = from_scores([one, two], **DRAWS)
    assert found.between[0].agreement.value == 1.0
    assert found.settings["pairs"] == {"info_think": 4}
    assert found.settings["left_out"] == {str(one): 0, str(two): 4}
    silent = audited(tmp_path / "silent.jsonl", knowing(*range(6)))
    silent.write_text(silent.read_text() + one.read_text())  # asked again, and not finished yet
    assert from_scores([one, silent], **DRAWS).between[0].agreement.value == 1.0


def test_what_cannot_be_compared_is_refused(tmp_path):
    one = audited(tmp_path / "one.jsonl", knowing())
    bad = file_of(tmp_path / "bad.jsonl", [{"row": 1, "scores": {"a": 3}}])
    for paths, message in (
        ([one], "two or more"),
        ([one, tmp_path / "." / "one.jsonl"], "given twice"),
        (
            [one, audited(tmp_path / "other.jsonl", knowing(), texts=("7",))],
            "no judged pair is in all",
        ),
        ([one, bad], r"bad\.jsonl, line 1: not a row's scores"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            from_scores(paths)
    labels = file_of(tmp_path / "labels.jsonl", [{"premise": "P", "claim": "C", "label": 1}])
    assert is_scores(one)
    assert not is_scores(labels)
    assert not is_scores(tmp_path)


REAL = SHARED / "data" / "faithfulness"


@pytest.mark.skipif(not REAL.is_dir(), reason="the labelled data is not here")
def test_containment_on_the_held_out_rows_is_what_the_docs_say(tmp_path):
    found = run(load(REAL, "heldout"), {"containment": ContainmentJudge()}, tmp_path, **DRAWS)
    assert {row.source: (row.pairs, round(row.agreement.value, 3)) for row in found.against} == {
        "anli": (644, 0.686),
        "attributionbench": (739, 0.529),
        "begin": (836, 0.708),
        "halueval": (772, 0.97),
        "all": (2991, 0.727),
    }
