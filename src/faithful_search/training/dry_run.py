"""Dry runs: two steps of a recipe on a CPU, with a random model of the architecture that its
settings name.

What needs a GPU, a network or a service is replaced (`data/dry_run.yaml`); every other setting
stays as it is, so that a dry run shows whether all keys are known and fit together.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from accelerate import PartialState
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    Qwen2Tokenizer,
    set_seed,
)
from trl.chat_template_utils import qwen2_5_chat_template

from .. import dialects, suites
from ..bundled import BUNDLED, bundled_policy, shipped, world_file
from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.base import Generator
from ..inference.loading import read_tokenizer
from ..json_lines import read_rows
from ..judges import WORDS, Request
from ..judges.generator import GeneratorJudge
from ..tasks import Task
from ..tools import Toolbox
from ..trajectory import read_jsonl
from ..wire.redact import redact
from ..yaml_files import load_yaml
from .refusing import cold_start_of, read_config

REPLACED: dict[str, dict[str, Any]] = load_yaml(shipped("data") / "dry_run.yaml")
MACHINE, MODELS = REPLACED["machine"], REPLACED["models"]
ENCODERS = ("bert", "mpnet")
"""Types of models that read only."""
LAYERS, HEAD, GROUPS = 2, 8, 2
WRONG = "Atlantis"
"""What scripts and judges of a dry run say that is not so."""
_ALL_IF_0 = ("limit", "episodes")


def rehearse(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dry run, made from all settings by name. Prints what was replaced.

    The dry run has an output directory of its own, which also holds its random model. Raises
    `ConfigError` for an unknown architecture.
    """
    replaced: dict[str, Any] = {
        **MACHINE,
        **REPLACED["always"],
        "output_dir": f"{values['output_dir']}_dry_run",
        **_shortened(values),
    }
    if "num_generations" in values:  # a recipe with rollouts
        replaced |= _fewest_rows(values) | _bundled_world(values)
    else:
        replaced |= REPLACED["lists"]
        if values.get("rubric"):
            replaced["rubric"] = REPLACED["rubric"]
    optimizer = str(getattr(values["optim"], "value", values["optim"]))
    if any(word in optimizer for word in ("8bit", "4bit", "paged", "apex", "ademamix")):
        replaced["optim"] = "adamw_torch"
    if "flash" in str(values["attn_implementation"]):
        replaced["attn_implementation"] = None
    replaced |= _random_models(values, replaced["output_dir"])
    changed = {
        name: replaced[name]
        for name in values
        if name in replaced and replaced[name] != values[name]
    }
    width = max(map(len, changed))
    state = PartialState()
    state.print("dry run on a CPU, two steps; replaced:")
    for name, new in changed.items():
        state.print(redact(f"  {name:<{width}}  {values[name]} -> {new}"))
    return {**values, **changed}


def _shortened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that may be at most so great; 0 and less mean all there is where something is
    limited.
    """
    shortened = {}
    for name, most in REPLACED["most"].items():
        value = values.get(name)
        if name in values:
            is_open = value is None or value < 0 or (value == 0 and name in _ALL_IF_0)
            shortened[name] = most if is_open else min(value, most)
    return shortened


def _fewest_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fewest rows that make whole groups; nothing if the batch of rollouts is set otherwise."""
    if values["steps_per_generation"] is not None or values["generation_batch_size"] is not None:
        return {}
    rows = values["per_device_train_batch_size"]
    parts = math.lcm(rows, values["num_generations"]) // rows
    return {"gradient_accumulation_steps": min(values["gradient_accumulation_steps"], parts)}


def _bundled_world(values: Mapping[str, Any]) -> dict[str, Any]:
    """Bundled questions, passages and facts in place of those from files and services."""
    replaced: dict[str, Any] = {}
    bundled = REPLACED["data"]
    on_the_web = any(values[name] != "none" for name in ("web_search", "browse"))
    if values.get("cassette"):  # which replays recorded answers, without a network
        replaced |= {name: values[name] for name in ("web_search", "browse")}
    for name in ("corpus", "triples", "domain_corpus"):
        if values[name] != "none" and suites.with_corpus(values[name]) is None:
            replaced[name] = bundled["facts"]
    if on_the_web and values["corpus"] == "none":  # else there would be no tool
        replaced["corpus"] = bundled["facts"]
    searches_only = bool(dialects.load(values["dialect"]).search_tool)
    has_passages_only = searches_only or values["triples"] == "none"
    questions = bundled["questions_on_passages" if has_passages_only else "questions"]
    for name in ("questions", "eval_questions"):
        if suites.with_corpus(values[name]) is None:
            replaced[name] = questions
            replaced["eval_split"] = bundled["eval_split"]
    return replaced


