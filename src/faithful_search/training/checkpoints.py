"""Which checkpoint a run goes on from: the newest that was saved to its end.

The trainer writes `checkpoint-N` in place, file by file, and `trainer_state.json` last; then it deletes older ones. A
run that is killed meanwhile leaves a newest folder that cannot be read, and beside it, whatever `save_total_limit` is,
the one before.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint import FileSystemReader
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ..errors import ConfigError

STATE = "trainer_state.json"
TORCH = {".pt", ".pth", ".bin"}
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, looked at.

    Attributes:
        folder: where it is.
        step: the step in its name.
        fault: why nothing can go on from it; empty where something can.
        processes: how many saved it.
        unseeded: those whose random state is missing: a run goes on from it, but not to the same numbers.
    """

    folder: Path
    step: int
    fault: str = ""
    processes: int = 1
    unseeded: tuple[int, ...] = ()

    @property
    def why(self) -> str:
        """What is wrong with it, empty when it is complete."""
        missing = ", ".join(map(str, self.unseeded))
        return self.fault or (f"the random state of process {missing} is missing" if missing else "")

    def __str__(self) -> str:
        return f"{self.folder.name} ({self.why})" if self.why else self.folder.name


class SavedBy(TrainerCallback, ExportableState):
    """Notes in each checkpoint how many processes saved it."""

    def state(self) -> dict[str, Any]:
        """What the checkpoint keeps."""
        return {"args": {}, "attributes": {"processes": PartialState().num_processes}}


class _Finished(Exception):
    """The checkpoint to go on from is the run's end."""


