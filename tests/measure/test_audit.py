"""An audit: what it measures, that nothing is lost or asked twice, and what happens when something
is wrong.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from agent_rows import JUDGED, CountingJudge, file_of, lines_of, rollout, rollouts, silent_on
from paths import SHARED
from stub_server import StubServer, judge_at, label_by_word

from faithful_search.errors import ConfigError, DataError, JudgeError
from faithful_search.judges import Verdict
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.measure import workers
from faithful_search.measure.audit import Audit, audit, bill
from faithful_search.measure.scores import ScoreLog, read_scores
from faithful_search.measure.stats import Estimate
from faithful_search.measure.summary import choose_rows, summarize
from faithful_search.reading.rows import pick, read_trajectories

REAL = SHARED / "data" / "trajectories"
INFO_THINK = {"metrics": ["info_think_faithfulness"]}


def scored(out: Path) -> list[dict]:
    return lines_of(out / "scores.jsonl")


# what is measured


def test_the_scores_and_the_summary_say_what_was_measured(tmp_path):
    path = file_of(tmp_path / "a.jsonl", [rollout(n, n // 2) for n in range(8)])
    found = audit(path, tmp_path / "out", dialect="search_r1")
    assert (found.rows["exact_match_unicode"].value, found.rows["exact_match_unicode"].n) == (
        0.25,
        4,
    )  # n are questions
    assert found.rows["info_think_lexical"].value == 1.0
    assert not {"info_think_faithfulness", "evidence_sensitivity"} & found.rows.keys()
    assert (found.n, found.errors, found.abstained, found.complete) == (8, 0, 0, True)
    assert found.tools.counts == {"search": 8}
    assert found.tools.ratios == {"search": 1.0}
    assert found.dialects == {"search_r1": 8}
    assert found.settings["judge"] == "lexical"
    first = scored(tmp_path / "out")[0]
    assert (first["row"], first["answer"], first["tools"]) == (1, "Orvik", {"search": 1})
    assert first["scores"]["exact_match_unicode"]["value"] == 1.0
    assert Audit.from_dict(json.loads((tmp_path / "out" / "audit.json").read_text())) == found
    assert "exact_match_unicode" in str(found)
    assert "0.250" in str(found)
    assert "100.0%  search" in str(found)


def test_several_dialects_are_shown_apart_too(tmp_path):
    """A mean over agents that write differently hides which of them is meant."""
    ours = "<think>I know.</think><answer>Orvik</answer>"
    rows = [
        *map(rollout, range(4)),
        *({**rollout(n), "output": ours, "dialect": "pou"} for n in range(4, 10)),
    ]
    found = audit(
        file_of(tmp_path / "a.jsonl", rows), tmp_path / "mixed", metrics=["answer_correctness"]
    )
    apart = {name: of["exact_match_unicode"] for name, of in found.by_dialect.items()}
    assert {name: (row.n, row.value) for name, row in apart.items()} == {
        "pou": (6, 1.0),
        "search_r1": (4, 0.25),
    }
    assert found.rows["exact_match_unicode"].value == 0.7
    assert "by dialect" in str(found)


def test_unreadable_rows_are_counted(
    tmp_path,
):
    bare = [
        {name: value for name, value in rollout(n).items() if name != "question"} for n in range(3)
    ]
    rest = [{**rollout(n), "id": os.urandom(2000).hex()} for n in range(40)]
    path = file_of(
        tmp_path / "a.jsonl.gz",
        [rollout(0), "{half", {"text": "no agent wrote this"}, *bare, *rest],
    )
    path.write_bytes(path.read_bytes()[:-3000])
    found = audit(path, tmp_path / "out", metrics=["protocol_format"])
    assert found.errors == 2
    assert 30 < found.n < 44
    assert not found.complete
    assert "cannot read" in found.source_error
    assert [item.row for item in found.unread] == [2, 3]
    assert "not JSON" in found.unread[0].why
    assert found.unasked == 3
    assert "without a question: 3, each counts as one of its own" in str(found)


def test_the_rows_to_show_are_the_worst_and_some_from_everywhere(tmp_path):
    path, scores = rollouts(tmp_path, *range(40)), tmp_path / "out" / "scores.jsonl"
    audit(path, tmp_path / "out", metrics=["answer_correctness"])
    chosen = choose_rows(scores, "exact_match_unicode", 10)
    assert len(chosen) == 10
    assert chosen == sorted(set(chosen))
    assert chosen[-1] > 30
    assert (
        len(
            {line.row for line in read_scores(scores) if line.values["exact_match_unicode"] == 0}
            & {*chosen}
        )
        >= 5
    )
    assert [int(trajectory.id) + 1 for _, trajectory in pick(path, chosen)] == chosen


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
@pytest.mark.parametrize("name", ["r1_searcher_hotpotqa_qwen", "search_r1_ppo_3b", "webdancer"])
def test_real_files_are_audited_as_they_are(tmp_path, name):
    found = audit(REAL / f"{name}.jsonl.gz", tmp_path / "out", limit=20)
    assert (found.n, found.errors, found.abstained) == (20, 0, 0)
    assert found.rows["info_think_lexical"].n > 3
    assert sum(found.tools.counts.values()) > 6
    for line in read_scores(tmp_path / "out" / "scores.jsonl"):
        assert all(cell.value is None or -1 <= cell.value <= 1 for cell in line.scores.values())


# judges


def test_a_judge_is_asked_once_a_batch_and_once_for_each_pair(tmp_path):
    judge = CountingJudge()
    path = file_of(tmp_path / "a.jsonl", [rollout(n % 8) for n in range(16)])
    found = audit(path, tmp_path / "out", judge=judge, metrics=JUDGED)
    assert judge.calls <= 2
    assert len(judge.asked) == len(set(judge.asked)) > 16
    assert found.rows["info_think_faithfulness"].value == 1.0
    assert found.settings["judge"] == "counting@1"


def test_a_judge_that_dies_leaves_whole_rows(
    tmp_path,
):
    class Dying(CountingJudge):
        def judge_batch(self, pairs):
            return [Verdict(1.0, True)] * 12 + [Verdict(None, None, "gone", self.name)] * (
                len(pairs) - 12
            )

    def picky(pair):
        if "lighthouse 3" in pair.question:
            raise RuntimeError("a bug")
        return True

    path = rollouts(tmp_path, *range(10))
    found = audit(path, tmp_path / "dying", judge=Dying(), metrics=JUDGED[:2])
    assert {item.row for item in found.unjudged} == {7, 8, 9, 10}  # two pairs a row
    metrics = ["info_think_faithfulness", "protocol_format"]
    found = audit(path, tmp_path / "picky", judge=CountingJudge(picky), metrics=metrics)
    [item] = found.unjudged
    assert (item.row, item.metric) == (
        4,
        "info_think_faithfulness",
    )
    assert "failed: RuntimeError" in item.why
    assert all(found.rows[name].value == 1.0 for name in metrics)


@pytest.mark.parametrize(
    "mode", ["busy", "error", "hang", "cut", "schema", "closed", "empty", "garbage"]
)
def test_a_misbehaving_server_costs_only_the_rows_it_failed_on(tmp_path, mode):
    path, out = rollouts(tmp_path, *range(12)), tmp_path / "out"
    metrics = ["info_think_faithfulness", "think_search_faithfulness", "protocol_format"]
    with StubServer(mode=mode, faults=5, retry_after="60") as server:
        judge = judge_at(server, retries=0, timeout=0.5, patience=5.0, concurrency=2)
        first = audit(path, out, judge=judge, metrics=metrics)
        assert 0 < first.abstained <= 5
        assert first.n == 12
        assert not first.complete
        missing = {line.row for line in read_scores(out / "scores.jsonl") if not line.complete}
        assert missing == {item.row for item in first.unjudged}
        assert len(missing) == first.abstained
        assert first.rows["protocol_format"].value == 1.0  # what needs no judge is there
        assert all(item.why.startswith("no verdict: ") for item in first.unjudged)
        before = server.calls
        assert audit(path, out, judge=judge, metrics=metrics).complete
        assert (
            server.calls - before == judge.stats.failures
        )  # what was answered of those rows is not paid again


@pytest.mark.parametrize("mode", ["unauthorized", "missing"])
def test_a_server_that_refuses_stops_the_audit(tmp_path, mode):
    path, out = rollouts(tmp_path, *range(100)), tmp_path / "out"
    with StubServer(mode=mode) as server:
        judge = judge_at(server, retries=0, concurrency=2)
        with pytest.raises(
            JudgeError, match=r"the judge cannot be asked: .* lines are in .*scores\.jsonl"
        ):
            audit(path, out, judge=judge, **INFO_THINK)
        assert server.calls < 20
        assert all(
            line["scores"]["info_think_faithfulness"]["value"] is None for line in scored(out)
        )
        server.mode = "ok"
        assert audit(path, out, judge=judge, **INFO_THINK).complete


def test_an_estimate_counts_what_the_audit_will_ask(
    tmp_path,
):
    path, metrics = (
        rollouts(tmp_path, *range(20)),
        ["info_think_faithfulness", "think_search_faithfulness"],
    )
    with StubServer() as server:
        judge = EndpointJudge("large", url=server.url, cache=None, prices=(1.0, 2.0))
        found = bill(path, judge, metrics=metrics)
        told = re.match(
            r"20 rows: about 40 calls, ([\d,]+) \+ ([\d,]+) tokens, cost ([\d.]+), ", found
        )
        asked, answered, cost = (float(number.replace(",", "")) for number in told.groups())
        assert server.calls == 0
        assert cost == pytest.approx((asked + 2 * answered) / 1e6, abs=1e-4)
        assert (
            audit(path, tmp_path / "out", judge=judge, metrics=metrics, limit=12).usage["calls"]
            == 24
        )
        measured = audit(path, tmp_path / "out", judge=judge, metrics=metrics)
        assert server.calls == measured.usage["calls"] == 40
    assert "judge: large was asked, stub answered (40 times)" in str(measured)


@pytest.mark.parametrize(
    ("prices", "cost"),
    [((1.0, 2.0), "cost 0.0000"), (None, "its cost unknown without --judge-prices")],
)
def test_an_estimate_of_cached_answers_costs_nothing(tmp_path, prices, cost):
    path = rollouts(tmp_path, *range(4))
    with StubServer() as server:
        judge = EndpointJudge("large", url=server.url, cache=tmp_path / "kept", prices=prices)
        audit(path, tmp_path / "out", judge=judge, **INFO_THINK)
        sentence = bill(path, judge, **INFO_THINK)
    assert "about 0 calls (4 answers are in the cache)" in sentence
    assert f", {cost}, " in sentence


# going on


def test_a_second_run_asks_only_about_what_is_missing(tmp_path):
    path, out = rollouts(tmp_path, *range(20)), tmp_path / "out"
    first = audit(path, out, judge=CountingJudge(silent_on("Lighthouse 7 ")), metrics=JUDGED)
    assert first.abstained == 1
    assert first.rows["info_think_faithfulness"].abstained == 1
    assert (first.unjudged[0].row, first.unjudged[0].why) == (8, "no verdict: timed out")
    assert first.rows["info_think_faithfulness"].value == 1.0  # never counted as zero
    again, never = CountingJudge(), CountingJudge()
    second = audit(path, out, judge=again, metrics=JUDGED)
    assert {pair.question for pair in again.asked} == {"Where is lighthouse 7?"}
    assert second.complete
    assert [line["row"] for line in scored(out)] == list(range(1, 21))
    assert audit(path, out, judge=never, metrics=JUDGED) == second
    assert never.asked == []


def test_a_limit_takes_the_first_rows(tmp_path):
    path, out = rollouts(tmp_path, *range(9)), tmp_path / "out"
    for limit, asked in ((4, 4), (None, 5), (2, 0)):
        judge = CountingJudge()
        assert audit(path, out, judge=judge, metrics=JUDGED, limit=limit).n == (limit or 9)
        assert len({pair.question for pair in judge.asked}) == asked
    assert len(scored(out)) == 9  # what lies beyond a limit is not thrown away
    judge = CountingJudge()
    assert audit(rollouts(tmp_path, 20, 4, 3, 2), out, judge=judge, metrics=JUDGED).n == 4
    assert {pair.question for pair in judge.asked} == {"Where is lighthouse 20?"}
    assert [(line["row"], line["id"]) for line in scored(out)] == [
        (1, "20"),
        (2, "4"),
        (3, "3"),
        (4, "2"),
    ]


def test_half_a_last_line_and_a_damaged_one_are_scored_again(tmp_path):
    path, out = rollouts(tmp_path, *range(6)), tmp_path / "out"
    whole, scores = audit(path, out), out / "scores.jsonl"
    good = scores.read_bytes()
    parts = good.splitlines(keepends=True)
    for broken in (
        good.removesuffix(b"\n"),
        b"".join([*parts[:2], b"garbage\n", *parts[3:5], parts[5][:50]]),
    ):
        scores.write_bytes(broken)
        assert audit(path, out) == whole
        assert scores.read_bytes() == good


PAID = """
import sys
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.measure.audit import audit

