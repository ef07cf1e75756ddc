"""Policies on disk: opened to be trained, by name or as an adapter; saved whole, as an adapter, or merged."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.integrations import deepspeed
from trl import ModelConfig, get_quantization_config

from ..errors import ConfigError
from ..flags import refuse
from ..inference.loading import adapter_base, opening, read_config, read_model, read_tokenizer
from ..measure.evaluation import MERGED

_ADAPTER = ("adapter_config.json", "adapter_model*.safetensors")
_WHOLE = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
_PROBE = "Lima is the capital of Peru. It lies on the coast, and Cusco lies in the mountains."
_OFF = {
    torch.float32: 1e-3
}  # relative to the logits; else 0.1: sums in half precision are off by some hundredths
_REFERENCE = "ref"  # TRL's copy of an adapter that is trained further, its KL reference


def open_policy(source: str, model_args: ModelConfig, args: Any, merged: bool = False) -> Any:
    """What TRL's trainers take as their model, with `args.model_init_kwargs` set to fit it; its own settings win.

    A model's name stays a name: the trainer loads it, and adds a new adapter with `use_peft`. A PEFT adapter becomes a
    `PeftModel` whose adapter is trained further (with `beta` > 0 the reference is the adapter as it was at the start).
    Raises `ConfigError` for flags that do not fit together, layers that the model does not have, or a model that cannot
    be opened.
    """
    own = adapter_base(source, model_args.model_revision)
    check_flags(source, model_args, args, own is not None, merged)
    trusted = {"trust_remote_code": getattr(args, "trust_remote_code", False)}  # TRL's has it
    how = {**trusted, **model_init_kwargs(model_args), **(args.model_init_kwargs or {})}
    if own:
        args.model_init_kwargs = None  # TRL refuses them beside a model that is loaded already
        return read_model(AutoModelForCausalLM, source, trainable=True, **how)
    if model_args.use_peft and model_args.lora_target_modules not in (None, "all-linear"):
        # a single layer's name becomes a list: PEFT takes a string for a pattern
        model_args.lora_target_modules = cast(list[str], _targets(source, model_args, trusted))
    args.model_init_kwargs = how
    return source


def model_init_kwargs(model_args: ModelConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained`: revision, dtype, attention and quantisation of TRL's `ModelConfig`."""
    check_dtype(model_args.dtype)
    bits = _quantised(model_args)
    missing = f"--{bits} true needs bitsandbytes: pip install 'faithful-search[qlora]'"
    refuse([(bits and find_spec("bitsandbytes") is None, missing)])
    found: dict[str, Any] = {
        "dtype": model_args.dtype,
        "attn_implementation": model_args.attn_implementation,
    }
    found |= {"quantization_config": get_quantization_config(model_args)} if bits else {}
    return {"revision": model_args.model_revision, **found}


def check_dtype(name: str | None) -> None:
    """Raise `ConfigError` for what is no dtype of torch; none and "auto" are left to whoever loads the weights."""
    if name not in (None, "auto") and not isinstance(getattr(torch, str(name), None), torch.dtype):
        raise ConfigError(f"{name!r} is not a dtype of torch, such as float32, bfloat16 or float16")


def check_flags(
    source: str, model_args: ModelConfig, args: Any, is_adapter: bool, merged: bool
) -> None:
    """Raise `ConfigError` for flags that contradict each other or would be ignored."""
    new, targets, bits = (
        model_args.use_peft,
        model_args.lora_target_modules or (),
        _quantised(model_args),
    )
    plain = not (is_adapter or new)
    own = [
        item
        for item in fields(model_args)
        if item.name.startswith(("lora_", "use_rslora", "use_dora"))
    ]
    unheard = ", ".join(item.name for item in own if getattr(model_args, item.name) != item.default)
    twice = f"{source!r} is already an adapter: leave out --use_peft to train it further, or faithful-search merge it"
    head = "TRL cannot train an adapter on lm_head: take it out, or train it whole by --lora_modules_to_save lm_head"
    rounded = f"--{bits} true with --use_vllm true: an adapter that is merged into quantised weights changes them"
    refuse(
        [
            (is_adapter and new, twice),
            ("lm_head" in ([targets] if isinstance(targets, str) else targets), head),
            (bits and getattr(args, "use_vllm", False), rounded),
            (
                bits and plain,
                f"quantised weights cannot be trained: --{bits} true needs --use_peft true",
            ),
            (unheard and plain, f"without --use_peft true these have no effect: {unheard}"),
            (
                merged and plain,
                "--save_merged true: without --use_peft true there is no adapter to merge",
            ),
        ]
    )


def _targets(source: str, model_args: ModelConfig, trusted: dict[str, Any]) -> str | list[str]:
    # PEFT ignores a name that no layer has if another name fits.
    asked = cast("str | list[str]", model_args.lora_target_modules)
    # On the meta device a model of any size has its layers' names and takes no memory.
    with opening(f"the model {source!r}"), torch.device("meta"):
        config = read_config(source, revision=model_args.model_revision, **trusted)
        model = AutoModelForCausalLM.from_config(config, **trusted)
    layers = {
        f".{path}": layer
        for path, layer in model.named_modules()
        if path and not list(layer.children())
    }
    ends = {path.rpartition(".")[2] for path in layers}
    if (
        isinstance(asked, str)
        and asked not in ends
        and any(re.fullmatch(asked, path[1:]) for path in layers)
    ):
        return asked
    names = [asked] if isinstance(asked, str) else asked
    lost = [name for name in names if not any(path.endswith(f".{name}") for path in layers)]
    if lost:
        linear = {
            path.rpartition(".")[2]
            for path, layer in layers.items()
            if isinstance(layer, torch.nn.Linear)
        }
        there = f"its linear layers are {', '.join(sorted(linear - {'lm_head'}))}, and all-linear means all of them"
        raise ConfigError(f"--lora_target_modules: {source} has no {', '.join(lost)}; {there}")
    return names


