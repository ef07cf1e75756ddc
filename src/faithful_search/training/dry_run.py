"""Dry runs: two steps of a recipe on a CPU, with a random model of the architecture that its settings name.

What needs a GPU, a network or a service is replaced; every other setting stays as it is, so that a dry run shows
whether all keys are known and fit together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, set_seed
from trl.chat_template_utils import qwen2_5_chat_template

from .. import dialects
from ..bundled import BUNDLED
from ..errors import ConfigError
from ..inference.loading import read_tokenizer
from ..tasks import WORLD, read_rows, world_file
from ..wire.redact import redact
from .policies import check_flags
from .vllm import check_vllm

SUFFIX = "_dry_run"
"""Of the output directory: a dry run touches nothing that a real one left."""
MACHINE: dict[str, Any] = {"use_cpu": True, "tf32": None}
"""What a CPU could not accept: replaced even when the settings are first checked as they are."""
_MOST = {"max_steps": 2, "eval_limit": 4, "eval_episodes": 4, "turn_tokens": 16, "max_completion_length": 192}
_ALWAYS: dict[str, Any] = {
    **MACHINE,
    **dict.fromkeys(("use_vllm", "use_liger_kernel", "load_in_4bit", "load_in_8bit", "fp16", "torch_compile"), False),
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "tool_cache", "searxng_url")),
    **dict.fromkeys(("web_search", "browse", "report_to"), "none"),
    **dict.fromkeys(("resume", "push_to_hub"), False),
    "overwrite_output_dir": True,
    "max_abstained": 1.0,  # a random model that judges, itself or others, seldom says what can be read
}
QWEN2 = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151_936, True),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151_936, True),
    "Qwen2.5-3B": (2048, 11_008, 36, 16, 2, 151_936, True),
    "Qwen2.5-7B": (3584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen2.5-14B": (5120, 13_824, 48, 40, 8, 152_064, False),
}
"""`FIELDS` of published configurations, by what the names of their repositories begin with."""
FIELDS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "tie_word_embeddings"),
)
LAYERS, HEAD, GROUPS = 2, 8, 2


def check_given(script: Any, args: Any, model_args: Any) -> None:
    """Raise `ConfigError` if the real run would be refused for settings that a dry run replaces."""
    source = str(model_args.model_name_or_path)
    check_flags(source, model_args, args, (Path(source) / "adapter_config.json").exists())
    check_vllm(args)


def rehearse(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dry run, made of all settings by name; prints what was replaced.

    Its random model is in its output directory. Raises `ConfigError` for an architecture that is not known.
    """
    out, model, state = f"{values['output_dir']}{SUFFIX}", str(values["model_name_or_path"]), PartialState()
    given = {key: values[key] for key in _MOST if key in values}
    sizes = {key: _MOST[key] if value is None or value < 0 else min(value, _MOST[key]) for key, value in given.items()}
    # As few rows as make whole groups; unchanged where the batches of rollouts are given otherwise.
    if values["steps_per_generation"] is None and values["generation_batch_size"] is None:
        rows = values["per_device_train_batch_size"]
        parts = math.lcm(rows, values["num_generations"]) // rows
        sizes["gradient_accumulation_steps"] = min(values["gradient_accumulation_steps"], parts)
    # The bundled world in place of questions, passages and facts from files or services.
    questions = "world_passages" if dialects.load(values["dialect"]).search_tool else "world"
    world = {key: questions for key in ("questions", "eval_questions") if values[key] not in WORLD}
    if "eval_questions" in world:
        world["eval_split"] = "validation"  # the one given may be none of the world's
    facts = ("corpus", "triples", "domain_corpus")
    world |= {key: "world" for key in facts if values[key] not in ("none", *WORLD)}
    replaced = {**sizes, **world, **_ALWAYS, "output_dir": out}
    if values.get("cassette"):  # its recorded answers need no network
        replaced = {key: value for key, value in replaced.items() if key not in ("web_search", "browse")}
    optimizer = values.get("optim")
    if any(
        word in str(getattr(optimizer, "value", optimizer)) for word in ("8bit", "4bit", "paged", "apex", "ademamix")
    ):
        replaced["optim"] = "adamw_torch"
    if "flash" in str(values.get("attn_implementation")):
        replaced["attn_implementation"] = None
    if model not in BUNDLED:
        path = str(Path(out) / "random_model")
        with state.main_process_first():  # the others go on when the model is there to be read
            if state.is_main_process:
                build_shrunk(model, path)
        replaced["model_name_or_path"] = path
        if values["judge"] != "lexical":  # a judge with a model may have to write, too
            replaced |= {"judge": "generator", "judge_model": path, "judge_url": None}
    changed = {key: new for key, new in replaced.items() if key in values and new != values[key]}
    width = max(map(len, changed), default=0)
    state.print("dry run on a CPU, two steps; replaced:")
    for key in filter(changed.__contains__, values):
        state.print(redact(f"  {key:<{width}}  {values[key]} -> {changed[key]}"))
    return {**values, **changed}


def config_of(name: str) -> Any:
    """The Transformers configuration of the model in a directory, or of a name in `QWEN2` (else `ConfigError`)."""
    if Path(name).is_dir():
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} has no readable model configuration: {error}") from error
    known = next((sizes for key, sizes in QWEN2.items() if f"{name}-".rpartition("/")[2].startswith(f"{key}-")), None)
    if known is None:
        raise ConfigError(f"the architecture of {name!r} is not known: give a directory, or one of {', '.join(QWEN2)}")
    sizes: dict[str, Any] = dict(zip(FIELDS, known, strict=True))
    return Qwen2Config(**sizes, max_position_embeddings=32_768)


def build_shrunk(name: str, out: str | Path) -> Path:
    """Write a random model of the architecture of `name` to `out`: two narrow layers, everything else as there.

    The tokenizer is the directory's own, else one of bytes and what the bundled world often spells, with Qwen2.5's chat
    template.

    Raises:
        ConfigError: for an architecture that is not known or has no grouped heads to keep.
    """
    config, out = config_of(name), Path(out)
    tokenizer = read_tokenizer(name) if (Path(name) / "tokenizer_config.json").exists() else _byte_tokenizer()
    values = config.to_dict()
    if not {"num_attention_heads", "num_key_value_heads"} <= values.keys():
        raise ConfigError(f"a model of type {config.model_type!r} cannot be shrunk: it has no grouped heads")
    heads = GROUPS * config.num_attention_heads // config.num_key_value_heads
    values |= {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": GROUPS,
        "hidden_size": heads * HEAD,
        "intermediate_size": 2 * heads * HEAD,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "layer_types": None,  # one for each layer that was there; Transformers makes them anew
        **({"head_dim": HEAD} if values.get("head_dim") else {}),
    }
    set_seed(0)  # the same dry run twice samples the same
    AutoModelForCausalLM.from_config(type(config)(**values)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    backend, level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer, backend.decoder = level, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=level.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator((row["text"] for row in read_rows(world_file("passages.jsonl.gz"))), trainer)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=qwen2_5_chat_template, **ends)
