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
    ("capabilities", "environment", "native"),
    [
        (WITH, {}, True),
        (WITHOUT, {}, False),
        ({"amx_bf16": True}, {}, True),
        ({"amx_tile": True, "avx512_f": True}, {}, False),
        ({"architecture": "arm64", "bf16": True}, {}, True),
        ({"architecture": "arm64", "bf16": False, "fp16_arith": True}, {}, False),
        (WITH, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        (WITH, {"ONEDNN_MAX_CPU_ISA": "avx512_core"}, False),
        (WITH, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True),
        (WITH, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True),
        (WITH, {"ONEDNN_MAX_CPU_ISA": "DEFAULT"}, True),
        (WITH, {"ATEN_CPU_CAPABILITY": "avx2"}, False),
        (WITH, {"ATEN_CPU_CAPABILITY": "default"}, False),
        (WITH, {"ATEN_CPU_CAPABILITY": "avx512"}, True),
        (None, {}, False),  # an older PyTorch cannot say
    ],
    ids=str,
)
def test_the_processor_may_have_it_and_the_environment_may_forbid_it(
    processor, monkeypatch, capabilities, environment, native
):
    processor(capabilities)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert precision.native_bf16() is native


def parsed(kind, *flags):
    return parse_recipe((RunArguments, kind, ModelConfig), ["--report_to", "none", *flags])[1]


@pytest.mark.parametrize("kind", [GRPOConfig, SFTConfig])
@pytest.mark.parametrize("asked", ["nothing", "flag", "file", "launch"])
def test_a_run_on_a_cpu_without_bf16_has_none_whoever_asked_for_it(processor, monkeypatch, tmp_path, kind, asked):
    (tmp_path / "own.yaml").write_text("bf16: true")
    told = {"flag": ("--bf16", "true"), "file": ("--config", str(tmp_path / "own.yaml"))}.get(asked, ())
    out = ("--output_dir", str(tmp_path), "--use_cpu", "true", *told)
    processor(WITH)
    args = parsed(kind, *out)
    assert args.bf16 and precision.precision_line(args) == "cpu, bf16 autocast"
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # a Transformers that leaves it there does so in one run only
    processor(WITHOUT)
    if asked == "launch":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    args = parsed(kind, *out)
    assert not args.bf16
    assert precision.precision_line(args) == "cpu, no autocast: this processor has no native bf16"
    assert os.environ.get("ACCELERATE_MIXED_PRECISION", "no") == "no"


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
    assert precision.without_emulation(SimpleNamespace(policy="tiny")) == []  # what trains nothing has no flag for it


def test_a_run_begins_with_it(processor, tmp_path, capsys):
    processor(WITHOUT)
    given = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--report_to", "none"]
    script, args, _ = parse_recipe((RunArguments, GRPOConfig, ModelConfig), given)
    with started(script, args):
        [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("cpu, no autocast: this processor has no native bf16; ")