def _quantised(model_args: ModelConfig) -> str | None:
    return next(
        (name for name in ("load_in_4bit", "load_in_8bit") if getattr(model_args, name)), None
    )


def save_policy(trainer: Any, dtype: str | None = None, merged: bool = False) -> None:
    """Save policy and tokenizer to the trainer's `output_dir`; called by every process.

    An adapter is saved as such, with `merged` also the full model, in `output_dir/merged`: the main process merges what
    was saved, on its CPU, into the base model's own files. `dtype` is that of full and merged weights; by default that
    of training. No weights to save are a `ConfigError`.
    """
    if trainer.is_fsdp_enabled:  # shards would not be written
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    out = Path(trainer.args.output_dir)
    trainer.save_model(str(out))
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        adapter, trusted = (
            is_peft_model(model),
            getattr(trainer.args, "trust_remote_code", False),
        )  # TRL's has it
        if not any(out.glob("*.safetensors")):
            advice = "under ZeRO-3 set zero3_save_16bit_model: true in accelerate's configuration"
            raise ConfigError(
                f"no weights were written to {out}: {advice}. The last checkpoint has them, sharded"
            )
        if not adapter and dtype:
            with _unsharded():
                whole = AutoModelForCausalLM.from_pretrained(
                    out, dtype=dtype, trust_remote_code=trusted
                )
            _remove(out, _WHOLE)  # a smaller dtype may have fewer shards
            whole.save_pretrained(out)
        # Leave one policy: an earlier run's files of the other kind, its merged model and TRL's reference go.
        _remove(out, _WHOLE if adapter else _ADAPTER)
        for folder, sign in ((_REFERENCE, _ADAPTER[0]), (MERGED, _WHOLE[0])):
            if (out / folder / sign).exists():
                shutil.rmtree(out / folder)
        if adapter and merged:
            merge_adapter(out, out / MERGED, dtype or model.config.dtype, trusted)
    trainer.accelerator.wait_for_everyone()


def merge_adapter(
    adapter: str | Path,
    out: str | Path,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """Write the base model with the adapter merged into its weights to `out`, for `from_pretrained` without PEFT.

    A model at `out` is replaced only when the new one is complete, and agrees with the adapter on a short text. An
    adapter that was trained on quantised weights is merged into the full ones, which it has not seen: measure the
    result. `dtype` is by default that of the base model's files; `trust_remote_code` runs its own Python code. Raises
    `ConfigError` if there is no adapter, its base model cannot be opened or is quantised itself, `out` holds something
    other than a model, or the merged model disagrees with the adapter.
    """
    source, out = str(adapter), Path(out)
    if adapter_base(source) is None:
        raise ConfigError(f"there is no PEFT adapter in {source}: nothing to merge")
    if Path(source).resolve().is_relative_to(out.resolve()):
        raise ConfigError(
            f"the merged model would replace the adapter in {source}: choose another folder than {out}"
        )
    if (
        out.exists()
        and not (out / "config.json").exists()
        and (not out.is_dir() or any(out.iterdir()))
    ):
        raise ConfigError(
            f"{out} already exists and is not a model directory; choose another folder"
        )
    trusted: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    tokenizer = read_tokenizer(source, **trusted)
    with _unsharded(), torch.no_grad():  # only this process merges, so nothing may be shared out
        model = read_model(AutoModelForCausalLM, source, dtype=dtype or "auto", **trusted).eval()
        merged = _merged(model, tokenizer(_PROBE, return_tensors="pt")["input_ids"], source)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        dir=out.parent, prefix=f".{out.name}-"
    ) as work:  # an error leaves `out` as it is
        merged.save_pretrained(Path(work) / "new")
        tokenizer.save_pretrained(Path(work) / "new")
        if out.exists():
            out.rename(Path(work) / "old")
        (Path(work) / "new").rename(out)
    return out


def _merged(model: Any, ids: torch.Tensor, source: str) -> Any:
    if getattr(model, "quantization_method", None) is not None:
        advice = "name the full one as `base_model_name_or_path` in adapter_config.json"
        raise ConfigError(
            f"the base model of {source} is quantised and cannot be merged into; {advice}"
        )
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    body, head = (getattr(end, "base_layer", end) for end in ends)
    if any(hasattr(end, "base_layer") for end in ends) and head.weight is body.weight:
        # Merging into one of two tied matrices would change the other one too.
        head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    wanted = model(input_ids=ids).logits.float()
    try:
        merged = model.merge_and_unload(safe_merge=True)  # which refuses NaN
    except ValueError as error:
        raise ConfigError(f"the adapter in {source} cannot be merged: {error}") from error
    off = (merged(input_ids=ids).logits.float() - wanted).abs().mean() / wanted.abs().mean().clamp(
        min=1e-6
    )
    if not off <= _OFF.get(merged.dtype, 0.1):  # NaN is refused, too
        raise ConfigError(
            f"{source} merged in {merged.dtype} gives other logits, by {off:.1%}: use the adapter itself"
        )
    return merged


@contextmanager
def _unsharded() -> Iterator[None]:
    """Without ZeRO-3, which would shard whatever is loaded over all processes; only the main one is here."""
    before = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = before


def _remove(folder: Path, patterns: Sequence[str]) -> None:
    for file in (file for pattern in patterns for file in folder.glob(pattern)):
        file.unlink()
