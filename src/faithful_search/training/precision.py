"""In what precision a run computes: bfloat16 on a CPU only where the processor has instructions for it.

Without them autocast emulates: a step takes several times as long as in float32.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from trl import GRPOConfig

NATIVE = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""What a processor says that multiplies bfloat16 itself: x86 with AVX-512 or AMX, and Arm."""
FORBIDDING = {
    "ATEN_CPU_CAPABILITY": frozenset(("default", "avx2")),
    "ONEDNN_MAX_CPU_ISA": frozenset(
        ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")
    ),
}
"""Environment variables of PyTorch and oneDNN, and the values with which these instructions are not used."""
_CPUINFO = Path("/proc/cpuinfo")


def native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 itself, and the environment does not forbid it.

    The answer is no where neither PyTorch (2.11 or later) nor the kernel says what the processor can do.

    Example:
        >>> import os
        >>> os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        >>> native_bf16()
        False
        >>> del os.environ["ONEDNN_MAX_CPU_ISA"]
    """
    if any(os.environ.get(name, "").lower() in values for name, values in FORBIDDING.items()):
        return False
    return not NATIVE.isdisjoint(_instructions())


def on_cpu(settings: Any) -> bool:
    """Whether a run with these settings computes on the CPU: it is told to, or there is nothing else.

    Args:
        settings: whatever has `use_cpu` and `dry_run`, or not.
    """
    told = getattr(settings, "use_cpu", False) or getattr(settings, "dry_run", False)
    return bool(told or parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())


def without_emulation(settings: Any) -> list[str]:
    """Flags that turn bf16 off where it would be emulated; none where the settings may stay as they are.

    It also takes back the bf16 that `accelerate launch` asks for by its environment variable, which counts where the
    settings say no. So this comes before any `TrainingArguments`.

    Args:
        settings: a recipe's flags by name; those without `bf16` are no training's and stay as they are.
    """
    if not hasattr(settings, "bf16") or not on_cpu(settings) or native_bf16():
        return []
    if os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16":
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    return ["--bf16", "false"]


@dataclass
class SearchGRPOConfig(GRPOConfig):
    """TRL's `GRPOConfig`, which on a CPU is one of a run on a CPU; TRL's own refuses to be made there.

    Elsewhere, and in all other fields, it is TRL's. bf16 is as `without_emulation` has it.
    """

    def __post_init__(self) -> None:
        if on_cpu(self):
            self.use_cpu = True
            self.bf16 = native_bf16() and not self.fp16 and self.bf16 is not False
        super().__post_init__()


def precision_line(args: Any) -> str:
    """The line that opens a run: where it computes, and whether in a shorter precision than its weights have.

    Args:
        args: `TrainingArguments`.

    Example:
        ```python
        print(precision_line(SFTConfig("outputs/x", use_cpu=True, bf16=False)))
        # cpu, no autocast: this processor has no native bf16
        ```
    """
    device = args.device.type
    # before Transformers kept it among the arguments, it left it in the environment
    shorter = getattr(args, "mixed_precision", None) or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if shorter != "no":
        return f"{device}, {shorter} autocast"
    emulated = device == "cpu" and not native_bf16()
    return f"{device}, no autocast" + (": this processor has no native bf16" if emulated else "")


def _instructions() -> set[str]:
    if hasattr(torch.cpu, "get_capabilities"):
        return {name for name, there in torch.cpu.get_capabilities().items() if there is True}
    try:
        return set(re.findall(r"\w+", _CPUINFO.read_text(encoding="utf-8", errors="replace")))
    except OSError:  # no Linux
        return set()