class _NotBeyondTheEnd(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            raise _Finished


def train(trainer: Any, resume: bool = False) -> None:
    """Train from the beginning, or from the last complete checkpoint in the trainer's `output_dir`.

    Who begins renames the checkpoints of an earlier run to `_earlier-checkpoint-N`, so that nobody goes on from them by
    mistake. Who resumes renames what lies there of later steps to `_broken-checkpoint-N`, so that it is neither in the
    way of what the resumed run saves nor taken for the newest when older checkpoints are deleted. A checkpoint of the
    last step is loaded, and nothing is trained beyond it.

    Raises:
        ConfigError: when it shall resume and there is nothing to resume from.
    """
    output = str(trainer.args.output_dir)
    trainer.add_callback(SavedBy)
    if not resume:
        _set_earlier_aside(Path(output))
        trainer.train()
        return
    if not trainer.args.load_best_model_at_end:  # which happens behind the last step
        trainer.add_callback(_NotBeyondTheEnd)
    try:
        trainer.train(resume_from_checkpoint=_agreed(output))
    except _Finished:
        logger.warning("the run in %s had made its last step: nothing is left to train", output)


def last_checkpoint(output_dir: str | os.PathLike[str]) -> Checkpoint:
    """The newest complete checkpoint; where none is complete, the newest that only lacks random states.

    Raises:
        ConfigError: when there is neither, saying what was found.
    """
    found = sorted(map(inspect, folders(output_dir)), key=lambda item: -item.step)
    usable = [item for item in found if not item.why] or [item for item in found if not item.fault]
    if not usable:
        there = "; ".join(map(str, found)) or "no checkpoint at all"
        raise ConfigError(
            f"--resume: nothing in {output_dir} can be resumed from, it holds {there}; start again without --resume"
        )
    return usable[0]


def folders(output_dir: str | os.PathLike[str]) -> list[Path]:
    """The folders `checkpoint-N` there, in no order."""
    return [path for path in Path(output_dir).glob("checkpoint-*") if path.is_dir() and _step(path) is not None]


def inspect(folder: Path) -> Checkpoint:
    """Look whether a checkpoint is whole: its state, weights and optimizer, and each process's random state."""
    state, fault = _state(folder)
    processes = _processes(folder, state)
    fault = fault or next(_faults(folder, processes), "")
    return Checkpoint(folder, _step(folder) or 0, fault, processes, _unseeded(folder, processes))


def set_aside(folder: Path, mark: str = "broken") -> Path:
    """Rename a checkpoint's folder so that nobody takes it for one; what begins with `_` is not pushed to the Hub."""
    for number in range(len(os.listdir(folder.parent)) + 1):
        target = folder.with_name(f"_{mark}-{folder.name}" + (f"-{number}" if number else ""))
        if not target.exists():
            break
    return folder.rename(target)


def _agreed(output_dir: str) -> str:
    """The folder to go on from, chosen by the main process for all."""
    found: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            found[0] = str(_chosen(output_dir).folder)
        except ConfigError as error:
            found[1] = str(error)
    broadcast_object_list(found)
    if found[1] is not None:
        raise ConfigError(found[1])
    return str(found[0])


def _chosen(output_dir: str) -> Checkpoint:
    """The last checkpoint; later folders are out of its way, and what else is to be known is said."""
    chosen = last_checkpoint(output_dir)
    for later in map(inspect, folders(output_dir)):
        if later.step > chosen.step:
            moved = set_aside(later.folder)
            logger.warning("%s cannot be resumed from: it is %s now and can be deleted", later, moved)
    if chosen.why:
        logger.warning("%s: the run goes on, but to other numbers than an uninterrupted one", chosen)
    now = PartialState().num_processes
    if chosen.processes != now:
        logger.warning(
            "%s was saved by %d processes, this run has %d: its batches and random numbers are others",
            *(chosen, chosen.processes, now),
        )
    return chosen


def _set_earlier_aside(output_dir: Path) -> None:
    if PartialState().is_main_process:
        moved = ", ".join(sorted(set_aside(path, "earlier").name for path in folders(output_dir)))
        if moved:
            logger.warning(
                "%s holds checkpoints of an earlier run, now renamed to %s: rename one back to go on from it with "
                "--resume true, delete what is not needed",
                *(output_dir, moved),
            )


def _step(folder: Path) -> int | None:
    found = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(found[1]) if found else None


def _state(folder: Path) -> tuple[dict[str, Any], str]:
    """`trainer_state.json`, and what is wrong with it."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"no {STATE}: it was not saved to its end"
    except (OSError, ValueError):
        return {}, f"{STATE} cannot be read"
    step = state.get("global_step") if isinstance(state, dict) else None
    if step != _step(folder):
        return {}, f"{STATE} is of step {step}"
    return state, ""


def _faults(folder: Path, processes: int) -> Iterator[str]:
    if (folder / "checkpoint-is-incomplete.txt").exists():
        yield "its own mark says that it is incomplete"
    for path in sorted(folder.rglob("*")):
        if not path.name.startswith("rng_state") and not _whole(path):
            yield f"{path.relative_to(folder)} is cut short"
    engine = (folder / "latest").exists()  # DeepSpeed keeps weights and optimizer in a folder that this file names
    yield from _engine_faults(folder, processes) if engine else _plain_faults(folder)


def _plain_faults(folder: Path) -> Iterator[str]:
    names = {path.name for path in folder.iterdir()}
    weights = [name for name in names if name.endswith(".safetensors") or name.startswith("pytorch_model")]
    adapters = list(folder.glob("*/adapter_model.*"))
    if not weights and not adapters:
        yield "no weights"
    for name in sorted(names):
        if name.endswith(".index.json"):
            yield from (f"no {part}" for part in _parts(folder / name) if part not in names)
    for sharded in ("pytorch_model_fsdp_0", "optimizer_0"):
        if (folder / sharded).is_dir():
            yield from _shard_faults(folder / sharded)
    if not names & {"optimizer.pt", "optimizer.bin", "optimizer_0"}:
        yield "no optimizer: only the model was saved (save_only_model)"
    if "scheduler.pt" not in names:
        yield "no scheduler.pt"


def _shard_faults(folder: Path) -> Iterator[str]:
    """What a folder of FSDP's shards lacks of what its index, written last, says is there."""
    try:
        pieces = FileSystemReader(folder).read_metadata().storage_data.values()
    except (OSError, EOFError, pickle.UnpicklingError):
        yield f"{folder.name} is incomplete: its index cannot be read"
        return
    ends: dict[str, int] = {}
    for piece in pieces:
        ends[piece.relative_path] = max(ends.get(piece.relative_path, 0), piece.offset + piece.length)
    for name, end in sorted(ends.items()):
        path = folder / name
        if not path.exists() or path.stat().st_size < end:
            yield f"{folder.name}/{name} is {'cut short' if path.exists() else 'missing'}"


def _engine_faults(folder: Path, processes: int) -> Iterator[str]:
    within = folder / (folder / "latest").read_text(encoding="utf-8").strip()
    for kind in ("model_states", "optim_states"):
        found = list(within.glob(f"*{kind}.pt"))
        sharded = any("zero_pp_rank" in path.name for path in found)
        if len(found) < (processes if sharded else 1):
            yield f"{len(found)} files of {kind} in {within.name}"


def _parts(index: Path) -> list[str]:
    """The files that an index of weights names."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError):
        return [f"readable {index.name}"]


def _whole(path: Path) -> bool:
    """Whether a file of tensors reaches to its end; other files are not looked into."""
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                return True
        except (SafetensorError, OSError):
            return False
    return path.suffix not in TORCH or path.is_dir() or zipfile.is_zipfile(path)


def _processes(folder: Path, state: dict[str, Any]) -> int:
    """How many processes saved it: as it says, else as many as left a random state."""
    callbacks = state.get("stateful_callbacks") or {}
    noted = callbacks.get(SavedBy.__name__)
    if isinstance(noted, dict):
        return int(noted["attributes"]["processes"])
    numbers = [int(path.stem.removeprefix("rng_state_")) for path in folder.glob("rng_state_*.pth")]
    return max(numbers, default=0) + 1


def _unseeded(folder: Path, processes: int) -> tuple[int, ...]:
    alone = processes == 1
    names = {number: "rng_state.pth" if alone else f"rng_state_{number}.pth" for number in range(processes)}
    return tuple(number for number, name in names.items() if not zipfile.is_zipfile(folder / name))
