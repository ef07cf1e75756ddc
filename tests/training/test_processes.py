"""Several processes train as one does: the same gradient, rewards and state, and nobody waits for
another in vain.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lab
import pytest
import rank_step
import torch
from paths import RECIPES, ROOT, SUPPORT
from safetensors.torch import load_file
from tiny_trainer import model

from faithful_search.errors import ConfigError
from faithful_search.training.processes import check_processes
from faithful_search.trajectory import read_jsonl

Step = tuple[dict[str, torch.Tensor], list[dict[str, Any]]]
"""The gradient of one step, and what each process saw; of an adapter those of its parts that start
at 0.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("steps")
    lab.sharp(model()).save_pretrained(made / "start")
    return made


def step(folder: Path, processes: int, rows: int, kind: str, more: dict[str, Any]) -> Step:
    if kind == "zero3" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs deepspeed")
    out = Path(tempfile.mkdtemp(dir=folder))
    if processes == 1:
        rank_step.main(out, rows, kind, more)
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        paths = {
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT / "src")]),
        }
        command = [
            sys.executable,
            *launch,
            str(SUPPORT / "rank_step.py"),
            str(out),
            str(rows),
            kind,
            json.dumps(more),
        ]
        done = subprocess.run(
            command, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads((out / f"process{number}.json").read_text()) for number in range(processes)]
    seen[0]["logged"] = [
        (row.id, row.meta["alpha"]) for row in read_jsonl(out / "trajectories.jsonl")
    ]
    if more.get("lora"):
        after = load_file(out / "model" / "adapter_model.safetensors")
        return {name: -value for name, value in after.items() if "lora_B" in name}, seen
    before, after = (
        load_file(path / "model.safetensors") for path in (folder / "start", out / "model")
    )
    return {name: before[name] - after[name] for name in before}, seen


def assert_equal(one: Step, several: Step) -> None:
    (gradient, [whole]), (other, parts) = one, several
    assert max(value.norm() for value in gradient.values()) > 0.05
    for name, value in gradient.items():
        assert (value - other[name]).abs().max() < 1e-5 * max(1.0, float(value.norm())), name
    # an untrained model's p(yes) moves by 1e-6 with another perturbation
    assert [reward for part in parts for reward in part["rewards"]] == pytest.approx(
        whole["rewards"], rel=0, abs=1e-7
    )
    assert {(part["ema"], part["step"]) for part in parts} == {(whole["ema"], 1)}
    assert parts[0]["logged"] == whole["logged"]
    assert len(dict(whole["logged"])) == len(whole["rewards"])
    assert len({part["probed"] for part in parts}) == 1
    assert (parts[0]["probed"] > 1) == (whole["probed"] > 1)
    for name, value in whole["terms"].items():
        near = (
            1e-3 if name == "likelihood/right" else 1e-4
        )  # a mean of batches, which have more or fewer tokens
        told = [part["terms"][name] for part in parts if part["terms"]]
        assert told, name
        assert told == [pytest.approx(value, rel=near, abs=1e-8)] * len(told), name
    for part in parts:
        assert part["written"] == {name: whole["written"][name] for name in part["written"]}
    assert [bool(part["written"]) for part in parts] == [True, False][: len(parts)]


PPO = {"advantages": "ppo", "value_learning_rate": 1.0}
CREDIT = [
    {"args": {"advantages": "turns"}},
    {"args": PPO},
    {
        "args": {
            **PPO,
            "value_trunk": True,
            "gae_over_turns": True,
            "step_rewards": True,
            "beta": 0.1,
        }
    },
    {"kept_responses": 1},
    {"kept_responses": 1, "args": PPO},
]
VERDICTS = {
    "args": {"verdict_weight": 1e3},  # an untrained model's p(yes) hardly moves
    "sensitivity": {"draws": "question", "centre": True, "budget": None},
}
AGAIN, TWICE = {"activation_checkpointing": True}, {"gradient_accumulation_steps": 2}
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("more", "processes", "rows", "kind", "args"),
    [
        (VERDICTS, 1, 16, "ddp", {"gradient_accumulation_steps": 4, "steps_per_generation": 4}),
        slow({}, 2, 16, "ddp", {}),
        slow({}, 2, 4, "ddp", {}),  # one group, half of it in each process
        slow(
            {}, 2, 16, "fsdp2", {}
        ),  # episodes and probes differ in number, and every pass through shards needs all
        slow({}, 2, 16, "zero3", {}),
        *(slow(more, 2, 16, kind, {}) for more in CREDIT for kind in ("ddp", "fsdp2", "zero3")),
        slow(
            VERDICTS, 2, 16, "ddp", {}
        ),  # one of the processes has no probe at all, and takes part in the passes
        slow(VERDICTS, 1, 16, "ddp", TWICE),
        slow(VERDICTS, 1, 16, "ddp", TWICE | AGAIN),
        slow(VERDICTS, 2, 16, "ddp", AGAIN),
        slow(VERDICTS | {"lora": True}, 2, 16, "ddp", {}),
        slow(VERDICTS, 2, 16, "ddp", TWICE),
        slow(VERDICTS, 2, 4, "ddp", {}),
        slow(VERDICTS, 2, 16, "fsdp2", {}),
        slow(VERDICTS, 2, 16, "zero3", {}),
    ],
    ids=str,
)
def test_a_step_is_the_same_however_it_is_spread(more, processes, rows, kind, args, folder):
    """Over processes, batches of a step, or both, with activations kept or computed again."""
    each = rows // processes // args.get("gradient_accumulation_steps", 1)
    spread = step(folder, processes, each, kind, {**more, "args": {**more.get("args", {}), **args}})
    assert_equal(step(folder, 1, rows, "ddp", more), spread)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_processes_with_shards_check_the_weight_transfer(kind, folder):
    """One engine that keeps old weights, or one that fails, ends the training in both."""
    _, seen = step(folder, 2, 4, kind, {"sync": True})
    for passed, deaf, broken, (size, same_bits) in (process["synced"] for process in seen):
        assert passed == [True, True]
        assert deaf == ["ConfigError", "vLLM does not follow the training model:"]
        assert broken == ["GeneratorError", "out of order"]
        assert same_bits
        assert 0 < size < model().get_input_embeddings().weight.numel()


@pytest.mark.parametrize(
    "file", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda file: file.stem
)
def test_accelerate_takes_the_configurations(file):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    given = ["--config_file", str(file), "recipes/pou.py", "--max_steps", "2"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(given))
    found = load_config_from_file(str(file))
    kind = {"zero3": args.use_deepspeed, "fsdp2": args.use_fsdp, "multi_gpu": args.multi_gpu}
    assert (args.num_processes, args.mixed_precision) == (found.num_processes, "bf16")
    expected = [name for name in kind if file.stem.startswith(name)]
    assert [name for name, on in kind.items() if on] == expected


def test_fsdp_1_is_refused():
    for version, refused in (
        (2, nullcontext()),
        (1, pytest.raises(ConfigError, match="fsdp_version: 2")),
    ):
        plugin = SimpleNamespace(fsdp_version=version)
        with refused:
            check_processes(
                SimpleNamespace(num_processes=1, state=SimpleNamespace(fsdp_plugin=plugin))
            )
