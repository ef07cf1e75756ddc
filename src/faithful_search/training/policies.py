"""Policies on disk: `open_policy` opens one for training, `save_policy` saves it, `merge_adapter`
makes a full model of an adapter.
"""

import os
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
from ..inference.loading import adapter_base, opening, read_config, read_model, read_tokenizer
from ..measure.evaluation import MERGED
from .refusing import check_dtype

_ADAPTER = ("adapter_config.json", "adapter_model*.safetensors")
_WHOLE = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
_CHECKED_TEXT = (
    "Lima is the capital of Peru. It lies on the coast, and Cusco lies in the mountains."
)
_TOLERANCE = {torch.float32: 1e-3}
"""By how much the logits of a merged model may differ, relative to their size. In other types it is
0.1: sums in half precision differ by some hundredths.
"""
_REFERENCE = "ref"
"""The folder of TRL's copy of an adapter that is trained further: its KL reference."""


def open_policy(source: str, model_args: ModelConfig, args: Any, merged: bool = False) -> Any:
    """The model argument of TRL's trainers. Also sets `args.model_init_kwargs` to fit it; entries
    that are there already win.

    A model's name stays a name: the trainer loads the model, and adds a new adapter with
    `use_peft`. A PEFT adapter becomes a `PeftModel` whose adapter is trained further; with `beta` >
    0 the reference is the adapter as it was at the start.

    Raises `ConfigError` for flags that do not fit together, layers that the model does not have,
    and a model that cannot be opened.
    """
    base = adapter_base(source, model_args.model_revision)
    check_flags(source, model_args, args, base is not None, merged)
    trusted = {"trust_remote_code": getattr(args, "trust_remote_code", False)}  # TRL's has it
    kwargs = {**trusted, **model_init_kwargs(model_args), **(args.model_init_kwargs or {})}
    if base:
        args.model_init_kwargs = None  # TRL refuses them beside a model that is loaded already
        return read_model(AutoModelForCausalLM, source, trainable=True, **kwargs)
    if model_args.use_peft and model_args.lora_target_modules not in (None, "all-linear"):
        # a single layer's name becomes a list: PEFT takes a string for a pattern
        model_args.lora_target_modules = cast(list[str], _targets(source, model_args, trusted))
    args.model_init_kwargs = kwargs
    return source


