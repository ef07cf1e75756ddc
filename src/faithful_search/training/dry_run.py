"""A run's settings made small: what needs a GPU, a network or a service is replaced, every other key stays as it is.

Two steps of the real recipe on a CPU, with a random model of the architecture that the settings name, show that all
keys are known and fit together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState

from ..bundled import BUNDLED
from ..tasks import WORLD
from ..wire.redact import redact
from .architectures import build_shrunk
from .policies import check_flags
from .vllm import check_settings

SUFFIX = "_dry_run"
"""Of the output directory: a dry run touches nothing that a real one left."""

MACHINE: dict[str, Any] = {"use_cpu": True, "tf32": None}
"""What alone is replaced when the settings are read for the first time: that a CPU could not accept."""

_MOST = {"max_steps": 2, "eval_limit": 4, "eval_episodes": 4, "turn_tokens": 16, "max_completion_length": 192}
_ALWAYS: dict[str, Any] = {
    **MACHINE,
    "use_vllm": False,
    "use_liger_kernel": False,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "fp16": False,
    "torch_compile": False,
    "deepspeed": None,
    "fsdp": None,
    "fsdp_config": None,
    "tool_cache": None,
    "web_search": "none",
    "browse": "none",
    "searxng_url": None,
    "resume": False,
    "overwrite_output_dir": True,
    "report_to": "none",
    "push_to_hub": False,
}


def check_given(script: Any, args: Any, model_args: Any) -> None:
    """What is replaced is never seen by those who would refuse it: they are asked about it here, on behalf of a GPU.

    Raises:
        ConfigError: when the real run would be refused.
    """
    source = str(model_args.model_name_or_path)
    check_flags(source, model_args, args, (Path(source) / "adapter_config.json").exists())
    if args.use_vllm:
        check_settings(args)


def rehearse(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dry run, and its random model in the run's output directory; prints what was replaced.

    Args:
        values: every setting by name, those that are at their defaults, too.

    Raises:
        ConfigError: when the model's architecture is not known.
    """
    out = f"{values['output_dir']}{SUFFIX}"
    small = {**values, **_sizes(values), **_services(values), "output_dir": out}
    small.update({key: value for key, value in _ALWAYS.items() if key in values and not _replayed(key, values)})
    small.update({key: value for key, value in _kernels(values).items() if key in values})
    if values["model_name_or_path"] not in BUNDLED:
        small["model_name_or_path"] = _model(str(values["model_name_or_path"]), Path(out), values["dialect"])
    small.update(_judge(values, str(small["model_name_or_path"])))
    _tell(values, small)
    return small


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    def smaller(value: Any, most: int) -> Any:
        return most if value is None or value < 0 else min(value, most)

    return {key: smaller(values[key], most) for key, most in _MOST.items() if key in values} | _batch(values)


def _batch(values: Mapping[str, Any]) -> dict[str, Any]:
    """As few rows as make whole groups; as it is where sampling has a rhythm of its own, which may fit or not."""
    if values["steps_per_generation"] is not None or values["generation_batch_size"] is not None:
        return {}
    parts = math.lcm(values["per_device_train_batch_size"], values["num_generations"])
    parts //= values["per_device_train_batch_size"]
    return {"gradient_accumulation_steps": min(values["gradient_accumulation_steps"], parts)}


def _services(values: Mapping[str, Any]) -> dict[str, Any]:
    """Questions, passages and facts: the bundled world's where they are files or services."""
    questions = "world_passages" if values["dialect"] == "search_r1" else "world"
    changes = {key: questions for key in ("questions", "eval_questions") if values[key] not in WORLD}
    if "eval_questions" in changes:
        changes["eval_split"] = "validation"
    world = {key: "world" for key in ("corpus", "triples", "domain_corpus") if values[key] not in ("none", *WORLD)}
    return {**changes, **world}


def _kernels(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attention and optimizers that are written for GPUs."""
    optim = str(getattr(values.get("optim"), "value", values.get("optim")))
    own = any(word in optim for word in ("8bit", "4bit", "paged", "apex", "ademamix"))
    flash = "flash" in str(values.get("attn_implementation"))
    return {**({"optim": "adamw_torch"} if own else {}), **({"attn_implementation": None} if flash else {})}


def _judge(values: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A judge with a model is the policy's: it judges, and writes lures and summaries, as the real one does."""
    if values["judge"] == "lexical" or model in BUNDLED:
        return {}
    return {"judge": "generator", "judge_model": model, "judge_url": None}


def _replayed(key: str, values: Mapping[str, Any]) -> bool:
    return key in ("web_search", "browse") and bool(values.get("cassette"))


def _model(name: str, out: Path, dialect: str) -> str:
    state, path = PartialState(), out / "random_model"
    with state.main_process_first():
        if state.is_main_process:
            build_shrunk(name, path, dialect)
    return str(path)


def _tell(values: Mapping[str, Any], small: Mapping[str, Any]) -> None:
    changed = {key: new for key, new in small.items() if new != values[key]}
    width, say = max(map(len, changed), default=0), PartialState().print
    say("dry run on a CPU, two steps; replaced:")
    for key, new in changed.items():
        say(redact(f"  {key:<{width}}  {values[key]} -> {new}"))
