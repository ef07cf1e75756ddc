"""One policy in several processes: they work in step, except while episodes are sampled. Then every
process holds the whole policy (`gathered`) and goes at its own pace.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from ..errors import ConfigError


def largest_over(accelerator: Any) -> Callable[[int], int]:
    """A function that every process calls with a number of its own, and that returns the largest
    of them.
    """
    if accelerator.num_processes == 1:
        return int
    return lambda number: int(
        accelerator.gather(torch.tensor([number], device=accelerator.device)).max()
    )


def check_processes(accelerator: Any) -> None:
    """Raise `ConfigError` for FSDP 1, under which episodes cannot be sampled."""
    if getattr(_plugin(accelerator, "fsdp"), "fsdp_version", 2) != 2:
        raise ConfigError(
            "FSDP 1 is not supported; say `fsdp_version: 2` in accelerate's configuration"
        )


def hold_head(model: Any, accelerator: Any) -> None:
    """Let ZeRO-3 gather the weight of the output layer in every pass.

    TRL's loss reads the weight without calling the layer. ZeRO-3 does not notice this after a pass
    that called the layer, such as that of a probe.
    """
    deepspeed = _plugin(accelerator, "deepspeed")
    head = model.get_output_embeddings()
    if deepspeed is not None and deepspeed.zero_stage == 3 and head is not None:
        from deepspeed import zero

        zero.register_external_parameter(model, head.weight)


@contextmanager
def gathered(model: Any, accelerator: Any) -> Iterator[None]:
    """Within the block every process holds all parameters of a prepared model, so that each can
    make as many passes as its episodes need. Under ZeRO-3 and FSDP 2 this needs memory for the
    whole model in the precision that it computes in.
    """
    deepspeed, fsdp = _plugin(accelerator, "deepspeed"), _plugin(accelerator, "fsdp")
    if deepspeed is not None and deepspeed.zero_stage == 3:
        with unwrap_model_for_generation(model, accelerator):
            # TRL removes all hooks of DeepSpeed but this one, which may wait for the other
            # processes
            hooks = model.module._forward_pre_hooks
            number = model.optimizer.parameter_offload.fwd_pre_hook.id
            start = hooks.pop(number)
            try:
                yield
            finally:
                hooks[number] = start
                hooks.move_to_end(number, last=False)
        return
    parts: list[FSDPModule] = []
    if fsdp is not None:
        parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            # The output layer gets the setting of the other layers, which costs one more gathering
            # of it in each step
            part.set_reshard_after_forward(
                fsdp.reshard_after_forward and part is not model, recurse=False
            )


def _plugin(accelerator: Any, name: str) -> Any:
    return getattr(accelerator.state, f"{name}_plugin", None)
