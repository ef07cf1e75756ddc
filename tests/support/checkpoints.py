"""Checkpoints as the trainer writes them, and whether two runs ended alike."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file

from faithful_search.training import checkpoints
from faithful_search.trajectory import read_jsonl


def checkpoint(folder: Path, step: int, processes: int = 1, noted: bool = True) -> Path:
    """A checkpoint as the trainer writes it: the main process's files, and each process's random
    state.
    """
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    names = (
        ["rng_state.pth"]
        if processes == 1
        else [f"rng_state_{number}.pth" for number in range(processes)]
    )
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "training_args.bin", *names):
        (made / name).write_bytes(b"0123456789" * 99)
    state = {"global_step": step, "log_history": [{"loss": 0.5}] * 9}
    (made / "trainer_state.json").write_text(json.dumps(state))
    if noted:
        note(made)
    return made


def note(made: Path) -> None:
    """What `Manifest` writes when all files are there."""
    state = SimpleNamespace(
        global_step=int(made.name.rpartition("-")[2]), is_world_process_zero=True
    )
    (made / checkpoints.FILES).unlink(missing_ok=True)
    checkpoints.Manifest().on_save(SimpleNamespace(output_dir=str(made.parent)), state, None)


SMALL = (
    *("--per_device_train_batch_size=4", "--gradient_accumulation_steps=1"),
    *("--num_generations=4", "--turns=3", "--turn_tokens=64"),
    *(
        "--max_completion_length=400",
        "--eval_limit=3",
        "--threads=1",
        "--max_steps=4",
        "--save_steps=2",
    ),
)


def assert_equal_runs(out: Path, other: Path) -> None:
    """The same weights, rollouts with their rewards, and evaluations."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert list(read_jsonl(out / "trajectories.jsonl")) == list(
        read_jsonl(other / "trajectories.jsonl")
    )
    ours, theirs = (json.loads((folder / "metrics.json").read_text()) for folder in (out, other))
    assert (ours["before"], ours["after"], ours["steps"]) == (
        theirs["before"],
        theirs["after"],
        theirs["steps"],
    )
