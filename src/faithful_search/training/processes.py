"""One policy in several processes: whole where each goes its own way, in step where a forward pass needs them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from ..errors import ConfigError


def most(accelerator: Any) -> Callable[[int], int]:
    """A function that every process calls with a number of its own; each gets the largest."""

    def largest(number: int) -> int:
        return int(accelerator.gather(torch.tensor([number], device=accelerator.device)).max())

    return largest if accelerator.num_processes > 1 else int


def check_processes(accelerator: Any) -> None:
    """Refuse what episodes cannot be sampled under.

    Raises:
        ConfigError: for FSDP 1.
    """
    if getattr(_plugin(accelerator, "fsdp"), "fsdp_version", 2) != 2:
        raise ConfigError("FSDP 1 is not supported; say `fsdp_version: 2` in accelerate's configuration")


def hold_head(model: Any, accelerator: Any) -> None:
    """Have ZeRO-3 gather the output layer's weight in every pass of the model, its backward pass included.

    TRL's loss reads that weight without calling the layer. ZeRO-3 notices so only while the weight is not there, and
    after a pass that did call the layer, such as a probe's, it is fetched ahead of time.
    """
    deepspeed = _plugin(accelerator, "deepspeed")
    head = model.get_output_embeddings()
    if deepspeed is not None and deepspeed.zero_stage == 3 and head is not None:
        from deepspeed import zero

        zero.register_external_parameter(model, head.weight)


@contextmanager
def gathered(model: Any, accelerator: Any) -> Iterator[None]:
    """Every parameter of a prepared model whole in every process, for as long as the context lasts.

    A forward pass then needs no other process, so that each may make as many as its episodes take. Under ZeRO-3 and
    FSDP 2 that takes the memory of the whole model in the precision it computes in; otherwise nothing changes.
    """
    deepspeed, fsdp = _plugin(accelerator, "deepspeed"), _plugin(accelerator, "fsdp")
    if deepspeed is not None and deepspeed.zero_stage == 3:
        with unwrap_model_for_generation(model, accelerator), _without_start_hook(model):
            yield
    elif fsdp is not None:
        with _unsharded(model, fsdp.reshard_after_forward):
            yield
    else:
        yield


def _plugin(accelerator: Any, name: str) -> Any:
    return getattr(accelerator.state, f"{name}_plugin", None)


@contextmanager
def _without_start_hook(engine: Any) -> Iterator[None]:
    """Without DeepSpeed's hook at the start of a pass, which may wait for the other processes to compare what they
    fetched; TRL takes away all others."""
    hooks, number = engine.module._forward_pre_hooks, engine.optimizer.parameter_offload.fwd_pre_hook.id
    start = hooks.pop(number)
    try:
        yield
    finally:
        hooks[number] = start
        hooks.move_to_end(number, last=False)


@contextmanager
def _unsharded(model: Any, reshard: bool) -> Iterator[None]:
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            # the output layer is given the layers' setting too, which costs one more gathering of it a step
            part.set_reshard_after_forward(reshard and part is not model, recurse=False)
