"""Which checkpoint a run resumes from: the newest that was saved completely.

Transformers resumes from the folder with the largest number, whatever is in it. It writes `checkpoint-N` in place, file
by file, `trainer_state.json` last, and only then deletes older ones; so a run that is killed while it saves leaves an
incomplete newest folder and, whatever `save_total_limit` is, the one before. Files that are damaged later (a full disk,
a broken copy) are found by their sizes, which `Manifest` notes.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from ..errors import ConfigError

STATE, FILES = "trainer_state.json", "saved_files.json"
OPTIMIZERS = {"optimizer.pt", "optimizer.bin", "optimizer_0", "latest"}
"""A single GPU's, FSDP's whole and sharded, and the file with which DeepSpeed names the folder of its own."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, inspected.

    `fault` says why it cannot be resumed from. Where only the random states of some processes (`unseeded`) are missing,
    a run can resume, but will not get the same numbers.
    """

    folder: Path
    step: int
    fault: str = ""
    processes: int = 1
    unseeded: tuple[int, ...] = ()

    @property
    def why(self) -> str:
        """What is wrong with it; empty if it is complete."""
        missing = ", ".join(map(str, self.unseeded))
        return self.fault or (f"the random state of process {missing} is missing" if missing else "")

    def __str__(self) -> str:
        return f"{self.folder.name} ({self.why})" if self.why else self.folder.name


class Manifest(TrainerCallback):
    """Writes `saved_files.json` into each checkpoint: the number of processes, and each file's size in bytes."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # each process writes files of its own
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            there = [path for path in folder.rglob("*") if path.is_file() and path.name != FILES]
            files = {str(path.relative_to(folder)): path.stat().st_size for path in there}
            text = json.dumps({"processes": PartialState().num_processes, "files": files})
            (folder / FILES).write_text(text, encoding="utf-8")


class _Finished(Exception):
    """The checkpoint to resume from is the run's last step."""


class _StopAtTheEnd(TrainerCallback):
    # Transformers makes one step more when it resumes from the last one.
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            raise _Finished


def train(trainer: Any, resume: bool = False) -> None:
    """Train from the beginning, or from the last complete checkpoint in the trainer's `output_dir`.

    A new run renames the checkpoints of an earlier one to `_earlier-checkpoint-N`, so that nobody resumes from them by
    mistake. A resumed run renames folders of later steps to `_broken-checkpoint-N`: they would be in the way of what it
    saves, and count as the newest when old checkpoints are deleted. A checkpoint of the last step is loaded, and
    nothing is trained beyond it.

    Raises:
        ConfigError: if it is to resume and there is nothing to resume from.
    """
    output = str(trainer.args.output_dir)
    trainer.add_callback(Manifest)
    if not resume:
        moved = [set_aside(path, "earlier") for path in folders(output)] if PartialState().is_main_process else []
        if moved:
            logger.warning(
                "%s holds checkpoints of an earlier run, now renamed to %s: rename one back to resume from it with "
                "--resume true, delete what is not needed",
                *(output, ", ".join(sorted(path.name for path in moved))),
            )
        trainer.train()
        return
    if not trainer.args.load_best_model_at_end:  # the best model is loaded after the last step
        trainer.callback_handler.callbacks.insert(0, _StopAtTheEnd())  # before any that has to be ended
    found: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            found[0] = str(choose(output).folder)
        except ConfigError as error:
            found[1] = str(error)
    broadcast_object_list(found)  # one process looks, so that all resume from the same folder or all fail
    if found[1] is not None:
        raise ConfigError(found[1])
    try:
        trainer.train(resume_from_checkpoint=found[0])
    except _Finished:
        logger.warning("the run in %s had already made its last step: nothing is left to train", output)


