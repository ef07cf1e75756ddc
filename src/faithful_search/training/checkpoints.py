"""Resume a run from the newest checkpoint that was saved completely.

Transformers resumes from the folder with the largest number, whatever it holds, and writes it file
by file. A run that is killed while it saves leaves an incomplete newest folder. `Manifest` notes
the sizes of the files once all are written. By them it is found what is missing, or was damaged
later (a full disk, a broken copy).
"""

import logging
from pathlib import Path
from typing import Any

import msgspec
from accelerate import PartialState
from transformers import TrainerCallback

from .run_folder import FILES, SavedFiles, fault, folders, last_checkpoint

logger = logging.getLogger(__name__)


class Manifest(TrainerCallback):
    """Writes `saved_files.json` into each checkpoint: the sizes of its files in bytes."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # every process writes files of its own
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            files = [path for path in folder.rglob("*") if path.is_file()]
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
            (folder / FILES).write_bytes(msgspec.json.encode(SavedFiles(sizes)))


class _Finished(Exception):
    pass


class _StopAtTheEnd(TrainerCallback):
    """Ends a run that is resumed from its last step: Transformers would make one step more."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            raise _Finished


def train(trainer: Any, resume: bool = False) -> None:
    """Train from the beginning, or resume from the last complete checkpoint in the trainer's
    `output_dir`. Nothing is trained beyond the last step.

    A new run renames the checkpoints of an earlier run to `_earlier-checkpoint-N`. A resumed run
    renames those of later steps to `_broken-checkpoint-N`, since they would count as the newest
    when old ones are deleted. Raises `ConfigError` if there is no checkpoint to resume from.
    """
    output = str(trainer.args.output_dir)
    state = PartialState()
    trainer.add_callback(Manifest)
    if not resume:
        if state.is_main_process:
            _set_all_aside(output)
        trainer.train()
        return
    chosen = last_checkpoint(output)
    checkpoints = folders(output)
    state.wait_for_everyone()  # all processes must have looked before a folder is renamed
    if state.is_main_process:
        for later in checkpoints[checkpoints.index(chosen) + 1 :]:
            why = fault(later)
            logger.warning(
                "%s (%s) cannot be resumed from: it is %s now and can be deleted",
                later.name,
                why,
                set_aside(later, "broken"),
            )
    # With this setting the trainer must go on, since it loads the best model after the last step
    if not trainer.args.load_best_model_at_end:
        # The first callback, so that no other one has begun
        trainer.callback_handler.callbacks.insert(0, _StopAtTheEnd())
    try:
        trainer.train(resume_from_checkpoint=str(chosen))
    except _Finished:
        logger.warning(
            "the run in %s had already made its last step: nothing is left to train", output
        )


def _set_all_aside(output: str) -> None:
    """Rename all checkpoints of an earlier run."""
    moved = [set_aside(path, "earlier") for path in folders(output)]
    if moved:
        logger.warning(
            "%s holds checkpoints of an earlier run, now renamed to %s: rename one back to "
            "--resume from it",
            output,
            ", ".join(moved),
        )


def set_aside(folder: Path, mark: str) -> str:
    """Rename the folder of a checkpoint so that it no longer counts as one, and return the new
    name. It begins with `_`, so that it is not pushed to the Hub.
    """
    name = f"_{mark}-{folder.name}"
    target = folder.with_name(name)
    number = 0
    while target.exists():
        number += 1
        target = folder.with_name(f"{name}-{number}")
    return folder.rename(target).name
