"""Programs run side by side until a given time. Those that are still running then are told to end
by SIGTERM, after which they save what they have.
"""

import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL = 0.2  # seconds
PATIENCE = 60.0
"""Seconds that a program gets to save what it has, unless the caller names others."""
TOLD_TO_END = -signal.SIGTERM, 128 + signal.SIGTERM


@dataclass(frozen=True)
class Job:
    """A Python program: its name for messages, its arguments, and the file of its output, which a
    later run goes on with.
    """

    name: str
    arguments: tuple[str, ...]
    log: Path


@dataclass
class Outcome:
    """The names of jobs by how they ended: `finished`, `stopped` by the clock, or `failed`; and
    those that the clock left `waiting`.
    """

    finished: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does, so that programs that
    were started are ended, too.
    """

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_until(
    jobs: Sequence[Job], workers: int, until: float, patience: float = PATIENCE
) -> Outcome:
    """Run the jobs, `workers` at a time, and say how each ended.

    Args:
        jobs: in the order in which they are begun.
        workers: how many run at once.
        until: when those that are left are told to end, by `time.monotonic()`. None is begun later.
        patience: seconds that they get to do so before they are killed.

    When it is interrupted, all that run are told to end first.
    """
    outcome = Outcome()
    waiting = deque(jobs)
    running: dict[subprocess.Popen[bytes], Job] = {}
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                running[_begun(job)] = job
            _sort_ended(running, outcome)
            time.sleep(POLL)
    finally:
        _end(running, outcome, patience)
    outcome.waiting = [job.name for job in waiting]
    return outcome


def _begun(job: Job) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{job.name}: begins; its output is in {job.log}", flush=True)
    with job.log.open("ab") as log:
        # A group of its own: Ctrl-C reaches only us, and we end it in good order
        return subprocess.Popen(
            [sys.executable, *job.arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _sort_ended(running: "dict[subprocess.Popen[bytes], Job]", outcome: Outcome) -> None:
    """Take the programs that have ended out of `running`."""
    for process in list(running):
        code = process.poll()
        if code is None:
            continue
        job = running.pop(process)
        if code == 0:
            outcome.finished.append(job.name)
        elif code in TOLD_TO_END:
            outcome.stopped.append(job.name)
        else:
            outcome.failed.append(job.name)
            print(f"{job.name}: failed with exit code {code}; see {job.log}", flush=True)


def _end(running: "dict[subprocess.Popen[bytes], Job]", outcome: Outcome, patience: float) -> None:
    """Tell all programs to end, and kill those that do not in time."""
    for process in running:
        process.terminate()
    until = time.monotonic() + patience
    while running and time.monotonic() < until:
        _sort_ended(running, outcome)
        time.sleep(POLL)
    for process, job in running.items():
        process.kill()
        process.wait()
        outcome.stopped.append(job.name)
        print(f"{job.name}: was killed, since it did not end in {patience:.0f} s", flush=True)
    running.clear()