if __name__ == "__main__":
    audit(sys.argv[1], sys.argv[2], judge=EndpointJudge("stub", url=sys.argv[3], cache=None, concurrency=2),
          metrics=["info_think_faithfulness"])
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_after_an_interruption_only_the_rest_is_asked(tmp_path, how):
    sent = []

    def interrupting(messages):
        if server.calls >= 90 and not sent:
            sent.append(how)
            running.send_signal(how)
        return label_by_word(messages)

    path, out = rollouts(tmp_path, *range(200)), tmp_path / "out"
    with StubServer(latency=0.02, label=interrupting) as server:
        running = subprocess.Popen(
            [sys.executable, "-c", PAID, path, out, server.url], stderr=subprocess.PIPE
        )
        said = running.communicate(timeout=60)[1]
        assert how == signal.SIGKILL or re.search(rb"64 lines are in .*, run the same again", said)
        assert server.calls < 200
        assert [line.row for line in read_scores(out / "scores.jsonl")] == list(range(1, 65))
        audit(path, out, judge=judge_at(server, concurrency=2), **INFO_THINK)
        # also the answers of rows that were not yet written are kept; when it was killed two were
        # under way
        assert 0 <= server.calls - 200 <= (2 if how == signal.SIGKILL else 0)
    assert [line["row"] for line in scored(out)] == list(range(1, 201))
    assert not (out / "answers.sqlite").exists()


