"""Models opened from the Hub or a directory, in one way for judges and encoders."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..errors import ConfigError
from .transformers import TransformersGenerator

_SAYS_NOTHING = 10**6


def open_model(
    auto: Any,
    name: str,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    subfolder: str = "",
    **how: Any,
) -> tuple[Any, Any]:
    """The model in eval mode, and its tokenizer.

    Args:
        auto: the Transformers class that opens it, such as `AutoModelForSequenceClassification`.
        name: a Hub id or a directory.
        device: a torch device; by default a GPU where there is one.
        dtype: by default float32 on a CPU and the checkpoint's own elsewhere.
        revision: branch, tag or commit on the Hub.
        subfolder: where in the repository or directory the model lies.
        **how: further arguments of the class's `from_pretrained`, such as `attn_implementation`.

    Raises:
        ConfigError: when it cannot be opened.
    """
    device = device or _best_device()
    wanted = dtype or ("float32" if str(device).startswith("cpu") else "auto")
    try:
        model = auto.from_pretrained(name, dtype=wanted, revision=revision, subfolder=subfolder, **how)
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, subfolder=subfolder)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot open the model {name!r}: {error}") from error
    return model.to(device).eval(), tokenizer


def open_generator(
    name: str,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    **how: Any,
) -> TransformersGenerator:
    """A causal LM, or a PEFT adapter's directory, as a generator; arguments and errors as `open_model`."""
    model, tokenizer = open_model(AutoModelForCausalLM, name, device=device, dtype=dtype, revision=revision, **how)
    return TransformersGenerator(model, tokenizer)


def max_tokens(model: Any, tokenizer: Any) -> int | None:
    """How many tokens, special ones included, model and tokenizer take; `None` when neither says."""
    limits = [tokenizer.model_max_length, _positions(model)]
    known = [limit for limit in limits if limit is not None and limit < _SAYS_NOTHING]
    return min(known, default=None)


def _positions(model: Any) -> int | None:
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its kin count positions from behind the padding token's
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    names = ("max_position_embeddings", "n_positions")
    return next((value for value in (getattr(config, name, None) for name in names) if value), None)


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
