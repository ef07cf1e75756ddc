"""bf16 on a CPU: on where the processor has it, off where it would be emulated, and said at the beginning."""

import os
from types import SimpleNamespace

import pytest
import torch
from trl import ModelConfig

from faithful_search.training import arguments
from faithful_search.training.arguments import SearchGRPOConfig, SearchSFTConfig
from faithful_search.training.starting import RunArguments, parse_recipe, started

WITH = {"avx2": True, "avx512_bf16": True, "cpu_name": "some"}
WITHOUT = {"avx2": True, "avx512_bf16": False, "amx_bf16": False, "cpu_name": "some"}


@pytest.fixture
def processor(monkeypatch):
    """Puts the tests on a processor with these capabilities, without accelerator, in a clean environment."""
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"):
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
        (None, False),  # an older PyTorch cannot say
    ],
    ids=str,
)
def test_the_processor_may_have_it(processor, monkeypatch, capabilities, native):
    processor(capabilities)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert arguments.native_bf16() is native


@pytest.mark.parametrize("kind", [SearchGRPOConfig, SearchSFTConfig])
@pytest.mark.parametrize("asked", ["nothing", "flag", "file", "launch"])
def test_a_run_on_a_cpu_without_bf16_has_none_whoever_asked_for_it(processor, monkeypatch, tmp_path, kind, asked):
    (tmp_path / "own.yaml").write_text("bf16: true")
    told = {"flag": ("--bf16", "true"), "file": ("--config", str(tmp_path / "own.yaml"))}.get(asked, ())
    flags = ["--report_to", "none", "--output_dir", str(tmp_path), *told]
    processor(WITH)
    [args] = parse_recipe((kind,), flags)
    assert args.use_cpu and args.bf16 and arguments.precision_line(args) == "cpu, bf16 autocast"
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # a Transformers that leaves it there does so in one run only
    processor(WITHOUT)
    if asked == "launch":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    [args] = parse_recipe((kind,), flags)
    assert not args.bf16
    assert arguments.precision_line(args) == "cpu, no autocast: this processor has no native bf16"
    assert os.environ.get("ACCELERATE_MIXED_PRECISION", "no") == "no"


def test_bf16_that_was_declined_stays_off_where_the_processor_has_it(processor, tmp_path):
    processor(WITH)
    assert arguments.precision_line(SearchGRPOConfig(str(tmp_path), bf16=False)) == "cpu, no autocast"


def test_an_accelerator_keeps_its_bf16(processor, monkeypatch):
    processor(WITHOUT)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    told = SimpleNamespace(seed=0, learning_rate=0.1, use_cpu=False, bf16=True, ddp_backend=None)
    arguments.prepare(told)
    assert told.bf16 and not told.use_cpu
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    arguments.prepare(told)
    assert told.use_cpu and not told.bf16


def test_a_run_begins_with_it(processor, tmp_path, capsys):
    processor(WITHOUT)
    given = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--report_to", "none"]
    script, args, _ = parse_recipe((RunArguments, SearchGRPOConfig, ModelConfig), given)
    with started(script, args):
        [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("cpu, no autocast: this processor has no native bf16; ")