# what is refused


def test_different_settings_are_refused_by_name(tmp_path):
    path, out = rollouts(tmp_path, *range(3)), tmp_path / "out"
    audit(path, out)
    before = (out / "scores.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"how: 'unicode' there, 'pokee' now.*--overwrite"):
        audit(path, out, how="pokee")
    with pytest.raises(ConfigError, match="judge: 'lexical' there, 'counting@1' now"):
        audit(path, out, judge=CountingJudge())
    with pytest.raises(DataError, match="cannot read"):
        audit(tmp_path / "none.jsonl", out, resume=False)
    assert (out / "scores.jsonl").read_bytes() == before
    assert "f1_pokee" in audit(path, out, how="pokee", resume=False).rows
    (out / "audit.json").unlink()
    with pytest.raises(ConfigError, match="has no settings record"):
        audit(path, out, how="pokee")


def rollouts_in(folder: Path, *numbers: int) -> Path:
    folder.mkdir()
    return rollouts(folder, *numbers)


def test_the_audit_of_another_file_of_the_same_name_is_not_replaced(tmp_path):
    out = tmp_path / "out"
    audit(rollouts_in(tmp_path / "before", 0, 1), out, workers=1)
    kept = (out / "scores.jsonl").read_bytes()
    after = rollouts_in(tmp_path / "after", 2, 3)
    with pytest.raises(ConfigError, match=r"the audit of another file.*another folder"):
        audit(after, out, workers=1)
    assert (out / "scores.jsonl").read_bytes() == kept
    assert [line["id"] for line in scored(out)] == ["0", "1"]
    assert audit(after, out, workers=1, resume=False).n == 2


def test_a_file_that_was_written_anew_is_audited_anew(tmp_path):
    out = tmp_path / "out"
    audit(rollouts(tmp_path, 0, 1), out, workers=1)
    audit(rollouts(tmp_path, 2, 3), out, workers=1)
    assert [line["id"] for line in scored(out)] == ["2", "3"]


def test_an_audit_goes_on_after_its_file_was_moved(tmp_path):
    out = tmp_path / "out"
    audit(rollouts_in(tmp_path / "before", 0, 1), out, workers=1)
    moved = rollouts_in(tmp_path / "after", 0, 1, 2)
    assert audit(moved, out, workers=1).n == 3


def test_the_audit_of_another_file_is_not_replaced_where_a_row_is_shared(tmp_path):
    out = tmp_path / "out"
    audit(rollouts_in(tmp_path / "before", 0, 1), out, workers=1)
    after = rollouts_in(tmp_path / "after", 1, 2)
    with pytest.raises(
        ConfigError, match=r"another file: 1 of its 2 rows are not in .*another fol"
    ):
        audit(after, out, workers=1)
    assert [line["id"] for line in scored(out)] == ["0", "1"]


def test_an_audit_goes_on_where_its_rows_stand_behind_the_limit(tmp_path):
    out = tmp_path / "out"
    audit(rollouts_in(tmp_path / "before", 0, 1), out, workers=1)
    longer = rollouts_in(tmp_path / "after", 2, 3, 0, 1)
    assert audit(longer, out, workers=1, limit=2).n == 2


def test_the_place_of_a_file_is_not_shown(tmp_path):
    audit(rollouts(tmp_path, 0), tmp_path / "out", workers=1)
    assert str(tmp_path) not in (tmp_path / "out" / "audit.json").read_text()


def test_bad_settings_fail_before_anything_is_written(tmp_path):
    path, out, taken = rollouts(tmp_path, 0), tmp_path / "out", tmp_path / "taken"
    (taken / "scores.jsonl").mkdir(parents=True)
    for source, folder, settings, message in (
        (tmp_path / "none.jsonl", out, {}, "cannot read"),
        (path, out, {"metrics": ["nonsense"]}, "unknown metric 'nonsense'"),
        (path, out, {"metrics": ["evidence_sensitivity"]}, "name the policy"),
        (path, out, {"workers": 0}, "workers must be at least 1"),
        (path, path / "out", {}, "cannot make the folder"),
        (path, taken, {"resume": False}, "cannot write"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            audit(source, folder, **settings)
    assert not out.exists()
    with pytest.raises(DataError, match=r"none of its rows \(2\) can be read; row 1: no column"):
        audit(file_of(tmp_path / "b.jsonl", [{"a": 1}, {"b": 2}]), out)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('{"foo": "bar"}\n', "; --text_column names the column that holds what the agent wrote"),
        ('[\n  {"text": "x"}\n]\n', "; a file of JSON lines has a row in each line"),
        ("\x00\x01", "; a file of JSON lines has a row in each line"),
    ],
)
def test_a_file_without_a_row_that_can_be_read_says_what_to_do(tmp_path, text, advice):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(advice)):
        audit(path, tmp_path / "out", workers=1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_that_says_what_was_kept(tmp_path):
    log = ScoreLog(tmp_path / "scores.jsonl")
    log.add({1: b'{"row":1,"digest":"a"}\n'})
    log._file.close()
    log._file = open("/dev/full", "wb")  # noqa: SIM115
    with log, pytest.raises(DataError, match=r"No space left.*1 lines are in it"):
        log.add({2: b'{"row":2,"digest":"b"}\n'})
    assert [line.row for line in read_scores(log.path)] == [1]


@pytest.fixture
def small_disk():
    """A limit of 500 bytes for a file, as a disk that is full in the midst of a write."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_whole_lines_of_a_failed_write_are_counted(tmp_path, small_disk):
    lines = {n: b'{"row":%04d,"digest":"abcd"}\n' % n for n in range(1, 101)}  # 29 bytes each
    with ScoreLog(tmp_path / "scores.jsonl") as log:
        small_disk()
        with pytest.raises(DataError, match=f"; {500 // 29} lines are in it, run again to go on"):
            log.add(lines)


# processes, memory, files


def test_two_processes_write_what_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "WORTH_A_POOL", 2)
    path = file_of(tmp_path / "a.jsonl", [rollout(n) if n % 50 else "{broken" for n in range(200)])
    for count in (1, 2):
        assert audit(path, tmp_path / str(count), workers=count).errors == 4
    assert (tmp_path / "1" / "scores.jsonl").read_bytes() == (
        tmp_path / "2" / "scores.jsonl"
    ).read_bytes()


ENDLESS = """
from itertools import count
from faithful_search.measure.workers import in_order

if __name__ == "__main__":
    for found in in_order(abs, count(), 2):
        print(found, flush=True)
"""


def test_the_workers_of_a_process_that_was_killed_end_too(tmp_path):
    (tmp_path / "script.py").write_text(ENDLESS)
    command = [sys.executable, tmp_path / "script.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == b"0\n"
            process.kill()
            process.communicate(timeout=30)  # until nobody holds the pipe
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_script_that_guards_nothing_is_told_what_to_do(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ENDLESS.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    told = [
        line for line in done.stderr.splitlines() if "ConfigError: " in line
    ]  # workers may end later, and say more
    assert done.returncode == 1
    assert '`if __name__ == "__main__":`' in told[-1]


def test_of_a_file_one_row_and_of_a_row_a_few_numbers_are_kept(tmp_path):
    """Neither its question nor its line, so that a million rows fit into memory."""
    count, path, scores = (
        2_000,
        tmp_path / "scores.jsonl",
        {name: {"value": 0.5} for name in ("a", "b", "c", "d")},
    )
    big = file_of(
        tmp_path / "big.jsonl", [{**rollout(number), "note": "x" * 20_000} for number in range(200)]
    )
    tracemalloc.start()
    assert all(row.trajectory for row in read_trajectories(big))
    assert tracemalloc.get_traced_memory()[1] < big.stat().st_size / 2
    tracemalloc.stop()
    tracemalloc.start()
    with ScoreLog(path) as log:
        for row in range(1, count + 1):
            line = {"row": row, "digest": "", "question": f"Where is {row}?" * 20, "scores": scores}
            log.add({row: json.dumps(line).encode() + b"\n"})
        assert tracemalloc.get_traced_memory()[0] < 40 * count
        log.finish(whole=True)
    found = summarize(read_scores(path), {})
    assert tracemalloc.get_traced_memory()[1] < 250 * count
    tracemalloc.stop()
    assert found.n == found.rows["a"].n == count


def test_a_refused_audit_keeps_the_earlier_standard_input(tmp_path, monkeypatch):
    def piped(*numbers, **settings):
        monkeypatch.setattr(
            "sys.stdin", io.TextIOWrapper(io.BytesIO(rollouts(tmp_path, *numbers).read_bytes()))
        )
        return audit("-", tmp_path / "out", workers=1, **settings)

    assert piped(0, 1, 2).n == 3
    kept = tmp_path / "out" / "source.jsonl"
    before = kept.read_bytes()
    with pytest.raises(ConfigError, match="different settings"):
        piped(0, how="pokee")
    with pytest.raises(ConfigError, match="the audit of another file"):
        piped(5)
    with (
        ScoreLog(tmp_path / "out" / "scores.jsonl"),
        pytest.raises(DataError, match="another audit"),
    ):
        piped(0)
    assert kept.read_bytes() == before
    assert piped(0, 1, 2, 3).n == 4
    assert kept.read_bytes() != before


@pytest.mark.parametrize("out", ["", "audit"])
def test_an_audit_within_its_source_is_no_source(tmp_path, out):
    rollouts(tmp_path, *range(3))
    for _ in range(2):
        found = audit(tmp_path, tmp_path / out, workers=1)
        assert (found.n, found.errors) == (3, 0)


@pytest.mark.parametrize(
    ("left_out", "primary"),
    [
        ({"info_think_lexical": 0, "answer_support_lexical": 0}, "info_think_lexical"),
        ({"info_think_lexical": 5, "answer_support_lexical": 0}, "info_think_lexical"),
        ({"info_think_lexical": 6, "answer_support_lexical": 0}, "answer_support_lexical"),
        ({"info_think_lexical": 8, "answer_support_lexical": 7}, "answer_support_lexical"),
        ({"info_think_lexical": 10}, None),
        ({"protocol_format": 0}, None),
    ],
)
def test_what_sorts_rows_says_something_of_most_of_them(left_out, primary):
    rows = {
        name: Estimate(None if count == 10 else 0.5, None, None, 1, None, not_applicable=count)
        for name, count in left_out.items()
    }
    assert Audit(n=10, rows=rows).primary == primary
