"""How the processes of a run on CPUs meet: they wait for each other no longer than they are told."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from torch import distributed


def meet(settings: Any) -> None:
    """Start the process group of a run on CPUs with `ddp_timeout` seconds, to begin with and for whatever follows.

    Transformers hands its setting on for accelerators only: on CPUs a process would wait half an hour for one that is
    gone. It takes the group that it finds, so this comes before any `TrainingArguments`. Without several processes,
    with another backend or an accelerator nothing happens.

    Args:
        settings: whatever has `use_cpu`, `ddp_backend` and `ddp_timeout`, or not.

    Raises:
        RuntimeError: when the others do not come in time.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ or distributed.is_initialized()
    mine = getattr(settings, "use_cpu", False) and getattr(settings, "ddp_backend", None) in (None, "gloo")
    if mine and not alone:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=settings.ddp_timeout))
