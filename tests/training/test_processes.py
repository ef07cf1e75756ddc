"""Several processes train as one does: the same gradient, rewards and state, and nobody waits for another in vain."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lab
import pytest
import rank_step
import torch
from paths import RECIPES, ROOT, SUPPORT
from safetensors.torch import load_file

from faithful_search.errors import ConfigError
from faithful_search.training.processes import check_processes, gathered, most
from faithful_search.trajectory import read_jsonl

SCRIPT = str(SUPPORT / "rank_step.py")


def step(
    folder: Path, processes: int, rows: int, kind: str = "ddp", more: dict[str, Any] | None = None
) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """The gradient of one step, and what each process saw; of an adapter those of its parts that start at 0."""
    if not (folder / "start" / "model.safetensors").exists():
        lab.sharp(lab.model()).save_pretrained(folder / "start")
    if kind == "zero3" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs deepspeed")
    out = Path(tempfile.mkdtemp(dir=folder))
    if processes == 1:
        rank_step.main(out, rows, kind, more)
    else:
        launch_step(out, processes, rows, kind, more)
    seen = [json.loads((out / f"process{number}.json").read_text()) for number in range(processes)]
    seen[0]["logged"] = [(row.id, row.meta["alpha"]) for row in read_jsonl(out / "trajectories.jsonl")]
    if more and more.get("lora"):
        after = load_file(out / "model" / "adapter_model.safetensors")
        return {name: -value for name, value in after.items() if "lora_B" in name}, seen
    before, after = (load_file(path / "model.safetensors") for path in (folder / "start", out / "model"))
    return {name: before[name] - after[name] for name in before}, seen


def launch_step(out: Path, processes: int, rows: int, kind: str, more: dict[str, Any] | None = None) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    found = subprocess.run(
        [sys.executable, *launch, SCRIPT, str(out), str(rows), kind, json.dumps(more)],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-3000:]


def assert_equal(one: tuple[Any, list[dict]], several: tuple[Any, list[dict]]) -> None:
    (gradient, [whole]), (other, parts) = one, several
    assert_gradients(gradient, other)
    assert [reward for part in parts for reward in part["rewards"]] == pytest.approx(
        whole["rewards"],
        rel=0,
        abs=1e-7,  # an untrained model's p(yes) moves by 1e-6 with another perturbation
    )
    assert {(part["ema"], part["step"]) for part in parts} == {(whole["ema"], 1)} and whole["ema"] > 0
    assert len({part["probed"] for part in parts}) == 1 and parts[0]["probed"] > 1
    assert parts[0]["logged"] == whole["logged"] and len(dict(whole["logged"])) == len(whole["rewards"])
    for part in parts:
        assert part["written"] == {name: whole["written"][name] for name in part["written"]}
    assert [bool(part["written"]) for part in parts] == [True, False]


def assert_gradients(gradient: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert max(value.norm() for value in gradient.values()) > 0.05
    for name, value in gradient.items():
        assert (value - other[name]).abs().max() < 1e-5 * max(1.0, float(value.norm())), name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 4])  # four are one group, half of it in each process
def test_two_processes_and_one_make_the_same_step(tmp_path, rows):
    assert_equal(step(tmp_path, 1, rows), step(tmp_path, 2, rows // 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_sharded_processes_make_the_same_step(kind, tmp_path):
    """Episodes and probes differ in number from process to process, where every pass through shards needs them all."""
    assert_equal(step(tmp_path, 1, 16), step(tmp_path, 2, 8, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "zero3"])
@pytest.mark.parametrize(
    "more",
    [
        {"trainer": {"advantages": "turns"}},
        {"ppo": {"value_learning_rate": 1.0}},
        {"ppo": {"value_trunk": True, "gae_over_turns": True, "step_rewards": True}, "args": {"beta": 0.1}},
        {"kept_responses": 1},
        {"kept_responses": 1, "ppo": {"value_learning_rate": 1.0}},
    ],
    ids=["turns", "ppo", "ppo_own_trunk", "kept", "ppo_kept"],
)
def test_credit_is_the_same_however_a_step_is_spread(more, kind, tmp_path):
    (gradient, [whole]), (other, parts) = step(tmp_path, 1, 16, "ddp", more), step(tmp_path, 2, 8, kind, more)
    assert_gradients(gradient, other)
    for name, value in whole["terms"].items():
        assert [part["terms"][name] for part in parts] == [pytest.approx(value, rel=1e-4)] * 2


VERDICTS = {
    "trainer": {"verdict_weight": 1e4},  # an untrained model's p(yes) hardly moves
    "reward": {"draws": "question", "centre": True, "budget": None},
}


def assert_verdicts(one: tuple[Any, list[dict]], several: tuple[Any, list[dict]]) -> None:
    assert_gradients(one[0], several[0])
    moved = [seen["moved"] for seen in one[1] + several[1] if seen["moved"]]
    assert moved[0][0] != 0 and all(other == pytest.approx(moved[0], rel=1e-4, abs=1e-8) for other in moved)


@pytest.mark.slow
def test_the_verdict_term_of_two_processes_is_that_of_one(tmp_path):
    """One of the processes has no probe at all, and takes part in the passes of the other's."""
    one = step(tmp_path, 1, 16, more=VERDICTS)
    assert_equal(one, several := step(tmp_path, 2, 8, more=VERDICTS))
    assert_verdicts(one, several)
    plain, _ = step(tmp_path, 1, 16, more={**VERDICTS, "trainer": {}})
    assert max((value - plain[name]).norm() for name, value in one[0].items()) > 0.05


@pytest.mark.parametrize(
    ("processes", "rows", "kind", "more"),
    [
        (1, 16, "ddp", {"args": {"gradient_accumulation_steps": 4, "steps_per_generation": 4}}),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in (
                (1, 16, "ddp", {"args": {"gradient_accumulation_steps": 2}}),
                (1, 16, "ddp", {"args": {"gradient_accumulation_steps": 2, "activation_checkpointing": True}}),
                (2, 16, "ddp", {"args": {"activation_checkpointing": True}}),
                (2, 16, "ddp", {"lora": True}),
                (2, 16, "ddp", {"args": {"gradient_accumulation_steps": 2}}),
                (2, 4, "ddp", {}),  # a group that is spread over processes
                (2, 16, "fsdp2", {}),
                (2, 16, "zero3", {}),
            )
        ),
    ],
    ids=str,
)
def test_the_verdict_term_is_the_same_however_a_step_is_spread(processes, rows, kind, more, tmp_path):
    """Over processes, batches of a step, or both, with activations kept or computed again."""
    each = rows // processes // more.get("args", {}).get("gradient_accumulation_steps", 1)
    one = step(tmp_path, 1, rows, more=VERDICTS | {"lora": more.get("lora")})
    assert_verdicts(one, step(tmp_path, processes, each, kind, VERDICTS | more))


@pytest.mark.parametrize("file", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda file: file.stem)
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


def test_one_process_asks_nobody_and_fsdp_1_is_refused():
    assert most(accelerator())(7) == 7
    with gathered(None, accelerator()) as nothing:
        assert nothing is None
    check_processes(accelerator(fsdp_plugin=SimpleNamespace(fsdp_version=2)))
    with pytest.raises(ConfigError, match="fsdp_version: 2"):
        check_processes(accelerator(fsdp_plugin=SimpleNamespace(fsdp_version=1)))
