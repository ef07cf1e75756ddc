"""Several processes train as one does: the same gradient, rewards and state, and nobody waits for another in vain."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lab
import pytest
import rank_step
import torch
from safetensors.torch import load_file

from faithful_search.errors import ConfigError
from faithful_search.training.processes import check_processes, gathered, most

HERE = Path(__file__).parent
SCRIPT = str(HERE / "rank_step.py")


def step(folder: Path, processes: int, rows: int, kind: str = "ddp") -> tuple[dict[str, torch.Tensor], list[dict]]:
    """The gradient of one step, and what each process saw."""
    if not (folder / "start" / "model.safetensors").exists():
        lab.sharp(lab.model()).save_pretrained(folder / "start")
    out = folder / f"{kind}-{processes}x{rows}"
    if processes == 1:
        rank_step.main(out, rows, kind)
    else:
        launch_step(out, processes, rows, kind)
    before, after = (load_file(path / "model.safetensors") for path in (folder / "start", out / "model"))
    seen = [json.loads((out / f"process{number}.json").read_text()) for number in range(processes)]
    return {name: before[name] - after[name] for name in before}, seen


def launch_step(out: Path, processes: int, rows: int, kind: str) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    found = subprocess.run(
        [sys.executable, *launch, SCRIPT, str(out), str(rows), kind],
        env={
            **os.environ,
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-3000:]


def check_equal(one: tuple[Any, list[dict]], several: tuple[Any, list[dict]]) -> None:
    (gradient, [whole]), (other, parts) = one, several
    assert gradient["lm_head.weight"].norm() > 0.05
    for name, value in gradient.items():
        assert (value - other[name]).abs().max() < 1e-5 * max(1.0, float(value.norm())), name
    assert [reward for part in parts for reward in part["rewards"]] == pytest.approx(
        whole["rewards"],
        rel=0,
        abs=1e-7,  # an untrained model's p(yes) moves by 1e-6 with another perturbation
    )
    assert {(part["ema"], part["step"]) for part in parts} == {(whole["ema"], 1)} and whole["ema"] > 0
    assert len({part["probed"] for part in parts}) == 1 and parts[0]["probed"] > 1
    for part in parts:
        assert part["written"] == {name: whole["written"][name] for name in part["written"]}
    assert [bool(part["written"]) for part in parts] == [True, False]


def test_two_processes_and_one_make_the_same_step(tmp_path):
    check_equal(step(tmp_path, 1, 16), step(tmp_path, 2, 8))


@pytest.mark.slow
def test_a_group_may_be_spread_over_processes(tmp_path):
    check_equal(step(tmp_path, 1, 4), step(tmp_path, 2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_sharded_processes_make_the_same_step(kind, tmp_path):
    """Episodes and probes differ in number from process to process, where every pass through shards needs them all."""
    if kind == "zero3" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs deepspeed")
    check_equal(step(tmp_path, 1, 16), step(tmp_path, 2, 8, kind))


@pytest.mark.parametrize(
    "file", sorted((HERE.parent / "recipes" / "accelerate").glob("*.yaml")), ids=lambda file: file.stem
)
def test_accelerate_takes_the_configurations(file):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    given = ["--config_file", str(file), "recipes/pou.py", "--max_steps", "2"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(given))
    found = load_config_from_file(str(file))
    kind = {"zero3": args.use_deepspeed, "fsdp2": args.use_fsdp, "multi_gpu": args.multi_gpu}
    assert (args.num_processes, args.mixed_precision) == (found.num_processes, "bf16")
    assert [name for name, on in kind.items() if on] == [name for name in kind if name == file.stem]


def accelerator(**state: Any) -> Any:
    return SimpleNamespace(num_processes=1, state=SimpleNamespace(**state))


def test_one_process_asks_nobody():
    assert most(accelerator())(7) == 7
    with gathered(None, accelerator()) as nothing:
        assert nothing is None
    check_processes(accelerator(fsdp_plugin=SimpleNamespace(fsdp_version=2)))


def test_fsdp_1_is_refused():
    with pytest.raises(ConfigError, match="fsdp_version: 2"):
        check_processes(accelerator(fsdp_plugin=SimpleNamespace(fsdp_version=1)))
