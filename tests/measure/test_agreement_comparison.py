"""Judges against labels and each other: what is asked, kept, resumed and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace
from paths import SHARED

from faithful_search.errors import ConfigError, DataError, JudgeError
from faithful_search.judges import GroundingJudge, LexicalJudge, Pair, Verdict
from faithful_search.measure import agreement
from faithful_search.measure.agreement import from_scores, is_scores, parse_judge, run
from faithful_search.measure.agreement import judges as comparison
from faithful_search.measure.agreement.labelled import Labelled, load
from faithful_search.measure.agreement.statistics import cohen_kappa
from faithful_search.rewards.base import Score
from faithful_search.rewards.judged import Asked, JudgedReward
from faithful_search.trajectory import Trajectory

DRAWS = 50
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


@dataclass(frozen=True)
class Recorder:
    """Knows that even offices are where they are said to be; abstains or breaks off where told to."""

    name: str = "recorder"
    abstains: frozenset[int] = frozenset()
    breaks_at: int | None = None
    asked: list[Pair] = field(default_factory=list)

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.asked.extend(pairs)
        return [self._judge(int(pair.premise.split()[3])) for pair in pairs]

    def _judge(self, number: int) -> Verdict:
        if number == self.breaks_at:
            raise JudgeError("the key was refused")
        if number in self.abstains:
            return Verdict(None, None, "the server was down", self.name)
        return Verdict(0.9 if number % 2 == 0 else 0.2, number % 2 == 0, "because", self.name)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def against(found, judge, source="all"):
    return next(row for row in found.against if (row.judge, row.source) == (judge, source))


def test_judges_beside_labels_and_each_other(tmp_path):
    judges = {"lexical": GroundingJudge(), "knows": Recorder()}
    found = run(rows(), judges, tmp_path, draws=DRAWS)
    knows = against(found, "knows")
    assert (knows.agreement.value, knows.kappa.value, knows.auroc.value) == (1.0, 1.0, 1.0)
    assert (knows.pairs, knows.abstained, knows.true, knows.bins) == (12, 0, 0.5, 2)
    assert knows.calibration.value == pytest.approx(0.15) and knows.brier.value == pytest.approx(0.025)
    assert knows.agreement.n == 6  # groups
    assert [(row.judge, row.source) for row in found.against] == [
        (judge, source) for source in ("a", "b", "all") for judge in judges
    ]
    said = [verdict["label"] for verdict in lines(tmp_path / "verdicts.jsonl") if verdict["judge"] == "lexical"]
    truth = [row.label for row in rows()]
    assert found.between[-1].kappa.value == cohen_kappa(said, truth).value == 1.0
    assert found.among["all"].value == 1.0


def test_the_judge_reads_the_pair_its_question_and_task_and_equal_ones_once(tmp_path):
    judge, (one, two) = Recorder(), rows(2)
    found = run([one, two, two, replace(two, task="info_think")], {"r": judge}, tmp_path, draws=DRAWS)
    pair = Pair("The office number 1 is in Oslo.", "Rome", "Where is it?", "support")
    assert judge.asked[1:] == [pair, replace(pair, task="info_think")] and against(found, "r").pairs == 4


def test_a_second_run_asks_only_what_is_missing_or_was_abstained_from(tmp_path):
    first = Recorder(abstains=frozenset({3, 4}))
    found = run(rows(), {"r": first}, tmp_path, draws=DRAWS)
    row = against(found, "r")
    assert (row.pairs, row.abstained, row.agreement.abstained, row.agreement.value) == (10, 2, 2, 1.0)
    second = Recorder()
    again = run(rows(14), {"r": second}, tmp_path, draws=DRAWS)
    assert [pair.premise.split()[3] for pair in second.asked] == ["3", "4", "12", "13"]
    assert against(again, "r").abstained == 0 and against(again, "r").pairs == 14
    third = Recorder()
    assert run(rows(14), {"r": third}, tmp_path, draws=DRAWS) == again
    assert third.asked == []


def test_another_judge_or_another_text_is_asked_anew(tmp_path):
    run(rows(4), {"r": Recorder()}, tmp_path, draws=DRAWS)
    other = Recorder(name="recorder v2")
    run(rows(4), {"r": other}, tmp_path, draws=DRAWS)
    assert len(other.asked) == 4
    changed = [*rows(3), Labelled("r3", "The office number 3 moved.", "Oslo", "", False, "a", "heldout", "g1")]
    same = Recorder()
    run(changed, {"r": same}, tmp_path, draws=DRAWS)
    assert [pair.premise for pair in same.asked] == ["The office number 3 moved."]


def test_what_was_judged_before_a_judge_broke_off_is_kept_and_half_a_line_asked_again(tmp_path, monkeypatch):
    path = tmp_path / "verdicts.jsonl"
    monkeypatch.setattr(agreement, "CHUNK", 2)
    with pytest.raises(JudgeError, match=r"key was refused; 2 lines are in .*verdicts\.jsonl"):
        run(rows(4), {"r": Recorder(breaks_at=3)}, tmp_path, draws=DRAWS)
    assert len(lines(path)) == 2 and not (tmp_path / "agreement.json").exists()
    run(rows(4), {"r": Recorder()}, tmp_path, draws=DRAWS)
    path.write_bytes(path.read_bytes()[:-20])
    for asked in (1, 0):
        judge = Recorder()
        run(rows(4), {"r": judge}, tmp_path, draws=DRAWS)
        assert len(judge.asked) == asked and lines(path)[-1]["id"] == "r3"


def test_a_limit_is_a_seeded_sample_of_each_source(tmp_path):
    judge = Recorder()
    found = run(rows(), {"r": judge}, tmp_path, draws=DRAWS, limit=2, seed=1)
    assert found.settings["pairs"] == {"a": 2, "b": 2} and len(judge.asked) == 4
    assert found.settings["limit"] == 2 and found.settings["seed"] == 1


def test_the_table_and_the_file_hold_every_number(tmp_path):
    judges = {"lexical": GroundingJudge(), "containment": LexicalJudge(), "r": Recorder(abstains=frozenset({0}))}
    found = run(rows(), judges, tmp_path, draws=DRAWS)
    text = found.table()
    assert text.splitlines()[0].split()[:4] == ["judge", "labels", "pairs", "true"]
    assert sum(line.startswith(("lexical ", "containment ", "r ")) for line in text.split("\n\n")[0].splitlines()) == 9
    assert "Fleiss' κ of 3 judges" in text
    stored = json.loads((tmp_path / "agreement.json").read_text(encoding="utf-8"))
    assert stored["against"][-1]["abstained"] == 1
    assert stored["settings"]["judges"]["r"] == "recorder" and stored["settings"]["bins"] == 10
    assert stored["curves"]["lexical"] == [{"p": 0.0, "share": 0.0, "n": 6}, {"p": 1.0, "share": 1.0, "n": 6}]
    assert stored == json.loads(msgspec.json.encode(found))
    one_class = run([row for row in rows() if row.label], {"r": Recorder()}, tmp_path / "true", draws=DRAWS)
    row = against(one_class, "r")
    assert row.agreement.value == 1.0 and row.kappa.value is row.auroc.value is None and " -  " in one_class.table()


def test_what_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one judge"):
        run(rows(), {}, tmp_path)
    with pytest.raises(DataError, match="no labelled rows"):
        run([], {"r": Recorder()}, tmp_path)
    short = SimpleNamespace(name="short", judge_batch=lambda pairs: [])
    with pytest.raises(JudgeError, match="short gave 0 verdicts for 12 pairs"):
        run(rows(), {"short": short}, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot make the folder"):
        run(rows(), {"r": Recorder()}, tmp_path / "file")


def test_specs_name_their_judges(monkeypatch):
    for spec, message in {
        "oracle": "unknown judge 'oracle'",
        "embedding": "needs a model",
        "lexical:x": "has no model",
        **dict.fromkeys(("endpoint:gpt", "endpoint:@http://h", "endpoint:m@ftp://h"), "endpoint:MODEL@URL"),
    }.items():
        with pytest.raises(ConfigError, match=message):
            parse_judge(spec)
    made = []
    monkeypatch.setattr(comparison, "load_judge", lambda *args, **knobs: made.append((args, knobs)))
    specs = ("nli:org/model", "generator:/some/dir/", "endpoint:org/m@v1@http://127.0.0.1:8000/v1")
    assert [parse_judge(spec)[0] for spec in specs] == ["nli:model", "generator:dir", "endpoint:m@v1"]
    assert made[1:] == [
        (("generator", "/some/dir/"), {}),
        (("endpoint", "org/m@v1"), {"url": "http://127.0.0.1:8000/v1", "together": False}),
    ]
    assert parse_judge("containment") == ("containment", LexicalJudge())


@dataclass(frozen=True)
class Everything(JudgedReward):
    """Asks about each (premise, hypothesis) that the question holds."""

    name = "info_think"

    def pairs(self, trajectory: Trajectory) -> list[Asked]:
        offices = [int(word) for word in trajectory.question.split()]
        return [Asked(step, Pair(f"The office number {n} is in Oslo.", "Oslo")) for step, n in enumerate(offices, 1)]


def audit(path, judge, name, texts=("0 1", "2 3 4", "5"), drop=()):
    """A scores.jsonl as an audit writes it, of a reward that asked `judge`."""
    scores = Everything(judge).score_batch([Trajectory(question=text) for text in texts])
    records = [
        {"row": row, "digest": f"d{text}", "scores": {name: record(score), "format": record(Score(1.0))}}
        for row, (text, score) in enumerate(zip(texts, scores, strict=True), start=1)
        if row not in drop
    ]
    records.append({"row": 99, "digest": "dd", "error": "half a line"})
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


def record(score):
    return {"value": score.value, "why": score.why, "parts": score.parts}


def test_two_audits_are_compared_pair_by_pair(tmp_path):
    one = audit(tmp_path / "one.jsonl", Recorder(), "info_think_faithfulness")
    two = audit(tmp_path / "two.jsonl", GroundingJudge(), "info_think_lexical")
    found = from_scores([one, two], tmp_path / "out", draws=DRAWS)
    assert found.judges == ("recorder", "lexical")
    assert found.against == [] and found.curves == {}
    (row,) = found.between
    assert (row.source, row.agreement.value, row.agreement.n) == ("info_think", 0.5, 3)  # 0, 2, 4 of six; three rows
    assert row.kappa.value == 0.0
    assert json.loads((tmp_path / "out" / "agreement.json").read_text(encoding="utf-8"))["settings"]["draws"] == DRAWS
    for path in (one, two):  # a pair that needed no judge is nobody's verdict
        records = lines(path)
        for record in records[:-1]:
            judged = next(score for name, score in record["scores"].items() if name.startswith("info_think"))
            judged["parts"]["pairs"].append({"step": 9, "p": 0.0, "label": False, "why": "rule", "settled": True})
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert from_scores([one, two], draws=DRAWS).between[0] == row
    silent = audit(tmp_path / "silent.jsonl", Recorder(abstains=frozenset({1, 3})), "info_think_faithfulness")
    (row,) = from_scores([silent, two], draws=DRAWS).between
    assert (row.agreement.value, row.agreement.abstained) == (0.75, 2)


def test_rows_that_are_not_in_both_audits_are_left_out_and_counted(tmp_path):
    one = audit(tmp_path / "one.jsonl", Recorder(), "info_think_faithfulness", drop=(1,))
    two = audit(
        tmp_path / "two.jsonl", Recorder(name="b"), "info_think_faithfulness", texts=("5", "2 3 4", "0 1", "0 1")
    )
    found = from_scores([one, two], draws=DRAWS)
    assert found.between[0].agreement.value == 1.0 and found.settings["pairs"] == {"info_think": 4}
    assert found.settings["left_out"] == {str(one): 0, str(two): 4}


def test_of_a_row_that_was_scored_again_the_last_line_counts(tmp_path):
    one = audit(tmp_path / "one.jsonl", Recorder(), "info_think_faithfulness")
    silent = audit(tmp_path / "two.jsonl", Recorder(abstains=frozenset(range(6))), "info_think_faithfulness")
    silent.write_text(silent.read_text() + one.read_text())  # asked again, and not finished yet
    found = from_scores([one, silent], draws=DRAWS)
    assert found.between[0].agreement.value == 1.0 and found.settings["left_out"] == {str(one): 0, str(silent): 0}


def test_audits_beside_a_persons_labels(tmp_path):
    person = audit(tmp_path / "person.jsonl", Recorder(name="a person"), "info_think_lexical")
    same = [audit(tmp_path / f"{n}.jsonl", GroundingJudge(), "info_think_lexical") for n in (1, 2)]
    found = from_scores(same, labels=person, draws=DRAWS)
    assert found.judges == tuple(map(str, same))  # both call themselves lexical
    assert {row.agreement.value for row in found.against} == {0.5}
    assert found.against[0].true == 0.5 and found.among["info_think"].value is None
    assert from_scores(same[:1], labels=person, draws=DRAWS).against[0].pairs == 6


def test_what_cannot_be_compared_is_refused(tmp_path):
    one = audit(tmp_path / "one.jsonl", Recorder(), "info_think_faithfulness")
    other = audit(tmp_path / "other.jsonl", Recorder(), "info_think_faithfulness", texts=("7",))
    with pytest.raises(ConfigError, match="two or more"):
        from_scores([one])
    strings = audit(tmp_path / "strings.jsonl", Recorder(), "think_answer_sub_em")
    with pytest.raises(ConfigError, match="given twice"):
        from_scores([one, tmp_path / "." / "one.jsonl"])
    more = audit(tmp_path / "more.jsonl", Recorder(), "think_answer_sub_em")
    for paths in ([one, other], [strings, more]):
        with pytest.raises(DataError, match="no judged pair is in all"):
            from_scores(paths)
    (tmp_path / "bad.jsonl").write_text('{"row": 1, "scores": {"a": 3}}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl, line 1: not a row's scores"):
        from_scores([one, tmp_path / "bad.jsonl"])
    (tmp_path / "labels.jsonl").write_text('{"premise": "P", "claim": "C", "label": 1}\n')
    (tmp_path / "empty.jsonl").write_text("")
    others = (tmp_path / "labels.jsonl", tmp_path / "empty.jsonl", tmp_path)
    assert is_scores(one) and not any(map(is_scores, others))


REAL = SHARED / "data" / "faithfulness"


@pytest.mark.skipif(not REAL.is_dir(), reason="the labelled data is not here")
def test_containment_on_the_held_out_rows_is_what_the_docs_say(tmp_path):
    found = run(load(REAL, "heldout"), {"containment": LexicalJudge()}, tmp_path, draws=DRAWS)
    assert {row.source: (row.pairs, round(row.agreement.value, 3)) for row in found.against} == {
        "anli": (644, 0.686),
        "attributionbench": (739, 0.528),
        "begin": (836, 0.705),
        "halueval": (772, 0.908),
        "all": (2991, 0.709),
    }
