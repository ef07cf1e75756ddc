"""Models opened from the Hub or a directory, in one way for judges and encoders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import find_adapter_config_file

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
        name: a Hub id or a directory, that of a PEFT adapter included.
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
    model = read_model(auto, name, dtype=wanted, revision=revision, subfolder=subfolder, **how)
    return model.to(device).eval(), read_tokenizer(name, revision=revision, subfolder=subfolder)


def read_tokenizer(name: str, *, revision: str | None = None, subfolder: str = "") -> Any:
    """The tokenizer of a model; arguments and errors as `open_model`."""
    with opening(f"the tokenizer of {name!r}"):
        return AutoTokenizer.from_pretrained(name, revision=revision, subfolder=subfolder)


@contextmanager
def opening(what: str, hint: str = "") -> Iterator[None]:
    """What `from_pretrained` raises for wrong names and broken files becomes a `ConfigError` that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"cannot open {what}: {error}{hint}") from error


def read_model(
    auto: Any, name: str, *, revision: str | None = None, subfolder: str = "", trainable: bool = False, **how: Any
) -> Any:
    """The model at a Hub id or in a directory; for a PEFT adapter, its base model with the adapter on it.

    Args:
        auto, name, revision, subfolder, **how: as of `open_model`; for an adapter, `how` is the base model's.
        trainable: whether an adapter's weights are to be trained on.

    Raises:
        ConfigError: when it, or an adapter's base model, cannot be opened.
    """
    base = adapter_base(name, revision, subfolder)
    if base is None:
        with opening(f"the model {name!r}"):
            return auto.from_pretrained(name, revision=revision, subfolder=subfolder, **how)
    from peft import PeftModel

    # `auto.from_pretrained` would open it too, but leaves out what is not a plain LoRA matrix (DoRA's magnitudes)
    moved = "; where that has moved, correct `base_model_name_or_path` in adapter_config.json"
    with opening(f"the base model {base[0]!r}, which the adapter in {name!r} belongs to", moved):
        model = auto.from_pretrained(base[0], revision=base[1], **how)
    with opening(f"the adapter in {name!r}"):
        return PeftModel.from_pretrained(model, name, revision=revision, subfolder=subfolder, is_trainable=trainable)


def adapter_base(name: str, revision: str | None = None, subfolder: str = "") -> tuple[str, str | None] | None:
    """Name and revision of the model that a PEFT adapter was made for; `None` when there is no adapter at `name`.

    Raises:
        ConfigError: for a name that is neither a folder nor the Hub's, and an adapter whose settings cannot be read.
    """
    with opening(f"the model {name!r}"):
        file = find_adapter_config_file(name, revision=revision, subfolder=subfolder)
        if file is None:
            return None
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    return str(config.get("base_model_name_or_path")), config.get("revision")


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