def model_init_kwargs(model_args: ModelConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained`: revision, dtype, attention and quantisation of TRL's
    `ModelConfig`.
    """
    check_dtype(model_args.dtype)
    kwargs: dict[str, Any] = {
        "revision": model_args.model_revision,
        "dtype": model_args.dtype,
        "attn_implementation": model_args.attn_implementation,
    }
    bits = _quantised(model_args)
    if bits:
        if find_spec("bitsandbytes") is None:
            raise ConfigError(
                f"--{bits} true needs bitsandbytes: pip install 'faithful-search[qlora]'"
            )
        kwargs["quantization_config"] = get_quantization_config(model_args)
    return kwargs


def check_flags(
    source: str, model_args: ModelConfig, args: Any, is_adapter: bool, merged: bool
) -> None:
    """Raise `ConfigError` for flags that contradict each other or would be ignored."""
    bits = _quantised(model_args)
    if is_adapter and model_args.use_peft:
        raise ConfigError(
            f"{source!r} is already an adapter: leave out --use_peft to train it further, or "
            "faithful-search merge it"
        )
    targets = model_args.lora_target_modules or ()
    names = [targets] if isinstance(targets, str) else targets
    if "lm_head" in names:
        raise ConfigError(
            "TRL cannot train an adapter on lm_head: take it out, or train it whole by "
            "--lora_modules_to_save lm_head"
        )
    if bits and getattr(args, "use_vllm", False):
        raise ConfigError(
            f"--{bits} true with --use_vllm true: an adapter that is merged into quantised weights "
            "changes them"
        )
    if is_adapter or model_args.use_peft:
        return
    if bits:
        raise ConfigError(
            f"quantised weights cannot be trained: --{bits} true needs --use_peft true"
        )
    unused = [
        field.name
        for field in fields(model_args)
        if field.name.startswith(("lora_", "use_rslora", "use_dora"))
        and getattr(model_args, field.name) != field.default
    ]
    if unused:
        raise ConfigError(f"without --use_peft true these have no effect: {', '.join(unused)}")
    if merged:
        raise ConfigError(
            "--save_merged true: without --use_peft true there is no adapter to merge"
        )


def _targets(source: str, model_args: ModelConfig, trusted: dict[str, Any]) -> str | list[str]:
    """The layers that `--lora_target_modules` names: a pattern, or a list of names.

    Raises `ConfigError` for a name that no layer has: PEFT ignores it if another name fits.
    """
    targets = cast("str | list[str]", model_args.lora_target_modules)
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
    if isinstance(targets, str):
        is_pattern = any(re.fullmatch(targets, path[1:]) for path in layers)
        if targets not in ends and is_pattern:
            return targets
    names = [targets] if isinstance(targets, str) else targets
    unknown = [name for name in names if not any(path.endswith(f".{name}") for path in layers)]
    if unknown:
        linear = {
            path.rpartition(".")[2]
            for path, layer in layers.items()
            if isinstance(layer, torch.nn.Linear)
        }
        raise ConfigError(
            f"--lora_target_modules: {source} has no {', '.join(unknown)}; its linear layers are "
            f"{', '.join(sorted(linear - {'lm_head'}))}, and all-linear means all of them"
        )
    return names


def _quantised(model_args: ModelConfig) -> str | None:
    """The flag that asks for quantised weights, if one does."""
    if model_args.load_in_4bit:
        return "load_in_4bit"
    return "load_in_8bit" if model_args.load_in_8bit else None


def save_policy(trainer: Any, dtype: str | None = None, merged: bool = False) -> None:
    """Save policy and tokenizer to the trainer's `output_dir`. Every process must call it.

    An adapter is saved as an adapter. With `merged` the full model is saved, too, in
    `output_dir/merged`: the main process merges the saved adapter into the base model's own files,
    on its CPU. `dtype` is the data type of full and merged weights, by default that of training.

    Raises `ConfigError` if no weights were written.
    """
    if trainer.is_fsdp_enabled:  # by default FSDP writes shards
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    out = Path(trainer.args.output_dir)
    trainer.save_model(str(out))
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        adapter = is_peft_model(model)
        trusted = getattr(trainer.args, "trust_remote_code", False)  # TRL's has it
        if not any(out.glob("*.safetensors")):
            advice = "under ZeRO-3 set zero3_save_16bit_model: true in accelerate's configuration"
            raise ConfigError(
                f"no weights were written to {out}: {advice}. The last checkpoint has them, sharded"
            )
        if not adapter and dtype:
            with _unsharded():
                converted = AutoModelForCausalLM.from_pretrained(
                    out, dtype=dtype, trust_remote_code=trusted
                )
            _remove(out, _WHOLE)  # a smaller dtype may have fewer shards
            converted.save_pretrained(out)
        # The folder shall hold one policy: files of the other kind, a merged model of an earlier
        # run and TRL's reference are removed
        _remove(out, _WHOLE if adapter else _ADAPTER)
        for folder, sign in ((_REFERENCE, _ADAPTER[0]), (MERGED, _WHOLE[0])):
            if (out / folder / sign).exists():
                shutil.rmtree(out / folder)
        if adapter and merged:
            merge_adapter(out, out / MERGED, dtype or model.config.dtype, trusted)
        for file in out.rglob("*.safetensors"):
            _readable(file)
    trainer.accelerator.wait_for_everyone()


def _readable(file: Path) -> None:
    """Give a file the usual permissions of a new file: safetensors lets only its owner read it."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def merge_adapter(
    adapter: str | Path,
    out: str | Path,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """Merge an adapter into its base model and write the full model to `out`.

    A model at `out` is replaced only when the new one is complete and gives the same logits as the
    adapter on a short text. An adapter that was trained on quantised weights is merged into the
    full ones, which it has not seen: measure the result.

    Args:
        adapter: a folder or Hub id.
        out: the folder for the full model.
        dtype: data type of the weights; by default that of the base model's files.
        trust_remote_code: run the Python code beside the base model.

    Returns `out`. Raises `ConfigError` if there is no adapter, if its base model cannot be opened
    or is quantised itself, if `out` holds something other than a model, and if the merged model
    disagrees with the adapter.
    """
    source, out = str(adapter), Path(out)
    if adapter_base(source) is None:
        raise ConfigError(f"there is no PEFT adapter in {source}: nothing to merge")
    if Path(source).resolve().is_relative_to(out.resolve()):
        raise ConfigError(
            f"the merged model would replace the adapter in {source}: choose another folder than "
            f"{out}"
        )
    is_model = (out / "config.json").exists()
    if out.exists() and not is_model and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} already exists and is not a model directory; choose another folder"
        )
    trusted: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    tokenizer = read_tokenizer(source, **trusted)
    with _unsharded(), torch.no_grad():  # only this process merges, so nothing may be shared out
        model = read_model(AutoModelForCausalLM, source, dtype=dtype or "auto", **trusted).eval()
        merged = _merged(model, tokenizer(_CHECKED_TEXT, return_tensors="pt")["input_ids"], source)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written to a folder beside it, so that an error leaves `out` as it is
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as work:
        new = Path(work) / "new"
        merged.save_pretrained(new)
        tokenizer.save_pretrained(new)
        if out.exists():
            out.rename(Path(work) / "old")
        new.rename(out)
    return out


def _merged(model: Any, ids: torch.Tensor, source: str) -> Any:
    """The PEFT model merged into a full one. Raises `ConfigError` where their logits differ."""
    if getattr(model, "quantization_method", None) is not None:
        advice = "name the full one as `base_model_name_or_path` in adapter_config.json"
        raise ConfigError(
            f"the base model of {source} is quantised and cannot be merged into; {advice}"
        )
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    # PEFT wraps the layers that it adapts
    own_embeddings = getattr(embeddings, "base_layer", embeddings)
    own_head = getattr(head, "base_layer", head)
    is_adapted = own_embeddings is not embeddings or own_head is not head
    if is_adapted and own_head.weight is own_embeddings.weight:
        # Merging into one of two tied matrices would change the other one, too
        own_head.weight = nn.Parameter(own_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
    logits = model(input_ids=ids).logits.float()
    try:
        merged = model.merge_and_unload(safe_merge=True)  # which refuses NaN
    except ValueError as error:
        raise ConfigError(f"the adapter in {source} cannot be merged: {error}") from error
    difference = (merged(input_ids=ids).logits.float() - logits).abs().mean()
    relative = difference / logits.abs().mean().clamp(min=1e-6)
    if not relative <= _TOLERANCE.get(merged.dtype, 0.1):  # NaN is refused, too
        raise ConfigError(
            f"{source} merged in {merged.dtype} gives other logits, by {relative:.1%}: use the "
            "adapter itself"
        )
    return merged


@contextmanager
def _unsharded() -> Iterator[None]:
    """Switch ZeRO-3 off within the block, which only the main process runs: ZeRO-3 would shard a
    model that is loaded over all processes.
    """
    before = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = before


def _remove(folder: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for file in folder.glob(pattern):
            file.unlink()
