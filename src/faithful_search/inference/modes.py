"""A model as it is asked: without gradient, and without the settings that it ships for sampling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

_KEPT = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("transformers_version", "_from_model_config", "_commit_hash"),
}


def positions_of(config: Any) -> int | None:
    """How many positions the model was made for, stretched by its RoPE scaling; `None` when it does not say."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(config, "max_position_embeddings", None)
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return positions and int(positions * max(1.0, scaling.get("factor") or 1.0))


@contextmanager
def plain_generation(config: GenerationConfig) -> Iterator[None]:
    """Hides what a model ships in its generation config: `generate` would take all that a call leaves unset from it.

    The policy is to be sampled as it is. Ids of special tokens and how the cache is held stay.
    """
    own = dict(vars(config))
    plain = {key: value for key, value in vars(GenerationConfig()).items() if key not in _KEPT and key in own}
    vars(config).update(plain)
    try:
        yield
    finally:
        vars(config).update(own)


@contextmanager
def inference_mode(model: Any) -> Iterator[None]:
    """Eval mode without gradient; afterwards the model is as it was."""
    training = model.training
    # renamed in Transformers 5.2x
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    checkpointing = getattr(model, f"is_{kind}_checkpointing", False)
    model.eval()
    if checkpointing:
        getattr(model, f"{kind}_checkpointing_disable")()
    try:
        with torch.no_grad():
            yield
    finally:
        if checkpointing:
            getattr(model, f"{kind}_checkpointing_enable")()
        model.train(training)
