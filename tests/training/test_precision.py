"""bf16 on a CPU: on where the processor has it, off where it would be emulated, and said at the beginning."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOConfig, ModelConfig, SFTConfig

from faithful_search.training import precision
from faithful_search.training.config import parse_recipe
from faithful_search.training.runs import RunArguments
from faithful_search.training.starting import started

WITH = {"avx2": True, "avx512_bf16": True, "cpu_name": "some"}
WITHOUT = {"avx2": True, "avx512_bf16": False, "amx_bf16": False, "cpu_name": "some"}


@pytest.fixture
def processor(monkeypatch):
    """Puts the tests on a processor with these capabilities, without accelerator, in a clean environment."""
    for name in (*precision.FORBIDDING, "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"):
        # set, then removed: so that what the code under test leaves there is taken away afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

    def has(capabilities):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)

    return has


@pytest.mark.parametrize(
    ("capabilities", "native"),
    [
        (WITH, True),
        (WITHOUT, False),
        ({"amx_bf16": True}, True),
        ({"amx_tile": True, "avx512_f": True}, False),
        ({"architecture": "arm64", "bf16": True}, True),
        ({"architecture": "arm64", "bf16": False, "fp16_arith": True}, False),
    ],
)
def test_pytorch_says_what_the_processor_can_do(processor, capabilities, native):
    processor(capabilities)
    assert precision.native_bf16() is native


@pytest.mark.parametrize(
    ("name", "value", "native"),
    [
        ("ONEDNN_MAX_CPU_ISA", "AVX2", False),
        ("ONEDNN_MAX_CPU_ISA", "avx512_core", False),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", True),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", True),
        ("ONEDNN_MAX_CPU_ISA", "DEFAULT", True),
        ("ATEN_CPU_CAPABILITY", "avx2", False),
        ("ATEN_CPU_CAPABILITY", "default", False),
        ("ATEN_CPU_CAPABILITY", "avx512", True),
    ],
)
def test_the_environment_may_forbid_what_the_processor_has(processor, monkeypatch, name, value, native):
    processor(WITH)
    monkeypatch.setenv(name, value)
    assert precision.native_bf16() is native


def test_an_older_pytorch_cannot_say_what_the_processor_can_do(processor, monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not precision.native_bf16()


def parsed(kind, *flags):
    return parse_recipe((RunArguments, kind, ModelConfig), ["--report_to", "none", *flags])[1]


@pytest.mark.parametrize("kind", [GRPOConfig, SFTConfig])
@pytest.mark.parametrize("asked", [(), ("--bf16", "true"), ("--use_cpu", "true")])
def test_a_run_on_a_cpu_without_bf16_has_none_whatever_it_asked_for(processor, tmp_path, kind, asked):
    out = ("--output_dir", str(tmp_path), "--use_cpu", "true")
    processor(WITH)
    args = parsed(kind, *out, *asked)
    assert args.bf16 and precision.precision_line(args) == "cpu, bf16 autocast"
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # a Transformers that leaves it there does so in one run only
    processor(WITHOUT)
    args = parsed(kind, *out, *asked)
    assert not args.bf16
    assert precision.precision_line(args) == "cpu, no autocast: this processor has no native bf16"
    assert os.environ.get("ACCELERATE_MIXED_PRECISION", "no") == "no"


def test_the_config_file_has_no_say_either_and_nothing_else_changes(processor, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: true\nreport_to: none\nlearning_rate: 0.5\n")
    processor(WITHOUT)
    args = parsed(GRPOConfig, "--config", str(path))
    assert (args.bf16, args.learning_rate) == (False, 0.5)
    processor(WITH)
    assert parsed(GRPOConfig, "--config", str(path)).bf16


def test_what_accelerate_launch_asks_for_is_taken_back(processor, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    processor(WITHOUT)
    args = parsed(GRPOConfig, "--output_dir", str(tmp_path), "--use_cpu", "true")
    assert "no autocast" in precision.precision_line(args)


def test_bf16_that_was_declined_stays_off_where_the_processor_has_it(processor, tmp_path):
    processor(WITH)
    args = parsed(GRPOConfig, "--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false")
    assert not args.bf16 and precision.precision_line(args) == "cpu, no autocast"


def test_a_dry_run_is_on_the_cpu_and_an_accelerator_keeps_its_bf16(processor, monkeypatch):
    processor(WITHOUT)
    assert precision.without_emulation(SimpleNamespace(bf16=True, use_cpu=False)) == ["--bf16", "false"]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert precision.without_emulation(SimpleNamespace(bf16=True, use_cpu=False)) == []
    assert precision.without_emulation(SimpleNamespace(bf16=True, use_cpu=False, dry_run=True)) == ["--bf16", "false"]
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert precision.without_emulation(SimpleNamespace(bf16=True, use_cpu=False)) == ["--bf16", "false"]


def test_what_trains_nothing_has_no_flag_for_it(processor):
    processor(WITHOUT)
    assert precision.without_emulation(SimpleNamespace(policy="tiny")) == []


def test_a_run_begins_with_it(processor, tmp_path, capsys):
    processor(WITHOUT)
    given = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--report_to", "none"]
    script, args, _ = parse_recipe((RunArguments, GRPOConfig, ModelConfig), given)
    with started(script, args):
        [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("cpu, no autocast: this processor has no native bf16; ")