def last_checkpoint(output_dir: str | os.PathLike[str]) -> Checkpoint:
    """The newest complete checkpoint; if none is complete, the newest that only lacks random states.

    Raises:
        ConfigError: if there is neither, saying what was found.
    """
    found = sorted(map(inspect, folders(output_dir)), key=lambda item: -item.step)
    # An older checkpoint that gives the same numbers is better than a newer one that does not.
    usable = [item for item in found if not item.why] or [item for item in found if not item.fault]
    if not usable:
        there = "; ".join(map(str, found)) or "no checkpoint at all"
        raise ConfigError(
            f"--resume: nothing in {output_dir} can be resumed from, it holds {there}; start again without --resume"
        )
    return usable[0]


def choose(output_dir: str | os.PathLike[str]) -> Checkpoint:
    """The last checkpoint, with later folders moved out of its way and warnings logged."""
    chosen = last_checkpoint(output_dir)
    for later in map(inspect, folders(output_dir)):
        if later.step > chosen.step:
            moved = set_aside(later.folder)
            logger.warning("%s cannot be resumed from: it is %s now and can be deleted", later, moved)
    if chosen.why:
        logger.warning("%s: the run resumes, but will not get the numbers of an uninterrupted one", chosen)
    now = PartialState().num_processes
    if chosen.processes != now:
        logger.warning(
            "%s was saved by %d processes, this run has %d: its batches and random numbers will differ",
            *(chosen, chosen.processes, now),
        )
    return chosen


def folders(output_dir: str | os.PathLike[str]) -> list[Path]:
    """The folders `checkpoint-N` there, in no order."""
    found = Path(output_dir).glob("checkpoint-*")
    return [path for path in found if path.is_dir() and re.fullmatch(r"checkpoint-\d+", path.name)]


def set_aside(folder: Path, mark: str = "broken") -> Path:
    """Rename a checkpoint's folder so that it no longer counts as one; `_` at the beginning keeps it off the Hub."""
    names = (f"_{mark}-{folder.name}" + (f"-{number}" if number else "") for number in itertools.count())
    return folder.rename(next(path for path in map(folder.with_name, names) if not path.exists()))


def inspect(folder: Path) -> Checkpoint:
    """Look whether a checkpoint is complete. One without `saved_files.json` is if its trainer's state is there."""
    step, noted = int(folder.name.rpartition("-")[2]), _read(folder / FILES)
    sizes: dict[str, int] = noted.get("files", {})
    there = {name: (folder / name).stat().st_size if (folder / name).exists() else None for name in sizes}
    random = [int(path.stem.rpartition("_")[2]) for path in folder.glob("rng_state_*.pth")]
    processes = int(noted.get("processes") or max(random, default=0) + 1)
    names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{number}.pth" for number in range(processes)]
    # Without random states a run can resume: they are counted apart from other files.
    unseeded = tuple(
        number
        for number, path in enumerate(folder / name for name in names)
        if not path.exists() or path.stat().st_size < sizes.get(path.name, 1)
    )
    changed = [name for name in sizes if there[name] != sizes[name] and not name.startswith("rng_state")]
    state, fault = _read(folder / STATE), ""
    if not (folder / STATE).exists():
        fault = f"no {STATE}: it was not saved completely"
    elif state.get("global_step") != step:
        fault = f"{STATE} " + (f"is of step {state['global_step']}" if "global_step" in state else "cannot be read")
    elif (folder / "checkpoint-is-incomplete.txt").exists():
        fault = "Transformers marked it as incomplete"
    elif changed:
        lost = there[changed[0]] is None
        fault = f"{changed[0]} " + ("is missing" if lost else "has another size than when it was saved")
    elif not OPTIMIZERS.intersection(os.listdir(folder)):
        # Transformers would begin with a new optimizer, and say nothing.
        fault = "no optimizer: only the model was saved"
    return Checkpoint(folder, step, fault, processes, unseeded)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # `inspect` tells a file that is not there from one that cannot be read
        return {}
    return found if isinstance(found, dict) else {}
