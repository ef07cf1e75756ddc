"""Which checkpoint a run resumes from: the newest that was saved completely.

Transformers resumes from the folder with the largest number, whatever is in it, and writes it in place, file by file.
So a run that is killed while it saves leaves an incomplete newest folder. `Manifest` notes each file's size once all
are there: what is missing, or was damaged later (a full disk, a broken copy), is found by it.
"""

import itertools
import json
import logging
import re
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from ..errors import ConfigError

FILES = "saved_files.json"
logger = logging.getLogger(__name__)


class Manifest(TrainerCallback):
    """Writes `saved_files.json` into each checkpoint: each file's size in bytes."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # each process writes files of its own
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            there = [path for path in folder.rglob("*") if path.is_file()]
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in there}
            (folder / FILES).write_text(json.dumps({"files": sizes}), encoding="utf-8")


class _Finished(Exception):
    pass


class _StopAtTheEnd(TrainerCallback):
    # Transformers makes one step more when it resumes from the last one.
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            raise _Finished


def train(trainer: Any, resume: bool = False) -> None:
    """Train from the beginning, or from the last complete checkpoint in the trainer's `output_dir` (`ConfigError`:
    there is none).

    A new run renames the checkpoints of an earlier one to `_earlier-checkpoint-N`; a resumed run those of later steps
    to `_broken-checkpoint-N`, which would count as the newest when old ones are deleted. Nothing is trained beyond the
    last step.
    """
    output, state = str(trainer.args.output_dir), PartialState()
    trainer.add_callback(Manifest)
    if not resume:
        moved = (
            [set_aside(path, "earlier") for path in folders(output)]
            if state.is_main_process
            else []
        )
        if moved:
            told = "%s holds checkpoints of an earlier run, now renamed to %s: rename one back to --resume from it"
            logger.warning(told, output, ", ".join(moved))
        trainer.train()
        return
    chosen, every = last_checkpoint(output), folders(output)
    state.wait_for_everyone()  # every process has looked before the first folder is moved
    if state.is_main_process:
        for later in every[every.index(chosen) + 1 :]:
            told, aside = f"{later.name} ({fault(later)})", set_aside(later, "broken")
            logger.warning(
                "%s cannot be resumed from: it is %s now and can be deleted", told, aside
            )
    if not trainer.args.load_best_model_at_end:  # the best model is loaded after the last step
        trainer.callback_handler.callbacks.insert(
            0, _StopAtTheEnd()
        )  # before any that has to be ended
    try:
        trainer.train(resume_from_checkpoint=str(chosen))
    except _Finished:
        logger.warning(
            "the run in %s had already made its last step: nothing is left to train", output
        )


def last_checkpoint(output_dir: str | Path) -> Path:
    """The newest complete checkpoint; a `ConfigError` that says what was found if there is none."""
    found = {folder: fault(folder) for folder in folders(output_dir)}
    usable = [folder for folder, wrong in found.items() if not wrong]
    if usable:
        return usable[-1]
    there = (
        "; ".join(f"{folder.name} ({wrong})" for folder, wrong in found.items())
        or "no checkpoint at all"
    )
    told = f"nothing in {output_dir} can be resumed from, it holds {there}"
    raise ConfigError(f"--resume: {told}; start again without --resume")


def folders(output_dir: str | Path) -> list[Path]:
    numbered = [
        (re.fullmatch(r"checkpoint-(\d+)", path.name), path)
        for path in Path(output_dir).glob("checkpoint-*")
    ]
    found = {int(number[1]): path for number, path in numbered if number and path.is_dir()}
    return [found[step] for step in sorted(found)]


def set_aside(folder: Path, mark: str) -> str:
    """Rename a checkpoint's folder so that it no longer counts as one; `_` at the beginning keeps it off the Hub."""
    names = (
        f"_{mark}-{folder.name}" + (f"-{number}" if number else "") for number in itertools.count()
    )
    return folder.rename(
        next(path for path in map(folder.with_name, names) if not path.exists())
    ).name


def fault(folder: Path) -> str:
    """Why a run cannot resume from a checkpoint; empty if it can."""
    try:
        sizes = json.loads((folder / FILES).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError):
        return f"no readable {FILES}: it was not saved completely, or by an earlier version"
    for name, size in sizes.items():
        file = folder / name
        if not file.exists() or file.stat().st_size != size:
            return (
                f"{name} is missing"
                if not file.exists()
                else f"{name} has another size than when it was saved"
            )
    if not any(folder.glob("rng_state*")):
        # written behind the optimizer, of which Transformers would begin a new one and say nothing
        return "no optimizer: only the model was saved"
    return ""
