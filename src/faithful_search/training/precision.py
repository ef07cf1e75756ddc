"""The precision of a run: bfloat16 on a CPU only if the processor has instructions for it.

Otherwise autocast emulates it, and a step takes several times as long as in float32.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from trl import GRPOConfig

NATIVE = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Capabilities of processors that multiply bfloat16 natively: x86 with AVX-512 or AMX, and Arm."""
FORBIDDING = {
    "ATEN_CPU_CAPABILITY": frozenset(("default", "avx2")),
    "ONEDNN_MAX_CPU_ISA": frozenset(
        ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")
    ),
}
"""Environment variables of PyTorch and oneDNN, and the values with which these instructions are not used."""


def native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 natively (PyTorch before 2.11 cannot say: then not), and the
    environment does not forbid it.

    Example:
        >>> import os
        >>> os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        >>> native_bf16()
        False
        >>> del os.environ["ONEDNN_MAX_CPU_ISA"]
    """
    if any(os.environ.get(name, "").lower() in values for name, values in FORBIDDING.items()):
        return False
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(name) is True for name in NATIVE)


def on_cpu(settings: Any) -> bool:
    """Whether a run with these settings (`use_cpu`, `dry_run`, if they have them) computes on the CPU."""
    told = getattr(settings, "use_cpu", False) or getattr(settings, "dry_run", False)
    return bool(told or parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())


def without_emulation(settings: Any) -> list[str]:
    """Flags that turn bf16 off if it would be emulated; none if the settings can stay as they are.

    It also takes back the bf16 that `accelerate launch` asks for, so it has to come before any `TrainingArguments`.
    """
    if not hasattr(settings, "bf16") or not on_cpu(settings) or native_bf16():
        return []
    # `accelerate launch` counts even where the settings say no.
    if os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16":
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    return ["--bf16", "false"]


@dataclass
class SearchGRPOConfig(GRPOConfig):
    """TRL's `GRPOConfig` that can also be made on a CPU without `use_cpu`, with bf16 only if that is native."""

    def __post_init__(self) -> None:
        if on_cpu(self):
            self.use_cpu = True
            self.bf16 = native_bf16() and not self.fp16 and self.bf16 is not False
        super().__post_init__()


def precision_line(args: Any) -> str:
    """The first line of a run, from its `TrainingArguments`: the device, and the precision of autocast."""
    device = args.device.type
    # Older versions of Transformers keep it in the environment only.
    shorter = getattr(args, "mixed_precision", None) or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if shorter != "no":
        return f"{device}, {shorter} autocast"
    emulated = device == "cpu" and not native_bf16()
    return f"{device}, no autocast" + (": this processor has no native bf16" if emulated else "")
