"""One policy in several processes: gathered for sampling, where each goes at its own pace, and in step otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from ..errors import ConfigError


def most(accelerator: Any) -> Callable[[int], int]:
    """A function that every process calls with its own number; each gets the largest."""
    if accelerator.num_processes == 1:
        return int
    return lambda number: int(accelerator.gather(torch.tensor([number], device=accelerator.device)).max())


def check_processes(accelerator: Any) -> None:
    """Raise `ConfigError` for FSDP 1, under which episodes cannot be sampled."""
    if getattr(_plugin(accelerator, "fsdp"), "fsdp_version", 2) != 2:
        raise ConfigError("FSDP 1 is not supported; say `fsdp_version: 2` in accelerate's configuration")


def hold_head(model: Any, accelerator: Any) -> None:
    """Have ZeRO-3 gather the output layer's weight in every forward and backward pass of the model.

    TRL's loss reads that weight without calling the layer. ZeRO-3 only notices this while the weight is not there, but
    after a pass that called the layer, such as a probe's, the weight is prefetched.
    """
    deepspeed = _plugin(accelerator, "deepspeed")
    head = model.get_output_embeddings()
    if deepspeed is not None and deepspeed.zero_stage == 3 and head is not None:
        from deepspeed import zero

        zero.register_external_parameter(model, head.weight)


@contextmanager
def gathered(model: Any, accelerator: Any) -> Iterator[None]:
    """Within the block every process holds all parameters of a prepared model.

    A forward pass then needs no other process, so that each can make as many as its episodes take. Under ZeRO-3 and
    FSDP 2 this takes the memory of the whole model in the precision it computes in; otherwise nothing changes.
    """
    deepspeed, fsdp = _plugin(accelerator, "deepspeed"), _plugin(accelerator, "fsdp")
    if deepspeed is not None and deepspeed.zero_stage == 3:
        with unwrap_model_for_generation(model, accelerator):
            # TRL removes all hooks of DeepSpeed but this one, which can wait for other processes to compare traces.
            hooks, number = model.module._forward_pre_hooks, model.optimizer.parameter_offload.fwd_pre_hook.id
            start = hooks.pop(number)
            try:
                yield
            finally:
                hooks[number] = start
                hooks.move_to_end(number, last=False)
        return
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)] if fsdp is not None else []
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            # The output layer gets the layers' setting too, which costs one more gathering of it per step.
            part.set_reshard_after_forward(fsdp.reshard_after_forward and part is not model, recurse=False)


def meet(settings: Any) -> None:
    """Start the process group of a run on CPUs with `ddp_timeout` seconds.

    Transformers passes this setting on for accelerators only: on CPUs a process would wait half an hour for one that is
    gone. It uses the group that it finds, so this has to come before any `TrainingArguments`.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ or distributed.is_initialized()
    mine = getattr(settings, "use_cpu", False) and getattr(settings, "ddp_backend", None) in (None, "gloo")
    if mine and not alone:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=settings.ddp_timeout))


def _plugin(accelerator: Any, name: str) -> Any:
    return getattr(accelerator.state, f"{name}_plugin", None)
