"""How every training recipe begins: its folder made sure of, threads and seed set, and what it computes on said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import set_seed

from ..errors import ConfigError
from ..inference.threads import choose_threads
from ..measure.audit.score_log import lock
from . import checkpoints
from .memory import keep_freed_memory
from .precision import precision_line

LOCK = "_run.lock"
"""What begins with `_` is not pushed to the Hub. The file stays: removing it could take it from a run that waits."""


REPORTERS = frozenset(("tensorboard", "trackio", "wandb"))
"""Packages to log to, each an extra of its name; at others Transformers' own error says what to install."""


@dataclass
class StartArguments:
    """The flags of how a run begins."""

    resume: bool = field(default=False, metadata={"help": "go on from the last complete checkpoint in output_dir"})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "begin anew where output_dir holds an earlier run"}
    )
    threads: int = field(
        default=0, metadata={"help": "CPU threads of this process; 0: as many as there are idle cores for it"}
    )


@contextmanager
def started(script: StartArguments, args: Any) -> Iterator[None]:
    """While it lasts the run owns its output directory. Before anything random happens threads and seed are set.

    Args:
        script: the recipe's flags; `threads` becomes the number that was taken, for what is kept of the run.
        args: the trainer's settings.

    Raises:
        ConfigError: for a `--report_to` that is not installed; when the folder cannot be written, or holds a run that
            nobody said to resume or to overwrite.
        DataError: while another run writes it.
    """
    for name in REPORTERS.intersection(args.report_to):
        if find_spec(name) is None:
            raise ConfigError(f"--report_to {name} needs {name}: pip install 'faithful-search[{name}]', or say none")
    with owned(Path(args.output_dir or "."), script.resume, script.overwrite_output_dir):
        script.threads = choose_threads(script.threads)
        if args.device.type == "cpu":
            keep_freed_memory()
        set_seed(args.seed)
        PartialState().print(f"{precision_line(args)}; CPU threads: {script.threads}")
        yield


@contextmanager
def owned(out: Path, resume: bool = True, overwrite: bool = False) -> Iterator[None]:
    """While it lasts nobody else owns the folder; errors as of `started`. Only the main process takes it."""
    if not PartialState().is_main_process:
        yield
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise ConfigError(f"--output_dir {out} cannot be written: {error.strerror}") from error
    with file:
        lock(file, out, "run")
        there = "" if resume or overwrite else _found(out)
        if there:
            raise ConfigError(f"{out} holds {there}; --overwrite_output_dir true begins anew, or name another folder")
        yield


def _found(out: Path) -> str:
    """What an earlier run left that this one would overwrite; empty where there is nothing."""
    policy = any(out.glob("*.safetensors"))  # which says little of the evaluation after training
    kept = "a finished run" if policy else "an evaluation" if (out / "metrics.json").exists() else ""
    try:
        last = checkpoints.last_checkpoint(out).folder.name
        return f"{kept or 'a run that ended before its time'}: --resume true goes on from {last}"
    except ConfigError:
        return kept
