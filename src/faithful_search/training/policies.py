"""What a trainer starts from: a model's name, or an adapter's directory with the adapter ready to be trained on."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from transformers import AutoModelForCausalLM
from trl import ModelConfig

from ..errors import ConfigError
from ..inference.loading import adapter_base, read_model
from .config import model_init_kwargs

_QUANTISED = ("load_in_4bit", "load_in_8bit")


def open_policy(source: str, model_args: ModelConfig, args: Any) -> Any:
    """What TRL's trainers take as their model, and `args.model_init_kwargs` made to fit it.

    A model's name stays a name: the trainer loads it, and adds a new adapter with `use_peft`. The directory or Hub id
    of a PEFT adapter becomes a `PeftModel` whose adapter is trained on (with `beta` > 0 the reference is the adapter as
    it was at the start).

    Args:
        source: a directory or Hub id.
        model_args: TRL's flags for the model.
        args: the trainer's settings; what its `model_init_kwargs` holds wins over `model_args`.

    Raises:
        ConfigError: for a new adapter on one that is there, for flags of an adapter that is not asked for, for training
            quantised weights without one or with vLLM, and when quantisation's package or an adapter's base model is
            missing.
    """
    own = adapter_base(source, model_args.model_revision)
    check_adapter_flags(source, model_args, own is not None)
    _check_sampled(model_args, args)
    how = {**model_init_kwargs(model_args), **(args.model_init_kwargs or {})}
    args.model_init_kwargs = None if own else how
    return read_model(AutoModelForCausalLM, source, trainable=True, **how) if own else source


def _check_sampled(model_args: ModelConfig, args: Any) -> None:
    quantised = [name for name in _QUANTISED if getattr(model_args, name)]
    if quantised and getattr(args, "use_vllm", False):
        raise ConfigError(
            f"--{quantised[0]} true with --use_vllm true: to show vLLM the policy, the adapter is merged into the "
            "quantised weights and taken out of them again at every step, which changes them; set one to false"
        )


def check_adapter_flags(source: str, model_args: ModelConfig, is_adapter: bool) -> None:
    """Refuse flags that contradict each other, or would be ignored; see `open_policy`."""
    if is_adapter and model_args.use_peft:
        raise ConfigError(
            f"{source!r} is an adapter already: leave out --use_peft to go on training it, or make a full model of it "
            f"(faithful-search merge {source} OUT) and give that as --model_name_or_path to train a new one"
        )
    targets = model_args.lora_target_modules or ()
    if "lm_head" in ((targets,) if isinstance(targets, str) else targets):
        raise ConfigError(
            "TRL cannot train an adapter on lm_head; take it out of --lora_target_modules, or train all of it with "
            "--lora_modules_to_save lm_head"
        )
    if is_adapter or model_args.use_peft:
        return
    quantised = [name for name in _QUANTISED if getattr(model_args, name)]
    if quantised:
        raise ConfigError(f"quantised weights cannot be trained: --{quantised[0]} true needs --use_peft true")
    unheard = [
        field.name
        for field in fields(model_args)
        if field.name.startswith(("lora_", "use_rslora", "use_dora"))
        and getattr(model_args, field.name) != field.default
    ]
    if unheard:
        raise ConfigError(f"without --use_peft true these have no effect: {', '.join(unheard)}")
