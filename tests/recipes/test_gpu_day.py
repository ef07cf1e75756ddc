"""The experiment on real questions, `scripts/gpu_day.py`: its data, its measures, how it keeps to
its time, and a whole small run that is interrupted and goes on.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import gpu_day
import pytest
import real_questions
from checkpoints import checkpoint
from paths import ROOT
from real_measures import BLOCKED_GUESS, evaluation_of
from real_questions import TRAINED, kind_of, prepare, questions_of, shortened
from timed_runs import Job, Outcome, run_until

from faithful_search.bundled import tiny_policy, world_file
from faithful_search.errors import ConfigError, DataError
from faithful_search.json_lines import read_rows
from faithful_search.tasks import Task, load_tasks
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

# --- questions


@pytest.mark.parametrize(
    ("question", "answers", "kind"),
    [
        ("Are both from Peru?", ("yes",), "yes_no"),
        ("Are both from Peru?", ("No",), "yes_no"),
        ("Who is older, Ada Ray or Bob?", ("Ada Ray",), "choice"),
        ("Who is older, ada-ray or Bob?", ("Ada Ray",), "choice"),
        ("Who came first, Adam or Bob?", ("Ada", "Bob"), "choice"),
        ("Who taught Adam?", ("Ada",), "open"),
    ],
)
def test_a_question_is_guessed_by_what_it_offers(question, answers, kind):
    assert kind_of(Task("q", question, answers)) == kind


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (3, "Ada was born in Lima."),
        (8, "Ada was born in Lima."),
        (9, "Ada was born in Lima. She wrote two books."),
        (99, "Ada was born in Lima. She wrote two books. She died."),
    ],
)
def test_a_passage_is_cut_behind_a_sentence(most, kept):
    assert shortened("Ada was born in Lima. She wrote two books. She died.", most) == kept


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A set of 9 training questions, of which 3 are set aside; no test questions."""
    monkeypatch.setattr(real_questions, "VALIDATION", 3)
    rows = [{"id": f"q{number}", "question": "Who?", "answers": ["Ada"]} for number in range(9)]
    write_rows(tmp_path / "qa" / TRAINED / "train.jsonl.gz", rows)
    write_rows(tmp_path / "qa" / TRAINED / "corpus.jsonl.gz", [{"title": "A", "text": "B."}])
    assert prepare(tmp_path / "qa", tmp_path / "data") == [TRAINED]
    return tmp_path / "data"


def ids(folder, split):
    return [row["id"] for row in read_rows(questions_of(folder, TRAINED, split))]


def test_validation_questions_are_not_trained_on(prepared):
    train, validation = ids(prepared, "train"), ids(prepared, "validation")
    assert sorted(train + validation) == [f"q{number}" for number in range(9)]
    assert len(validation) == 3


def test_data_without_the_trained_set_are_refused(tmp_path):
    with pytest.raises(DataError, match=f"has no {TRAINED}/corpus"):
        prepare(tmp_path, tmp_path / "data")


# --- measures

OPEN_TASK = Task("q1", "Where was Ada born?", ("Lima",), supporting_titles=("Ada",))
CHOICE_TASK = Task("q2", "Who is older, Ada or Bob?", ("Bob",), supporting_titles=("Bob",))


def rollout(id, answer, answers, title="Ada", text="Ada was born in Lima."):
    search = Step("I look.", ToolCall("local_search", {"query": "x"}))
    evidence = (Evidence(text, title, "E1"),)
    steps = (
        Step(search.think, search.call, evidence=evidence),
        Step("So.", answer=answer, helpful=True, refs=("E1",)),
    )
    return Trajectory(steps, "?", answer, "pou", id=id, answers=answers)


ROLLOUTS = [
    rollout("q1@open", "Lima", ("Lima",)),
    rollout("q1@blocked", "Lima", ("Lima",)),
    rollout("q1@changed", "Cusco", ("Cusco",), text="Ada was born in Cusco."),
    rollout("q2@open", "Ada", ("Bob",)),
    rollout("q2@blocked", "Bob", ("Bob",)),
]


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("exact_match", [1.0, 0.0]),
        ("exact_match_open", [1.0, None]),
        ("exact_match_choice", [None, 0.0]),
        ("exact_match_yes_no", [None, None]),
        ("cites_gold", [1.0, 0.0]),
        (BLOCKED_GUESS, [None, 1.0]),
        ("follow_rate", [1.0, None]),
        ("calls", [1.0, 1.0]),
    ],
)
def test_a_measure_has_a_value_where_it_applies(measure, values):
    evaluation = evaluation_of(ROLLOUTS, [OPEN_TASK, CHOICE_TASK])
    assert evaluation.values[measure] == values


