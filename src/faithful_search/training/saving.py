"""Trained policies on disk: whole, as an adapter, or as an adapter merged into its base model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.integrations import deepspeed

from ..errors import ConfigError
from ..inference.loading import adapter_base, read_model, read_tokenizer
from ..measure.evaluation import MERGED

_ADAPTER = ("adapter_config.json", "adapter_model*.safetensors")
_WHOLE = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
_PROBE = "Lima is the capital of Peru. It lies on the coast, and Cusco lies in the mountains."
_OFF = {torch.float32: 1e-3}  # relative to the logits; else 0.1: sums in half precision are off by some hundredths
_REFERENCE = "ref"  # TRL's copy of an adapter that is trained further, its KL reference


def check_merge(trainer: Any, merged: bool) -> None:
    """Raise `ConfigError` before training if there will be nothing to merge after it."""
    if merged and not is_peft_model(trainer.accelerator.unwrap_model(trainer.model)):
        raise ConfigError(
            "--save_merged true: without --use_peft true there is no adapter to merge, the policy is saved whole"
        )


def save_policy(trainer: Any, dtype: str | None = None, merged: bool = False) -> None:
    """Save policy and tokenizer to the trainer's `output_dir`; called by every process.

    An adapter is saved as such, with `merged` also the full model, in `output_dir/merged`. The trainer gathers sharded
    weights. The main process merges what was saved, on its CPU: the base model is read again, unquantised and
    unsharded, so that it does not matter how the adapter was trained.

    `dtype` is that of full and merged weights; by default that of training.

    Raises:
        ConfigError: if the trainer wrote no weights, or as `merge_adapter`.
    """
    if trainer.is_fsdp_enabled:  # shards would not be written
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    out = Path(trainer.args.output_dir)
    trainer.save_model(str(out))
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        adapter, trusted = is_peft_model(model), getattr(trainer.args, "trust_remote_code", False)  # TRL's has it
        if not any(out.glob("*.safetensors")):
            raise ConfigError(
                f"no weights were written to {out}; under DeepSpeed ZeRO-3 set zero3_save_16bit_model: true in the "
                "configuration of accelerate. The last checkpoint has them, sharded"
            )
        if not adapter and dtype:
            old = set(out.glob("*.safetensors")) | set(out.glob("*.safetensors.index.json"))
            # Converted beside the original, which stays until all of the new one is written.
            with TemporaryDirectory(dir=out, prefix=".converting-") as work:
                with _unsharded():
                    AutoModelForCausalLM.from_pretrained(out, dtype=dtype, trust_remote_code=trusted).save_pretrained(
                        work
                    )
                new = [file.replace(out / file.name) for file in Path(work).iterdir()]
            for file in old - set(new):  # a smaller dtype may have fewer shards
                file.unlink()
        # Leave one policy: an earlier run's files of the other kind, its merged model and TRL's reference go.
        for file in (file for pattern in (_WHOLE if adapter else _ADAPTER) for file in out.glob(pattern)):
            file.unlink()
        for folder, sign in ((_REFERENCE, _ADAPTER[0]), (MERGED, _WHOLE[0])):
            if (out / folder / sign).exists():
                shutil.rmtree(out / folder)
        if adapter and merged:
            merge_adapter(out, out / MERGED, dtype or model.config.dtype, trusted)
    trainer.accelerator.wait_for_everyone()


def merge_adapter(
    adapter: str | Path, out: str | Path, dtype: str | torch.dtype | None = None, trust_remote_code: bool = False
) -> Path:
    """Write the base model with the adapter merged into its weights to `out`, for `from_pretrained` without PEFT.

    Works on the CPU. A model at `out` is replaced only when the new one is complete. The merged model has to agree with
    the adapter on a short text, else nothing is written. An adapter that was trained on quantised weights is merged
    into the full ones, which it has not seen: measure the result.

    `dtype` is by default that of the base model's files; `trust_remote_code` runs the base model's own Python code.

    Raises:
        ConfigError: if there is no adapter, its base model cannot be opened or is quantised itself, `out` holds
            something other than a model, or the merged model disagrees with the adapter.
    """
    source, out = str(adapter), Path(out)
    if adapter_base(source) is None:
        raise ConfigError(f"there is no PEFT adapter in {source}: nothing to merge")
    if Path(source).resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"the merged model would replace the adapter in {source}: choose another folder than {out}")
    if out.exists() and not (out / "config.json").exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists and is not a model directory; choose another folder")
    trusted: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    tokenizer = read_tokenizer(source, **trusted)
    with _unsharded(), torch.no_grad():  # only this process merges, so nothing may be shared out
        model = read_model(AutoModelForCausalLM, source, dtype=dtype or "auto", **trusted).eval()
        merged = _merged(model, tokenizer(_PROBE, return_tensors="pt")["input_ids"], source)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as work:  # an error leaves `out` as it is
        merged.save_pretrained(Path(work) / "new")
        tokenizer.save_pretrained(Path(work) / "new")
        if out.exists():
            out.rename(Path(work) / "old")
        (Path(work) / "new").rename(out)
    return out


def _merged(model: Any, ids: torch.Tensor, source: str) -> Any:
    if getattr(model, "quantization_method", None) is not None:
        raise ConfigError(
            f"the base model of {source} is quantised and cannot be merged into; name the full one as "
            "`base_model_name_or_path` in adapter_config.json"
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
    off = (merged(input_ids=ids).logits.float() - wanted).abs().mean() / wanted.abs().mean().clamp(min=1e-6)
    if not off <= _OFF.get(merged.dtype, 0.1):  # NaN is refused, too
        raise ConfigError(f"{source} merged in {merged.dtype} gives other logits, by {off:.1%}: use the adapter itself")
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
