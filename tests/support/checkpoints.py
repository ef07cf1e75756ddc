"""Checkpoints as the trainer writes them, and whether two runs ended alike."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from faithful_search.trajectory import read_jsonl


def checkpoint(folder: Path, step: int, processes: int = 1, noted: bool = True) -> Path:
    """A checkpoint as the trainer writes it: the main process's files, and each process's random state."""
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    save_file({"weight": torch.ones(64, 64)}, made / "model.safetensors")
    names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{number}.pth" for number in range(processes)]
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", *names):
        torch.save({"numbers": torch.arange(99)}, made / name)
    by = {"SavedBy": {"args": {}, "attributes": {"processes": processes}}} if noted else {}
    state = {"global_step": step, "stateful_callbacks": by, "log_history": [{"loss": 0.5}] * 9}
    (made / "trainer_state.json").write_text(json.dumps(state))
    return made


SMALL = (
    *("--per_device_train_batch_size=4", "--num_generations=4", "--turns=3", "--turn_tokens=64"),
    *("--max_completion_length=400", "--eval_limit=3", "--threads=1", "--max_steps=4", "--save_steps=2"),
)


def equal(out: Path, other: Path) -> None:
    """The same weights, rollouts with their rewards, and evaluations."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, other))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert list(read_jsonl(out / "trajectories.jsonl")) == list(read_jsonl(other / "trajectories.jsonl"))
    ours, theirs = (json.loads((folder / "metrics.json").read_text()) for folder in (out, other))
    assert (ours["before"], ours["after"], ours["steps"]) == (theirs["before"], theirs["after"], theirs["steps"])