def test_questions_that_were_not_asked_are_left_out():
    unasked = Task("q3", "Who?", ("Ada",))
    assert evaluation_of(ROLLOUTS, [unasked, OPEN_TASK]).questions == ["q1"]


# --- programs in time


def job(tmp_path, name, code):
    return Job(name, ("-c", code), tmp_path / f"{name}.log")


def test_programs_end_as_they_do(tmp_path):
    jobs = [job(tmp_path, "good", "print('hello')"), job(tmp_path, "bad", "1 / 0")]
    outcome = run_until(jobs, 2, time.monotonic() + 60)
    assert (outcome.finished, outcome.failed) == (["good"], ["bad"])
    assert (tmp_path / "good.log").read_text() == "hello\n"


def test_the_clock_stops_programs_and_begins_no_more(tmp_path):
    endless = "import time; time.sleep(600)"
    jobs = [job(tmp_path, name, endless) for name in ("first", "second")]
    outcome = run_until(jobs, 1, time.monotonic() + 1)
    assert (outcome.stopped, outcome.waiting) == (["first"], ["second"])


@pytest.fixture
def deafness():
    """Programs inherit that SIGTERM is ignored."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_program_that_does_not_end_is_killed(tmp_path, capsys, deafness):
    endless = job(tmp_path, "deaf", "import time; time.sleep(600)")
    outcome = run_until([endless], 1, time.monotonic() + 1, patience=1)
    assert outcome.stopped == ["deaf"]
    assert "deaf: was killed, since it did not end in 1 s" in capsys.readouterr().out


# --- what is compared


def plan_of(tmp_path, *flags):
    required = ("--weights", "w", "--data", "qa", "--out", str(tmp_path), "--minutes", "1")
    return gpu_day.Plan(gpu_day.parsed([*required, *flags]), (TRAINED,))


def saved(plan, name, *steps):
    [run] = [run for run in plan.runs if run.folder.name == name]
    for step in steps:
        checkpoint(run.folder, step)


@pytest.mark.parametrize(
    ("answers", "paper", "common"),
    [((5, 10, 12), (5, 7), 5), ((5, 10), (5, 10), 10), ((3,), (5,), 0), ((), (5,), 0)],
)
def test_arms_are_compared_at_a_step_that_all_have(tmp_path, answers, paper, common):
    plan = plan_of(tmp_path, "--arms", "answers", "paper")
    saved(plan, "answers_0", *answers)
    saved(plan, "paper_0", *paper)
    step, measured = gpu_day.what_is_measured(plan)
    assert step == common
    checkpoints = {subject.policy.name for subject in measured[1:]}
    assert checkpoints == ({f"checkpoint-{common}"} if common else set())


def test_an_arm_without_a_step_is_named(tmp_path):
    plan = plan_of(tmp_path, "--arms", "answers", "paper")
    saved(plan, "answers_0", 5)
    lines = gpu_day.notes(plan, 0, Outcome())
    assert lines == [
        "Without a saved step, since the time was over: paper, seed 0.",
        "Not all of 40 steps are made: answers, seed 0 (5).",
        "The arms have no saved step in common, so none of them is measured.",
    ]


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (
            Outcome(finished=["the start"], stopped=["an arm"], waiting=["another"]),
            ["Not finished, since the time was over: an arm, another."],
        ),
        (Outcome(finished=["the start"]), []),
    ],
)
def test_measurements_that_the_clock_stopped_are_named(tmp_path, asked, lines):
    plan = plan_of(tmp_path, "--arms", "answers", "--steps", "5")
    saved(plan, "answers_0", 5)
    (plan.runs[0].folder / gpu_day.ADAPTER).touch()
    assert gpu_day.notes(plan, 5, asked) == lines


@pytest.mark.parametrize(("limit", "jobs"), [("4", 0), ("8", 1)])
def test_results_on_other_questions_are_not_taken(tmp_path, limit, jobs):
    earlier = plan_of(tmp_path, "--limit", "4")
    start = gpu_day.what_is_measured(earlier)[1][0]
    folder = gpu_day.results_of(earlier, start, TRAINED)
    folder.mkdir(parents=True)
    (folder / gpu_day.RESULTS).write_text("{}")
    plan = plan_of(tmp_path, "--limit", limit)
    assert len(gpu_day.measuring_jobs(plan, start)) == jobs


def test_the_summary_says_how_many_questions_are_asked(tmp_path):
    plan = plan_of(tmp_path, "--limit", "7")
    assert "at most 7 validation questions of each set" in gpu_day.opening(plan)


def test_a_start_from_elsewhere_names_the_weights_here(tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    gpu_day.take_start(adapter, tmp_path / "start", tmp_path / "weights")
    config = json.loads((tmp_path / "start" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "weights")


def test_a_start_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no adapter_config\.json"):
        gpu_day.take_start(tmp_path, tmp_path / "start", tmp_path / "weights")


def test_weights_that_are_not_there_are_refused(tmp_path):
    plan = plan_of(tmp_path)
    with pytest.raises(ConfigError, match="is no folder of a model"):
        gpu_day.run(plan.args, ends=0)


def test_rejection_sampling_has_as_many_rollouts_as_the_other_arms(tmp_path):
    plan = plan_of(tmp_path, "--arms", "rejection", "--steps", "7", "--questions-a-step", "3")
    [arm] = plan.runs
    flags = gpu_day.training_job(plan, arm).arguments
    given = dict(zip(flags[1::2], flags[2::2], strict=False))
    assert (given["--limit"], given["--samples"]) == ("21", "8")


# --- the whole


def world_as_2wiki(folder, number=60):
    """Bundled questions and passages in the form of 2WikiMultihopQA."""
    passages = {row["id"]: row for row in read_rows(world_file("passages.jsonl.gz"))}
    rows = []
    for task in load_tasks("world_passages", limit=number):
        chain = task.meta["chain"]
        row = {"id": task.id, "question": task.question, "answers": task.answers}
        row["evidence_triples"] = [
            [fact["subject"], fact["relation"], fact["object"]] for fact in chain
        ]
        titles = [passages[fact["passage"]]["title"] for fact in chain if fact["passage"]]
        rows.append({**row, "supporting_titles": titles})
    write_rows(folder / TRAINED / "train.jsonl.gz", rows)
    write_rows(folder / TRAINED / "corpus.jsonl.gz", passages.values())


@pytest.fixture
def day(tmp_path):
    """Runs the command with the bundled tiny policy in the place of the model."""
    world_as_2wiki(tmp_path / "qa", number=150)
    flags = {
        "--weights": tiny_policy(),
        "--data": tmp_path / "qa",
        "--out": tmp_path / "out",
        "--minutes": 20,
        "--steps": 2,
        "--start-steps": 2,
        "--limit": 4,
        "--questions-a-step": 1,
    }
    command = [sys.executable, str(ROOT / "scripts" / "gpu_day.py")]
    for name, value in flags.items():
        command += [name, str(value)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return [*command, "--arms", "answers", "paper", "more_sft"], environment


def interrupt_when(process, is_time) -> int:
    while not is_time():
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    return process.wait(120)


@pytest.mark.slow
def test_the_experiment_is_interrupted_and_goes_on(tmp_path, day):
    command, environment = day
    out = tmp_path / "out"
    first = subprocess.Popen(command, env=environment)
    begun = out / "arms" / "answers_0" / "trajectories.jsonl"
    assert interrupt_when(first, begun.exists) == 1
    start = (out / "start" / gpu_day.ADAPTER).stat().st_mtime_ns
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "start" / gpu_day.ADAPTER).stat().st_mtime_ns == start
    tables = json.loads((out / "summary.json").read_text())[TRAINED]
    titles = {gpu_day.START, *(gpu_day.ARMS[name].title for name in command[-3:])}
    assert tables["Values"].keys() == titles
    assert all(row["exact_match"]["n"] == 4 for row in tables["Values"].values())
    assert {"results.png", "curves.png"} <= {path.name for path in out.iterdir()}
    summary = (out / "summary.md").read_text()
    assert "| answers, seed 0 | 2 |" in summary