def _random_models(values: Mapping[str, Any], out: str) -> dict[str, Any]:
    """A random model in place of the policy's, and of a judge or a writer that is a model."""
    model = str(values["model_name_or_path"])
    replaced: dict[str, Any] = {}
    path = bundled_policy(model, values.get("dialect", "pou"))
    if model not in BUNDLED:
        path = str(Path(out) / "random_model")
        replaced["model_name_or_path"] = path
        state = PartialState()
        with state.main_process_first():  # the others wait until the model is there
            if state.is_main_process:
                build_shrunk(model, path)
    has_writer = values.get("writer_model") is not None
    if has_writer:
        replaced |= {"writer_model": None, "writer_url": None}
    if has_writer or (values.get("judge") is not None and values["judge"] not in WORDS):
        # A generator, since the judge may have to write
        replaced |= {"judge": "generator", "judge_model": path, "judge_url": None}
    return replaced


def settings_of_start(model: str) -> dict[str, Any]:
    """The base model of a cold start and the settings of its adapter, from the configuration that
    makes it; nothing for other models.
    """
    config = cold_start_of(model)
    if config is None:
        return {}
    settings = read_config(config)
    return {
        name: setting
        for name, setting in settings.items()
        if name in ("model_name_or_path", "use_peft") or name.startswith("lora_")
    }


def before_its_start(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with the model that a cold start begins with in place of a cold start that does
    not exist yet, and its adapter's settings. Prints the replacement.
    """
    model = str(values["model_name_or_path"])
    start = settings_of_start(model)
    if Path(model).exists() or not start:
        return dict(values)
    PartialState().print(
        f"dry run: {model} is not there yet, so it starts from {start['model_name_or_path']}"
    )
    return {**values, **start}


def config_of(name: str) -> Any:
    """The Transformers configuration of the model in a directory, of a name in `MODELS`, or of the
    model that a configuration of the package makes there. Raises `ConfigError` for anything else.
    """
    if Path(name).is_dir():
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} has no readable model configuration: {error}") from error
    base_name = name.rpartition("/")[2]
    for key, sizes in MODELS.items():
        if f"{base_name}-".startswith(f"{key}-"):
            config = AutoConfig.for_model(**sizes)
            if sizes["model_type"] not in ENCODERS:
                config.max_position_embeddings = 32_768
            return config
    start = cold_start_of(name)
    if start is not None:
        return config_of(str(read_config(start)["model_name_or_path"]))
    raise ConfigError(
        f"the architecture of {name!r} is not known: give a directory, or one of {', '.join(MODELS)}"
    )


def build_shrunk(name: str, out: str | Path) -> Path:
    """Write a random model with the architecture of the model `name`, but only two narrow layers,
    to `out`.

    The tokenizer is that of the directory `name`. If it has none, it is trained on the bundled
    world. Raises `ConfigError` for an architecture without attention heads.
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
    if "num_attention_heads" not in values:
        raise ConfigError(
            f"a model of type {config.model_type!r} cannot be shrunk: it has no attention heads"
        )
    heads = GROUPS
    if values.get("num_key_value_heads"):
        heads = GROUPS * config.num_attention_heads // config.num_key_value_heads
        values["num_key_value_heads"] = GROUPS
    values |= {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
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
    kind = AutoModel if config.model_type in ENCODERS else AutoModelForCausalLM
    set_seed(0)  # the same dry run twice samples the same
    kind.from_config(type(config)(**values)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


class Player(Generator):
    """Says what a script says in place of a policy, and counts the turns."""

    turns: int = 0


Play = Callable[[Generator, Sequence[Task], Toolbox, Dialect], Player]
"""Makes a player of the policy, the questions that may be asked, the tools and the dialect."""


@dataclass(frozen=True)
class ScriptedJudge(GeneratorJudge):
    """A judge whose verdicts are the random model's, and whose texts are made of the request."""

    @classmethod
    def of(cls, judge: GeneratorJudge) -> Self:
        return cls(**{field.name: getattr(judge, field.name) for field in fields(judge)})

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        return [_text_for(request) for request in requests]


def _text_for(request: Request) -> str:
    if request.prompt == "claims":
        return f"The answer is {request.fields['answer']}."
    if request.prompt == "lure":
        return f"{request.fields['query']}: {WRONG}."
    return list(request.fields.values())[-1]


def reached(folder: Path, turns: int) -> list[str]:
    """Lines on what a dry run reached: its scripted turns, and in the rollouts of training the
    tools and each of the rewards.
    """
    rollouts = list(read_jsonl(folder / "trajectories.jsonl"))
    steps = [step for rollout in rollouts for step in rollout.steps]
    valid = sum(not step.issues for step in steps)
    calls = Counter(step.call.name for step in steps if step.call is not None)
    values: Counter[str] = Counter()
    for rollout in rollouts:
        for name, value in rollout.meta.get("scores", {}).items():
            values[name] += value is not None
    without = [name for name, count in values.items() if not count]
    lines = [
        f"dry run: {turns} scripted turns, {len(steps)} of them in {len(rollouts)} rollouts of "
        f"training, {valid} valid",
        f"  calls: {_counts(calls) or 'none'}",
        f"  rewards with a value: {_counts(+values) or 'none'}",
    ]
    if without:
        lines.append(f"  rewards without any value: {', '.join(without)}")
    return lines


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))
