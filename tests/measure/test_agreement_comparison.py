"""Judges against labels and each other: what is asked, kept, resumed and written."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
import pytest
from agent_rows import CountingJudge, file_of, lines_of
from msgspec.structs import replace
from paths import SHARED

from faithful_search.errors import ConfigError, DataError, JudgeError
from faithful_search.judges import GroundingJudge, LexicalJudge, Pair
from faithful_search.measure.agreement import from_scores, is_scores, labelled, parse_judge, run
from faithful_search.measure.agreement.labelled import Labelled, load
from faithful_search.measure.agreement.statistics import cohen_kappa
from faithful_search.rewards.base import Asked, JudgedReward, Score
from faithful_search.trajectory import Trajectory

DRAWS = {"draws": 50}
CITIES = ("Lima", "Oslo", "Rome", "Kyiv", "Cairo", "Quito")


def rows(count=12):
    """Half of them supported; two sources."""
    return [
        Labelled(
            id=f"r{number}",
            premise=f"The office number {number} is in {CITIES[number % 6]}.",
            hypothesis=CITIES[(number + number % 2) % 6],
            question="Where is it?",
            label=number % 2 == 0,
            source="ab"[number >= count // 2],
            split="heldout",
            group=f"g{number // 2}",
        )
        for number in range(count)
    ]


def office(pair):
    return int(pair.premise.split()[3])


def knowing(*silent, name="recorder"):
    """A judge that knows that even offices are where they are said to be."""
    return CountingJudge(lambda pair: None if office(pair) in silent else office(pair) % 2 == 0, name)


def against(found, judge, source="all"):
    return next(row for row in found.against if (row.judge, row.source) == (judge, source))


def test_judges_beside_labels_and_each_other(tmp_path):
    asked = {"lexical": GroundingJudge(), "knows": knowing()}
    found = run(rows(), asked, tmp_path, **DRAWS)
    knows = against(found, "knows")
    assert (knows.agreement.value, knows.kappa.value, knows.auroc.value) == (1.0, 1.0, 1.0)
    assert (knows.pairs, knows.abstained, knows.true, knows.bins) == (12, 0, 0.5, 2)
    assert knows.calibration.value == pytest.approx(0.25) and knows.brier.value == pytest.approx(0.0625)
    assert knows.agreement.n == 6  # groups
    named = [(judge, source) for source in ("a", "b", "all") for judge in asked]
    assert [(row.judge, row.source) for row in found.against] == named
    said = [verdict["label"] for verdict in lines_of(tmp_path / "verdicts.jsonl") if verdict["judge"] == "lexical"]
    truth = [row.label for row in rows()]
    assert found.between[-1].kappa.value == cohen_kappa(said, truth).value == found.among["all"].value == 1.0


def test_a_second_run_asks_only_what_is_missing_or_was_abstained_from_and_equal_pairs_once(tmp_path):
    row = against(run(rows(), {"r": knowing(3, 4)}, tmp_path, **DRAWS), "r")
    assert (row.pairs, row.abstained, row.agreement.abstained, row.agreement.value) == (10, 2, 2, 1.0)
    second, third, fourth = knowing(), knowing(), knowing()
    again = run(rows(14), {"r": second}, tmp_path, **DRAWS)
    assert list(map(office, second.asked)) == [3, 4, 12, 13]
    assert (against(again, "r").abstained, against(again, "r").pairs) == (0, 14)
    assert run(rows(14), {"r": third}, tmp_path, **DRAWS) == again and third.asked == []
    moved = Labelled("r3", "The office number 3 moved.", "Oslo", "Where to?", False, "a", "heldout", "g1")
    run([*rows(3), moved, moved, replace(moved, task="info_think")], {"r": fourth}, tmp_path, **DRAWS)
    pair = Pair("The office number 3 moved.", "Oslo", "Where to?", "support")
    assert fourth.asked == [pair, replace(pair, task="info_think")]
    other = knowing(name="recorder v2")
    run(rows(4), {"r": other}, tmp_path, **DRAWS)
    assert len(other.asked) == 4


def test_the_table_and_the_file_hold_every_number(tmp_path):
    asked = {"lexical": GroundingJudge(), "containment": LexicalJudge(), "r": knowing(0)}
    found = run(rows(), asked, tmp_path, **DRAWS, limit=5)
    text = found.table()
    assert text.splitlines()[0].split()[:4] == ["judge", "labels", "pairs", "true"]
    assert sum(line.startswith(("lexical ", "containment ", "r ")) for line in text.split("\n\n")[0].splitlines()) == 9
    assert "Fleiss' κ of 3 judges" in text
    stored = json.loads((tmp_path / "agreement.json").read_text(encoding="utf-8"))
    assert stored["settings"]["judges"]["r"] == "recorder" and stored["settings"]["pairs"] == {"a": 5, "b": 5}
    assert [(own["p"], own["share"]) for own in stored["curves"]["lexical"]] == [(0.0, 0.0), (1.0, 1.0)]
    assert stored == json.loads(msgspec.json.encode(found))
    one_class = run([row for row in rows() if row.label], {"r": knowing()}, tmp_path / "true", **DRAWS)
    row = against(one_class, "r")
    assert row.agreement.value == 1.0 and row.kappa.value is row.auroc.value is None and " -  " in one_class.table()


def test_what_cannot_be_run_is_refused(tmp_path):
    short = SimpleNamespace(name="short", judge_batch=lambda pairs: [])
    for given, judges, message in (
        (rows(), {}, "at least one judge"),
        ([], {"r": knowing()}, "no labelled rows"),
        (rows(), {"short": short}, "short gave 0 verdicts for 12 pairs"),
    ):
        with pytest.raises((ConfigError, DataError, JudgeError), match=message):
            run(given, judges, tmp_path)


def test_specs_name_their_judges(monkeypatch):
    for spec, message in {
        "oracle": "unknown judge 'oracle'",
        "embedding": "needs a model",
        "lexical:x": "has no model",
        "endpoint:m@ftp://h": "endpoint:MODEL@URL",
    }.items():
        with pytest.raises(ConfigError, match=message):
            parse_judge(spec)
    made = []
    monkeypatch.setattr(labelled, "load_judge", lambda *args, **knobs: made.append((args, knobs)))
    specs = ("nli:org/model", "generator:/some/dir/", "endpoint:org/m@v1@http://127.0.0.1:8000/v1")
    assert [parse_judge(spec)[0] for spec in specs] == ["nli:model", "generator:dir", "endpoint:m@v1"]
    assert made[2] == (("endpoint", "org/m@v1"), {"url": "http://127.0.0.1:8000/v1", "together": False})


@dataclass(frozen=True)
class Everything(JudgedReward):
    """Asks about each (premise, hypothesis) that the question holds."""

    name = "info_think"

    def pairs(self, trajectory: Trajectory) -> list[Asked]:
        offices = [int(word) for word in trajectory.question.split()]
        return [Asked(step, Pair(f"The office number {n} is in Oslo.", "Oslo")) for step, n in enumerate(offices, 1)]


def audited(path, judge, metric="info_think_faithfulness", texts=("0 1", "2 3 4", "5"), drop=()):
    """A scores.jsonl as an audit writes it, of a reward that asked `judge`."""

    def record(score):
        return {"value": score.value, "why": score.why, "parts": score.parts}

    scores = Everything(judge).score_batch([Trajectory(question=text) for text in texts])
    records = [
        {"row": row, "digest": f"d{text}", "scores": {metric: record(score), "format": record(Score(1.0))}}
        for row, (text, score) in enumerate(zip(texts, scores, strict=True), start=1)
        if row not in drop
    ]
    return file_of(path, [*records, {"row": 99, "digest": "dd", "error": "half a line"}])


def test_two_audits_are_compared_pair_by_pair_and_with_a_persons_labels(tmp_path):
    one = audited(tmp_path / "one.jsonl", knowing())
    two = audited(tmp_path / "two.jsonl", GroundingJudge(), "info_think_lexical")
    found = from_scores([one, two], tmp_path / "out", **DRAWS)
    assert found.judges == ("recorder", "lexical") and found.against == [] and found.curves == {}
    (row,) = found.between
    assert (row.source, row.agreement.value, row.agreement.n) == ("info_think", 0.5, 3)  # 0, 2, 4 of six; three rows
    assert row.kappa.value == 0.0 and (tmp_path / "out" / "agreement.json").exists()
    for path in (one, two):  # a pair that needed no judge is nobody's verdict
        records = lines_of(path)
        for record in records[:-1]:
            judged = next(score for name, score in record["scores"].items() if name.startswith("info_think"))
            judged["parts"]["pairs"].append({"step": 9, "p": 0.0, "label": False, "why": "rule", "settled": True})
        file_of(path, records)
    assert from_scores([one, two], **DRAWS).between[0] == row
    (row,) = from_scores([audited(tmp_path / "silent.jsonl", knowing(1, 3)), two], **DRAWS).between
    assert (row.agreement.value, row.agreement.abstained) == (0.75, 2)
    same = [two, audited(tmp_path / "same.jsonl", GroundingJudge(), "info_think_lexical")]
    found = from_scores(same, labels=one, **DRAWS)
    assert found.judges == tuple(map(str, same))  # both call themselves lexical
    assert [(row.agreement.value, row.true, row.pairs) for row in found.against] == [(0.5, 0.5, 6)] * 2


def test_rows_that_are_not_in_both_audits_are_left_out_and_of_one_scored_again_the_last_line_counts(tmp_path):
    one = audited(tmp_path / "one.jsonl", knowing(), drop=(1,))
    two = audited(tmp_path / "two.jsonl", knowing(name="b"), texts=("5", "2 3 4", "0 1", "0 1"))
    found = from_scores([one, two], **DRAWS)
    assert found.between[0].agreement.value == 1.0 and found.settings["pairs"] == {"info_think": 4}
    assert found.settings["left_out"] == {str(one): 0, str(two): 4}
    one = audited(tmp_path / "one.jsonl", knowing())
    silent = audited(tmp_path / "silent.jsonl", knowing(*range(6)))
    silent.write_text(silent.read_text() + one.read_text())  # asked again, and not finished yet
    found = from_scores([one, silent], **DRAWS)
    assert found.between[0].agreement.value == 1.0 and found.settings["left_out"] == {str(one): 0, str(silent): 0}


def test_what_cannot_be_compared_is_refused(tmp_path):
    one = audited(tmp_path / "one.jsonl", knowing())
    other = audited(tmp_path / "other.jsonl", knowing(), texts=("7",))
    bad = file_of(tmp_path / "bad.jsonl", [{"row": 1, "scores": {"a": 3}}])
    for paths, message in (
        ([one], "two or more"),
        ([one, tmp_path / "." / "one.jsonl"], "given twice"),
        ([one, other], "no judged pair is in all"),
        ([one, bad], r"bad\.jsonl, line 1: not a row's scores"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            from_scores(paths)
    labels, empty = ([{"premise": "P", "claim": "C", "label": 1}], [])
    others = (file_of(tmp_path / "labels.jsonl", labels), file_of(tmp_path / "empty.jsonl", empty), tmp_path)
    assert is_scores(one) and not any(map(is_scores, others))


REAL = SHARED / "data" / "faithfulness"


@pytest.mark.skipif(not REAL.is_dir(), reason="the labelled data is not here")
def test_containment_on_the_held_out_rows_is_what_the_docs_say(tmp_path):
    found = run(load(REAL, "heldout"), {"containment": LexicalJudge()}, tmp_path, **DRAWS)
    assert {row.source: (row.pairs, round(row.agreement.value, 3)) for row in found.against} == {
        "anli": (644, 0.686),
        "attributionbench": (739, 0.528),
        "begin": (836, 0.705),
        "halueval": (772, 0.908),
        "all": (2991, 0.709),
    }
