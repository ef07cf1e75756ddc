"""Runs that are killed: what they say, how soon they end, and that they go on from the last
complete checkpoint.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest
import torch
from checkpoints import SMALL, assert_equal_runs, checkpoint, note
from paths import ROOT, SUPPORT
from served import free_port
from tiny_trainer import trainer

from faithful_search.errors import ConfigError
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.stats import Estimate
from faithful_search.tasks import Task
from faithful_search.training import checkpoints, endings, runs
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.endings import (
    Terminated,
    ending_after,
    heeding_signals,
    leave,
)
from faithful_search.training.run_folder import fault, last_checkpoint
from faithful_search.training.starting import RunArguments, run_recipe
from faithful_search.training.stopping import OrderlyStop
from faithful_search.trajectory import Trajectory


def test_the_newest_complete_checkpoint_is_taken(
    tmp_path,
):
    for step in (2, 10, 9):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-11").write_text("a file")
    assert last_checkpoint(tmp_path).name == "checkpoint-10"
    assert not fault(last_checkpoint(tmp_path))
    folder = checkpoint(tmp_path, 12, noted=False)
    assert (
        fault(folder)
        == "no readable saved_files.json: it was not saved completely, or by an earlier version"
    )
    (folder / "rng_state.pth").unlink()
    note(folder)
    assert fault(folder) == "no optimizer: only the model was saved"


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"files": []}',
        b'{"files": {"model.safetensors": "990"}}',
        b"{",
        b'"\xff"',
    ],
)
def test_sizes_that_cannot_be_read_are_a_fault(tmp_path, content):
    older = checkpoint(tmp_path, 2)
    newer = checkpoint(tmp_path, 4)
    (newer / "saved_files.json").write_bytes(content)
    assert fault(newer).startswith("no readable saved_files.json")
    assert last_checkpoint(tmp_path) == older


NAMES = "model.safetensors optimizer.pt scheduler.pt training_args.bin trainer_state.json rng_state_1.pth"


@pytest.mark.parametrize("name", NAMES.split())
@pytest.mark.parametrize("part", [None, 0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_gives_way_to_an_older_one(tmp_path, name, part):
    older = checkpoint(tmp_path, 2, processes=2)
    path = checkpoint(tmp_path, 4, processes=2) / name
    os.truncate(path, int(path.stat().st_size * part)) if part is not None else path.unlink()
    assert name in fault(path.parent)
    assert last_checkpoint(tmp_path) == older


@pytest.mark.parametrize("shards", [("pytorch_model_fsdp_0", "optimizer_0"), ("global_step4",)])
def test_files_of_fsdp_and_deepspeed_are_checked_too(tmp_path, shards):
    folder = checkpoint(tmp_path, 4, 2)
    for name in shards:
        (folder / name).mkdir()
        (folder / name / "rank_1").write_bytes(b"0123456789")
    note(folder)
    assert not fault(folder)
    os.truncate(folder / shards[-1] / "rank_1", 5)
    assert fault(folder) == f"{shards[-1]}/rank_1 has another size than when it was saved"
    (folder / shards[-1] / "rank_1").unlink()
    assert fault(folder) == f"{shards[-1]}/rank_1 is missing"


class Trained:
    """Of a trainer what `train` needs; makes a checkpoint of step 8."""

    def __init__(self, path):
        self.args = SimpleNamespace(output_dir=str(path), load_best_model_at_end=True)
        self.add_callback = lambda callback: None

    def train(self, resume_from_checkpoint=None):
        self.resumed = resume_from_checkpoint
        checkpoint(Path(self.args.output_dir), 8)


def test_later_folders_are_moved_out_of_the_way_and_named(tmp_path, caplog):
    for step in (2, 4, 6):
        checkpoint(tmp_path, step)
    for step in (2, 6):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").unlink()
    (tmp_path / "_broken-checkpoint-6").mkdir()
    checkpoints.train(made := Trained(tmp_path), resume=True)
    assert made.resumed == str(tmp_path / "checkpoint-4")
    broken = ["_broken-checkpoint-6", "_broken-checkpoint-6-1"]
    assert sorted(os.listdir(tmp_path)) == [*broken, "checkpoint-2", "checkpoint-4", "checkpoint-8"]
    assert "checkpoint-6 (trainer_state.json is missing) cannot be resumed from" in caplog.text
    assert (tmp_path / "_broken-checkpoint-6-1" / "model.safetensors").exists()


def test_a_new_run_sets_the_checkpoints_of_an_earlier_one_aside(tmp_path, caplog):
    checkpoints.train(Trained(tmp_path))
    assert not caplog.text
    for step in (4, 10):
        checkpoint(tmp_path, step)
    checkpoints.train(Trained(tmp_path))
    moved = [f"_earlier-checkpoint-{step}" for step in (4, 8, 10)]
    assert sorted(os.listdir(tmp_path)) == sorted([*moved, "checkpoint-8"])
    assert ", ".join(moved) in caplog.text
    assert (
        last_checkpoint(tmp_path).name == "checkpoint-8"
    )  # this run's own, though the earlier one went further


def test_a_run_that_had_made_its_last_step_is_left_as_it_is(tmp_path, caplog):
    before = signal.getsignal(signal.SIGTERM)
    checkpoints.train(trainer(tmp_path, max_steps=2))
    made = trainer(tmp_path, max_steps=2, enable_jit_checkpoint=True)
    checkpoints.train(made, resume=True)
    assert made.state.global_step == 2
    assert "nothing is left to train" in caplog.text
    assert (
        signal.getsignal(signal.SIGTERM) == before
    )  # what a callback took over when training begins, it gives back


def test_nothing_to_resume_from_says_what_is_there(tmp_path):
    with pytest.raises(
        ConfigError, match="it holds no checkpoint at all; start again without --resume"
    ):
        last_checkpoint(tmp_path)
    os.truncate(checkpoint(tmp_path, 4) / "optimizer.pt", 9)
    with pytest.raises(ConfigError, match=r"it holds checkpoint-4 \(optimizer.pt has another size"):
        checkpoints.train(Trained(tmp_path), resume=True)
    assert os.listdir(tmp_path) == ["checkpoint-4"]


ROWS, VALUES = {"f1": Estimate(0.5, 0.1, 0.9, 2, 0.2)}, {"f1": [0.0, 1.0]}
EVALUATION = Evaluation(rows=ROWS, questions=["a", "b"], values=VALUES, tool_calls={"s": [1, 2]})


@pytest.mark.parametrize(
    "text", [None, "", "{", "[1]", '{"rows": {}}', "\x00", json.dumps(EVALUATION.to_dict())]
)
def test_a_missing_or_foreign_evaluation_is_a_warning(tmp_path, text, caplog):
    path = tmp_path / runs.BEFORE
    if text is not None:
        path.write_text(text)
    assert runs.read_before(path, []) is None
    assert not caplog.text
    assert runs.read_before(path, [Task("a", "?", ("x",))]) is None
    said = (
        "other questions"
        if "f1" in (text or "")
        else "no evaluation of before training to compare with"
    )
    assert said in caplog.text


def test_a_run_is_evaluated_before_training_once(tmp_path, monkeypatch):
    asked, trainer = [], SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path)))

    def beginning(found, resume=False):
        monkeypatch.setattr(runs, "evaluate", lambda *given: asked.append(given) or found)
        return runs.BeforeTraining(trainer, RunArguments(eval_limit=2, resume=resume), {})

    def begin(run, step):
        run.on_train_begin(
            None, SimpleNamespace(global_step=step, is_world_process_zero=True), None
        )

    tasks = runs.load_tasks("world", "validation", 2)
    rollouts = [
        Trajectory(answer="Rome", stop_reason="answered"),
        Trajectory(stop_reason="turn_limit"),
    ]
    first = msgspec.structs.replace(
        EVALUATION, questions=[task.id for task in tasks], trajectories=rollouts
    )
    begun = beginning(first)
    begin(begun, 0)
    assert begun.evaluation == first
    assert len(asked) == 1
    resumed = beginning(None, resume=True)
    # also where nothing is left to train, so that training never begins; with its rollouts, which
    # are counted by errors
    assert resumed.evaluation == first
    begin(resumed, 7)
    assert resumed.evaluation == first
    assert len(asked) == 1
    without = beginning(None)
    begin(without, 0)
    assert without.evaluation is None
    assert not list(tmp_path.iterdir())


LOST = "error: process 0 of 2: lost contact with another process: "
GLOO = RuntimeError("[/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:8")


@pytest.mark.parametrize(
    ("error", "many", "code", "line"),
    [
        (ConfigError("these settings"), 1, 1, "error: these settings"),
        (KeyboardInterrupt(), 1, 130, "error: interrupted; a run that has saved"),
        (KeyboardInterrupt("interrupted; 3 lines"), 1, 130, "error: interrupted; 3 lines"),
        (Terminated(), 1, 143, "error: told to end (SIGTERM); a run that has saved"),
        (GLOO, 2, 1, f"{LOST}Connection closed by peer [::1]:8; a run that has saved"),
        (
            torch.distributed.DistBackendError("remote process exited"),
            2,
            1,
            f"{LOST}remote process exited; a run",
        ),
        (
            torch.distributed.DistNetworkError("The client socket has timed out"),
            2,
            1,
            f"{LOST}The client socket",
        ),
        (
            RuntimeError("Application timeout caused pair closure"),
            2,
            1,
            f"{LOST}Application timeout",
        ),
        (GLOO, 1, None, ""),
        (RuntimeError("CUDA out of memory"), 2, None, ""),
        (RuntimeError("the search at http://127.0.0.1:9 timed out"), 2, None, ""),
        (ValueError("gloo"), 2, None, ""),
        (TypeError("your reward"), 1, None, ""),
    ],
)
def test_an_ending_is_a_line_and_an_exit_code(error, many, code, line, monkeypatch, capsys):
    monkeypatch.setattr(endings, "_processes", lambda: (0, many))
    monkeypatch.setattr(endings.faulthandler, "dump_traceback_later", lambda *given, **named: None)
    with pytest.raises(SystemExit if code else type(error)) as left:
        leave(error)
    assert left.value.code == code if code else left.value is error
    [*_, said] = capsys.readouterr().err.splitlines() or [""]
    assert said.startswith(line)
    assert bool(said) == bool(line)


def forked(work: Callable[[], object], said: int) -> Any:
    """A process that does this and writes its errors to `said`; it has the imports of this one."""

    def run() -> None:
        sys.stderr = os.fdopen(os.dup(said), "w", buffering=1)
        work()

    process = get_context("fork").Process(target=run)
    process.start()
    return process


def test_what_nothing_else_interrupts_ends_the_program_in_a_line(monkeypatch):
    def work() -> None:
        with ending_after(60, "no"):
            pass
        with ending_after(0.2, "the server hangs"):
            signal.pause()

    monkeypatch.setattr(endings, "_processes", lambda: (1, 2))
    ours, theirs = os.pipe()
    process = forked(work, theirs)
    process.join(50)
    assert process.exitcode == 1
    assert os.read(ours, 999) == b"\nerror: process 1 of 2: the server hangs\n"


def test_a_worker_ends_with_its_launcher(monkeypatch):
    """The launcher alone is killed; the worker, which holds the same pipe, says so and closes
    it.
    """

    def work() -> None:
        print("working", file=sys.stderr)
        signal.pause()

    def launch() -> None:
        forked(lambda: run_recipe(work), theirs)
        signal.pause()

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    ours, theirs = os.pipe()
    launcher = forked(launch, theirs)
    os.close(theirs)
    with os.fdopen(ours) as said:
        assert said.readline() == "working\n"
        launcher.kill()
        rest = said.read()  # until the worker is gone, too
    assert "the launcher" in rest
    assert "told to end (SIGTERM)" in rest
    assert "--resume" in rest
    assert "Traceback" not in rest


def test_sigterm_tidies_up_once_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), heeding_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_checkpoint_lies_between_two_batches_of_rollouts(tmp_path):
    args = SearchGRPOConfig(
        str(tmp_path), steps_per_generation=2, num_iterations=2, save_steps=4, report_to="none"
    )
    assert [step for step in range(9) if args.between_generations(step)] == [0, 4, 8]
    callback, before = OrderlyStop(on_sigterm=True), signal.getsignal(signal.SIGTERM)
    callback.on_train_begin(args, None, None)
    for told, step, saved in ((False, 4, False), (True, 5, False), (True, 8, True)):
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
        control, state = SimpleNamespace(), SimpleNamespace(global_step=step, max_steps=100)
        callback.on_step_end(args, state, control)
        assert vars(control) == (
            dict.fromkeys(("should_save", "should_training_stop"), True) if saved else {}
        )
    callback.on_train_end(args, None, None)
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(Terminated, match="checkpoint-8 is saved"):
        callback.check(args, state)


TIMEOUT = 20


class Run:
    """A run of the recipe in real processes, each told where to send itself a signal; there is no
    launcher.
    """

    def __init__(
        self, out: Path, processes: int, fault: str = "none", *flags: str, of: int = 0
    ) -> None:
        """`of`: how many there were to be, if not all of them are started."""
        command = [
            sys.executable,
            str(SUPPORT / "survival_run.py"),
            f"--output_dir={out}",
            *SMALL,
            *flags,
        ]
        many, port, self.started, self.logs = str(of or processes), str(free_port()), [], []
        shared = {
            "WORLD_SIZE": many,
            "LOCAL_WORLD_SIZE": many,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in map(str, range(processes)):
            own = {**os.environ, "FAULT": fault, "OMP_NUM_THREADS": "1"}
            own |= {**shared, "RANK": rank, "LOCAL_RANK": rank} if many != "1" else {}
            self.logs.append(out.with_name(f"{out.name}.{rank}.{time.monotonic_ns()}.log"))
            with self.logs[-1].open("w") as said:
                self.started.append(
                    subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT, env=own)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def codes(self, seconds: float = 300) -> list[int]:
        return [process.wait(seconds) for process in self.started]

    def said(self, rank: int) -> list[str]:
        return [line for line in self.logs[rank].read_text().splitlines() if line.strip()]

    def errors(self, rank: int) -> list[str]:
        return [line for line in self.said(rank) if line.startswith("error: ")]

    def wait_for_fault(self, rank: int) -> float:
        end = time.monotonic() + 120
        while not any(line.startswith("fault: ") for line in self.said(rank)):
            assert time.monotonic() < end, self.said(rank)[-20:]
            assert self.started[rank].poll() in (None, -9), self.said(rank)[-20:]
            time.sleep(0.05)
        return time.monotonic()


def finished(out: Path, processes: int, *flags: str) -> list[str]:
    """What the first process of a run that ends well said."""
    with Run(out, processes, "none", *flags) as run:
        assert run.codes() == [0] * processes, run.said(0)
        return run.said(0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs of one and of two processes, made when first asked for."""

    @cache
    def made(processes: int) -> Path:
        out = tmp_path_factory.mktemp("whole") / "run"
        finished(out, processes)
        return out

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        *("rollout:1:3:SIGKILL", "reward:1:1:SIGKILL", "backward:1:1:SIGSTOP"),
        *("checkpoint:0:1:SIGSTOP", "evaluation:1:1:SIGKILL", "scoring:0:1:SIGSTOP"),
    ],
)
def test_whoever_is_left_says_so_in_one_line_within_the_timeout(fault, tmp_path):
    rank = int(fault.split(":")[1])
    with Run(tmp_path / "out", 2, fault, f"--ddp_timeout={TIMEOUT}") as run:
        begun = run.wait_for_fault(rank)
        assert run.started[1 - rank].wait(60) == 1
        assert time.monotonic() - begun < TIMEOUT * 3
        said, [line] = run.said(1 - rank), run.errors(1 - rank)
    assert line.startswith(f"error: process {1 - rank} of 2: lost contact with another process: ")
    assert line.endswith("goes on from it with --resume")
    assert not any("Traceback" in line for line in said)


