"""Dry runs: two steps of a recipe on a CPU, with a random model of the architecture that its settings name.

What needs a GPU, a network or a service is replaced (`data/dry_run.yaml`); every other setting stays as it is, so that
a dry run shows whether all keys are known and fit together.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2Tokenizer, set_seed
from trl.chat_template_utils import qwen2_5_chat_template

from .. import dialects
from ..bundled import BUNDLED, shipped, world_file
from ..errors import ConfigError
from ..inference.loading import read_tokenizer
from ..tasks import WORLD, read_rows
from ..wire.redact import redact

REPLACED: dict[str, dict[str, Any]] = yaml.safe_load(
    (shipped("data") / "dry_run.yaml").read_text("utf-8")
)
MACHINE, QWEN2 = REPLACED["machine"], REPLACED["qwen2"]
LAYERS, HEAD, GROUPS = 2, 8, 2


def rehearse(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dry run, made of all settings by name; prints what was replaced. It has an output directory of
    its own, with its random model. An architecture that is not known is a `ConfigError`."""
    out, model, state = (
        f"{values['output_dir']}_dry_run",
        str(values["model_name_or_path"]),
        PartialState(),
    )
    replaced: dict[str, Any] = {**MACHINE, **REPLACED["always"], "output_dir": out}
    if values.get("cassette"):  # its recorded answers need no network
        replaced |= {name: values[name] for name in ("web_search", "browse")}
    for name, most in REPLACED["most"].items():
        replaced[name] = (
            most if values[name] is None or values[name] < 0 else min(values[name], most)
        )
    # As few rows as make whole groups; unchanged where the batches of rollouts are given otherwise.
    if values["steps_per_generation"] is None and values["generation_batch_size"] is None:
        rows = values["per_device_train_batch_size"]
        parts = math.lcm(rows, values["num_generations"]) // rows
        replaced["gradient_accumulation_steps"] = min(values["gradient_accumulation_steps"], parts)
    # The bundled world in place of questions, passages and facts from files or services.
    questions = "world_passages" if dialects.load(values["dialect"]).search_tool else "world"
    replaced |= {
        name: questions for name in ("questions", "eval_questions") if values[name] not in WORLD
    }
    if "eval_questions" in replaced:
        replaced["eval_split"] = "validation"  # the one given may be none of the world's
    facts = ("corpus", "triples", "domain_corpus")
    replaced |= {name: "world" for name in facts if values[name] not in ("none", *WORLD)}
    optimizer = str(getattr(values["optim"], "value", values["optim"]))
    if any(word in optimizer for word in ("8bit", "4bit", "paged", "apex", "ademamix")):
        replaced["optim"] = "adamw_torch"
    if "flash" in str(values["attn_implementation"]):
        replaced["attn_implementation"] = None
    if model not in BUNDLED:
        path = str(Path(out) / "random_model")
        with state.main_process_first():  # the others go on when the model is there to be read
            if state.is_main_process:
                build_shrunk(model, path)
        replaced["model_name_or_path"] = path
        if values["judge"] != "lexical":  # a judge with a model may have to write, too
            replaced |= {"judge": "generator", "judge_model": path, "judge_url": None}
    changed = {
        name: replaced[name]
        for name in values
        if name in replaced and replaced[name] != values[name]
    }
    width = max(map(len, changed))
    state.print("dry run on a CPU, two steps; replaced:")
    for name, new in changed.items():
        state.print(redact(f"  {name:<{width}}  {values[name]} -> {new}"))
    return {**values, **changed}


def config_of(name: str) -> Any:
    """The Transformers configuration of the model in a directory, or of a name in `QWEN2` (else `ConfigError`)."""
    if Path(name).is_dir():
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} has no readable model configuration: {error}") from error
    known = next(
        (
            sizes
            for key, sizes in QWEN2.items()
            if f"{name}-".rpartition("/")[2].startswith(f"{key}-")
        ),
        None,
    )
    if known is None:
        raise ConfigError(
            f"the architecture of {name!r} is not known: give a directory, or one of {', '.join(QWEN2)}"
        )
    return Qwen2Config(**known, max_position_embeddings=32_768)


def build_shrunk(name: str, out: str | Path) -> Path:
    """Write a random model of the architecture of `name` to `out`: two narrow layers, everything else as there. The
    tokenizer is the directory's own, else one of bytes and what the bundled world often spells. An architecture without
    grouped heads is a `ConfigError`."""
    config, out = config_of(name), Path(out)
    if (Path(name) / "tokenizer_config.json").exists():
        tokenizer = read_tokenizer(name)
    else:
        empty = Qwen2Tokenizer(eos_token="<|im_end|>", chat_template=qwen2_5_chat_template)
        texts = (row["text"] for row in read_rows(world_file("passages.jsonl.gz")))
        how = {
            "new_special_tokens": ["<|im_start|>"],
            "initial_alphabet": ByteLevel.alphabet(),
            "show_progress": False,
        }
        tokenizer = empty.train_new_from_iterator(texts, vocab_size=1500, **how)
    values = config.to_dict()
    if not {"num_attention_heads", "num_key_value_heads"} <= values.keys():
        raise ConfigError(
            f"a model of type {config.model_type!r} cannot be shrunk: it has no grouped heads"
        )
    heads = GROUPS * config.num_attention_heads // config.num_key_value_heads
    values |= {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": GROUPS,
        "hidden_size": heads * HEAD,
        "intermediate_size": 2 * heads * HEAD,
        "vocab_size": len(tokenizer),
        **{
            f"{end}_token_id": getattr(tokenizer, f"{end}_token_id")
            for end in ("bos", "eos", "pad")
        },
        "layer_types": None,  # one for each layer that was there; Transformers makes them anew
        **({"head_dim": HEAD} if values.get("head_dim") else {}),
    }
    set_seed(0)  # the same dry run twice samples the same
    AutoModelForCausalLM.from_config(type(config)(**values)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out
