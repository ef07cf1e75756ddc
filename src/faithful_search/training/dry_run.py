"""Dry runs: two steps of a recipe on a CPU, with a random model of the architecture that its
settings name.

What needs a GPU, a network or a service is replaced (`data/dry_run.yaml`); every other setting
stays as it is, so that a dry run shows whether all keys are known and fit together.
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

from .. import dialects, suites
from ..bundled import BUNDLED, shipped, world_file
from ..errors import ConfigError
from ..inference.loading import read_tokenizer
from ..json_lines import read_rows
from ..judges import WORDS
from ..wire.redact import redact

REPLACED: dict[str, dict[str, Any]] = yaml.safe_load(
    (shipped("data") / "dry_run.yaml").read_text("utf-8")
)
MACHINE, QWEN2 = REPLACED["machine"], REPLACED["qwen2"]
LAYERS, HEAD, GROUPS = 2, 8, 2


def rehearse(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dry run, made from all settings by name. Prints what was replaced.

    The dry run has an output directory of its own, which also holds its random model. Raises
    `ConfigError` for an unknown architecture.
    """
    out = f"{values['output_dir']}_dry_run"
    model = str(values["model_name_or_path"])
    state = PartialState()
    replaced: dict[str, Any] = {**MACHINE, **REPLACED["always"], "output_dir": out}
    if values.get("cassette"):  # which replays recorded answers, without a network
        replaced |= {name: values[name] for name in ("web_search", "browse")}
    for name, most in REPLACED["most"].items():
        value = values[name]
        replaced[name] = most if value is None or value < 0 else min(value, most)
    # The fewest rows that make whole groups; unchanged if the batch of rollouts is set otherwise
    if values["steps_per_generation"] is None and values["generation_batch_size"] is None:
        rows = values["per_device_train_batch_size"]
        parts = math.lcm(rows, values["num_generations"]) // rows
        replaced["gradient_accumulation_steps"] = min(values["gradient_accumulation_steps"], parts)
    # Bundled questions, passages and facts replace those from files or services
    bundled = REPLACED["data"]
    searches_only = bool(dialects.load(values["dialect"]).search_tool)
    questions = bundled["questions_on_passages" if searches_only else "questions"]
    for name in ("questions", "eval_questions"):
        if suites.with_corpus(values[name]) is None:
            replaced[name] = questions
    if "eval_questions" in replaced:
        replaced["eval_split"] = bundled["eval_split"]
    for name in ("corpus", "triples", "domain_corpus"):
        if values[name] != "none" and suites.with_corpus(values[name]) is None:
            replaced[name] = bundled["facts"]
    optimizer = str(getattr(values["optim"], "value", values["optim"]))
    if any(word in optimizer for word in ("8bit", "4bit", "paged", "apex", "ademamix")):
        replaced["optim"] = "adamw_torch"
    if "flash" in str(values["attn_implementation"]):
        replaced["attn_implementation"] = None
    if model not in BUNDLED:
        path = str(Path(out) / "random_model")
        with state.main_process_first():  # the others wait until the model is there
            if state.is_main_process:
                build_shrunk(model, path)
        replaced["model_name_or_path"] = path
        if values["judge"] is not None and values["judge"] not in WORDS:
            # A generator, since the judge may have to write
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
    """The Transformers configuration of the model in a directory, or of a name in `QWEN2`. Raises
    `ConfigError` for anything else.
    """
    if Path(name).is_dir():
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} has no readable model configuration: {error}") from error
    base_name = name.rpartition("/")[2]
    for key, sizes in QWEN2.items():
        if f"{base_name}-".startswith(f"{key}-"):
            return Qwen2Config(**sizes, max_position_embeddings=32_768)
    raise ConfigError(
        f"the architecture of {name!r} is not known: give a directory, or one of {', '.join(QWEN2)}"
    )


def build_shrunk(name: str, out: str | Path) -> Path:
    """Write a random model with the architecture of the model `name`, but only two narrow layers,
    to `out`.

    The tokenizer is that of the directory `name`. If it has none, it is trained on the bundled
    world. Raises `ConfigError` for an architecture without grouped heads.
    """
    config, out = config_of(name), Path(out)
    if (Path(name) / "tokenizer_config.json").exists():
        tokenizer = read_tokenizer(name)
    else:
        empty = Qwen2Tokenizer(eos_token="<|im_end|>", chat_template=qwen2_5_chat_template)
        texts = (row["text"] for row in read_rows(world_file("passages.jsonl.gz")))
        tokenizer = empty.train_new_from_iterator(
            texts,
            vocab_size=1500,
            new_special_tokens=["<|im_start|>"],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
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
        "layer_types": None,  # Transformers makes them for the layers there are
        **({"head_dim": HEAD} if values.get("head_dim") else {}),
    }
    set_seed(0)  # the same dry run twice samples the same
    AutoModelForCausalLM.from_config(type(config)(**values)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out