@pytest.mark.slow
def test_what_one_process_raises_ends_all_of_them(tmp_path):
    with Run(tmp_path / "out", 2, "rollout:1:1:ERROR", f"--ddp_timeout={TIMEOUT}") as run:
        assert run.codes(120) == [1, 1]
        lines = [run.errors(rank) for rank in range(2)]
    assert lines[1] == ["error: process 1 of 2: the server at http://127.0.0.1:9 is down"]
    assert [line.partition(" hangs")[0] for line in lines[0]] == [
        "error: process 0 of 2: another process is gone or"
    ]


@pytest.mark.slow
def test_whoever_comes_alone_waits_no_longer_than_told(tmp_path):
    with Run(tmp_path / "out", 1, "none", "--ddp_timeout=3", of=2) as run:
        assert run.codes(90) == [1]
        [line] = run.errors(0)
    assert line.startswith("error: process 0 of 2: lost contact with another process: ")


@pytest.mark.slow
def test_a_launcher_ends_the_others_and_they_say_where_they_were(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        f"--master_port={free_port()}",
    ]
    command += ["tests/support/survival_run.py", f"--output_dir={tmp_path / 'out'}", *SMALL]
    env = {**os.environ, "FAULT": "rollout:1:1:SIGKILL", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=env, timeout=300
    )
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.match(
        r"error: process 0 of 2: .*(told to end \(SIGTERM\)|another process is gone)", line
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "fault", "left", "moved"),
    [
        (1, "rollout:0:4:SIGKILL", 2, []),
        (
            1,
            "file:0:5:HALF",
            2,
            ["_broken-checkpoint-4"],
        ),  # each checkpoint saves four: arguments, optimizer, …
        (2, "file:0:5:HALF", 2, ["_broken-checkpoint-4"]),
        (1, "evaluation:0:2:SIGKILL", 4, []),
        (2, "evaluation:1:2:SIGKILL", 4, []),
    ],
)
def test_a_killed_run_resumes_as_if_nothing_had_happened(
    processes, fault, left, moved, tmp_path, whole
):
    out, rank = tmp_path / "out", int(fault.split(":")[1])
    with Run(out, processes, fault) as run:
        run.wait_for_fault(rank)
        run.started[rank].wait(300)
    assert last_checkpoint(out).name == f"checkpoint-{left}"
    said = finished(out, processes, "--resume=true")
    assert sorted(path.name for path in out.glob("_broken-*")) == moved
    assert all(any(name in line for line in said) for name in moved)
    assert_equal_runs(out, whole(processes))


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_at_the_steps_end(tmp_path, whole):
    out = tmp_path / "out"
    with Run(out, 2, "rollout:1:3:SIGTERM", "--enable_jit_checkpoint=true") as run:
        assert run.codes() == [143, 143]
        lines = [run.errors(rank) for rank in range(2)]
    for rank, [line] in enumerate(lines):
        assert line.startswith(
            f"error: process {rank} of 2: told to end (SIGTERM): checkpoint-3 is saved"
        ), line
    finished(out, 2, "--resume=true")
    assert_equal_runs(out, whole(2))
