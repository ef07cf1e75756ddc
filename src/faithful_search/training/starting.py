"""How every training recipe starts: its output directory locked, threads and seed set, its precision printed."""

from __future__ import annotations

import ctypes
import sys
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
from ..measure.ledger import lock
from . import checkpoints
from .precision import precision_line

LOCK = "_run.lock"
"""What begins with `_` is not pushed to the Hub. The file stays: another run may be waiting for the lock on it."""
REPORTERS = frozenset(("tensorboard", "trackio", "wandb"))
"""Packages to log to that are extras of the same name."""


def flag(default: Any, help: str, **metadata: Any) -> Any:
    """A field of a recipe's flags; a list is copied for each instance."""
    metadata["help"] = help
    if isinstance(default, list):
        return field(default_factory=lambda: [*default], metadata=metadata)
    return field(default=default, metadata=metadata)


def check_least(flags: Any, **least: float) -> None:
    """Raise `ConfigError` if one of these flags is less than it may be.

    >>> check_least(StartArguments(threads=2), threads=0)
    """
    for name, number in least.items():
        given = getattr(flags, name)
        if given is not None and not given >= number:  # NaN is not
            raise ConfigError(f"--{name} must be {number:g} or more, not {given:g}")


@dataclass
class StartArguments:
    """The flags of how a run begins."""

    resume: bool = flag(False, "go on from the last complete checkpoint in output_dir")
    overwrite_output_dir: bool = flag(False, "begin anew where output_dir holds an earlier run")
    threads: int = flag(0, "CPU threads of this process; 0: as many as there are idle cores for it")


@contextmanager
def started(script: StartArguments, args: Any) -> Iterator[None]:
    """Within the block the run owns its output directory; threads and seed are set before anything random happens.

    `script.threads` becomes the number that was taken, so that it is kept with the run.

    Raises:
        ConfigError: for numbers below 0 and a `--report_to` that is not installed; if the folder cannot be written,
            or holds a run that is neither to be resumed nor overwritten.
        DataError: if another run is writing to it.
    """
    check_least(script, threads=0)
    check_least(args, seed=0, learning_rate=0)
    for name in REPORTERS.intersection(args.report_to):
        if find_spec(name) is None:
            raise ConfigError(f"--report_to {name} needs {name}: pip install 'faithful-search[{name}]', or say none")
    with owned(Path(args.output_dir or "."), script.resume, script.overwrite_output_dir):
        script.threads = choose_threads(script.threads)
        if args.device.type == "cpu":
            # Have glibc keep freed memory: returning large blocks to the system and asking for them again, page by page
            # and zeroed, takes up to half of a training step on a CPU. The price is that the process never shrinks.
            mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None  # musl has none
            if mallopt and mallopt(-4, 0):  # M_MMAP_MAX
                mallopt(-1, 2_000_000_000)  # M_TRIM_THRESHOLD
        set_seed(args.seed)
        PartialState().print(f"{precision_line(args)}; CPU threads: {script.threads}")
        yield


@contextmanager
def owned(out: Path, resume: bool = True, overwrite: bool = False) -> Iterator[None]:
    """Within the block no other run can own the folder; errors as of `started`. Only the main process locks it."""
    if not PartialState().is_main_process:
        yield
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise ConfigError(f"--output_dir {out} cannot be written: {error.strerror}") from error
    with file:  # the lock goes with the open file, so a killed run frees its folder
        lock(file, out, "run")
        if not (resume or overwrite):
            policy = any(out.glob("*.safetensors"))
            there = "a finished run" if policy else "an evaluation" if (out / "metrics.json").exists() else ""
            try:
                last = checkpoints.last_checkpoint(out).folder.name
                there = f"{there or 'a run that ended before its time'}: --resume true goes on from {last}"
            except ConfigError:
                pass  # nothing to resume from
            if there:
                advice = "--overwrite_output_dir true starts anew, or name another folder"
                raise ConfigError(f"{out} holds {there}; {advice}")
        yield
