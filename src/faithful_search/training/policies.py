"""What a trainer starts from: a model's name, or an adapter to train further."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM
from trl import ModelConfig, get_quantization_config

from ..bundled import bundled_policy
from ..errors import ConfigError
from ..inference.loading import adapter_base, opening, read_config, read_model

COLD_STARTS = "outputs/sft_"
"""Where `recipes/sft.py` leaves its policies, by the name of its configuration."""


def policy_source(name: str, dialect: str) -> str:
    """A directory or Hub id of a policy: `"tiny"` is the bundled one that writes the dialect, others are in `BUNDLED`.

    Raises:
        DataError: if no bundled policy writes the dialect.
        ConfigError: for a cold start that configurations name and that has not been made yet.
    """
    if name.startswith(COLD_STARTS) and not any(Path(name).glob("*config.json")):  # an adapter's, too
        config = Path(name).name
        raise ConfigError(
            f"there is no {name}: this run starts from a policy that already writes the dialect. Make it first, with "
            f"your --questions, --source_kind and --corpus: accelerate launch recipes/sft.py "
            f"--config recipes/configs/{config}.yaml"
        )
    return bundled_policy(name, dialect)


def open_policy(source: str, model_args: ModelConfig, args: Any) -> Any:
    """What TRL's trainers take as their model, with `args.model_init_kwargs` set to fit it.

    A model's name stays a name: the trainer loads it, and adds a new adapter with `use_peft`. A PEFT adapter becomes a
    `PeftModel` whose adapter is trained further (with `beta` > 0 the reference is the adapter as it was at the start).
    `lora_target_modules` with the name of a single layer becomes a list: PEFT takes a string for a pattern.

    Settings in `args.model_init_kwargs` win over those of `model_args`.

    Raises:
        ConfigError: as `check_flags` and `model_init_kwargs`; for layers that the model does not have, or a model that
            cannot be opened.
    """
    own = adapter_base(source, model_args.model_revision)
    check_flags(source, model_args, args, own is not None)
    trusted = {"trust_remote_code": getattr(args, "trust_remote_code", False)}  # TRL's has it
    how = {**trusted, **model_init_kwargs(model_args), **(args.model_init_kwargs or {})}
    if own:
        args.model_init_kwargs = None  # TRL refuses them beside a model that is loaded already
        return read_model(AutoModelForCausalLM, source, trainable=True, **how)
    if model_args.use_peft and model_args.lora_target_modules not in (None, "all-linear"):
        model_args.lora_target_modules = cast(list[str], _targets(source, model_args, trusted))  # or a pattern
    args.model_init_kwargs = how
    return source


def model_init_kwargs(model_args: ModelConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained`: revision, dtype, attention and quantisation of TRL's `ModelConfig`.

    An unknown dtype, and quantisation without the package that does it, are a `ConfigError`.
    """
    dtype = model_args.dtype
    check_dtype(dtype)
    quantised = _quantised(model_args)
    if quantised and find_spec("bitsandbytes") is None:
        raise ConfigError(f"--{quantised} true needs bitsandbytes: pip install 'faithful-search[qlora]'")
    quantization = get_quantization_config(model_args)
    return {
        "revision": model_args.model_revision,
        "dtype": dtype,
        "attn_implementation": model_args.attn_implementation,
        **({"quantization_config": quantization} if quantization else {}),
    }


def check_dtype(name: str | None) -> None:
    """Raise `ConfigError` for what is no dtype of torch; none and "auto" are left to whoever loads the weights."""
    if name not in (None, "auto") and not isinstance(getattr(torch, str(name), None), torch.dtype):
        raise ConfigError(f"{name!r} is not a dtype of torch, such as float32, bfloat16 or float16")


def check_flags(source: str, model_args: ModelConfig, args: Any, is_adapter: bool) -> None:
    """Raise `ConfigError` for flags that contradict each other or would be ignored."""
    if is_adapter and model_args.use_peft:
        raise ConfigError(
            f"{source!r} is already an adapter: leave out --use_peft to train it further, or make a full model of it "
            f"(faithful-search merge {source} OUT) and give that as --model_name_or_path to train a new one"
        )
    if "lm_head" in _listed(model_args.lora_target_modules):
        raise ConfigError(
            "TRL cannot train an adapter on lm_head; take it out of --lora_target_modules, or train all of it with "
            "--lora_modules_to_save lm_head"
        )
    quantised = _quantised(model_args)
    if quantised and getattr(args, "use_vllm", False):
        raise ConfigError(
            f"--{quantised} true with --use_vllm true: to show vLLM the policy, the adapter is merged into the "
            "quantised weights and taken out of them again at every step, which changes them; set one to false"
        )
    if is_adapter or model_args.use_peft:
        return
    if quantised:
        raise ConfigError(f"quantised weights cannot be trained: --{quantised} true needs --use_peft true")
    unheard = [
        field.name
        for field in fields(model_args)
        if field.name.startswith(("lora_", "use_rslora", "use_dora"))
        and getattr(model_args, field.name) != field.default
    ]
    if unheard:
        raise ConfigError(f"without --use_peft true these have no effect: {', '.join(unheard)}")


def _targets(source: str, model_args: ModelConfig, trusted: dict[str, Any]) -> str | list[str]:
    # PEFT ignores a name that no layer has if another name fits.
    asked = cast("str | list[str]", model_args.lora_target_modules)
    # On the meta device a model of any size has its layers' names and takes no memory.
    with opening(f"the model {source!r}"), torch.device("meta"):
        config = read_config(source, revision=model_args.model_revision, **trusted)
        model = AutoModelForCausalLM.from_config(config, **trusted)
    paths = [path for path, module in model.named_modules() if path and not list(module.children())]
    ends = {path.rpartition(".")[2] for path in paths}
    if isinstance(asked, str) and asked not in ends and any(re.fullmatch(asked, path) for path in paths):
        return asked
    names = _listed(asked)
    lost = [name for name in names if not any(f".{path}".endswith(f".{name}") for path in paths)]
    if lost:
        linear = {path.rpartition(".")[2] for path in paths if isinstance(model.get_submodule(path), torch.nn.Linear)}
        raise ConfigError(
            f"--lora_target_modules: {source} has no {', '.join(lost)}; its linear layers are "
            f"{', '.join(sorted(linear - {'lm_head'}))}, and all-linear means all of them"
        )
    return names


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _quantised(model_args: ModelConfig) -> str | None:
    return next((name for name in ("load_in_4bit", "load_in_8bit") if getattr(model_args, name)), None)
