"""Estimate what a configuration in `recipes/configs` needs: the memory of a GPU, the time of a
step, and what services are asked. Each figure is printed with its formula.

```
python scripts/estimate.py recipes/configs/pou_qwen2.5-7b.yaml --gpus 8 --zero3
python scripts/estimate.py recipes/configs/pou_qwen2.5-0.5b.yaml --memory 24 --peak 165 --speed 2000
python scripts/estimate.py recipes/configs/ppo_qwen2.5-7b.yaml --gpus 32 --zero3 --peak 312 --steps 1324
python scripts/estimate.py recipes/configs/pokee_qwen2.5-7b.yaml --gpus 8 --zero3 --judge-prices 0.15,0.6
python scripts/estimate.py recipes/configs/sft_qwen2.5-7b.yaml --gpus 8 --zero3 --rows 20000
```

Nothing is measured. Memory follows from the model's shape and the settings. Time, requests and
prices follow from the flags, whose defaults are assumptions: replace them by what your machines do
and your services cost. A GB has 10^9 bytes, and B stands for 10^9 parameters.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM

from faithful_search.bundled import BUNDLED, bundled_policy
from faithful_search.training.dry_run import ENCODERS, config_of, settings_of_start
from faithful_search.training.refusing import read_config

GB = 1e9
RECIPES = {
    "pou": "pou",
    "hack": "pou",
    "veritas": "veritas",
    "ppo": "ppo",
    "pokee": "pokee",
    "self": "self_eval",
    "sft": "sft",
    "rm": "reward_model",
    "eval": "evaluate",
}
"""The recipe of a configuration, by the first word of its name."""
SUPERVISED = ("sft", "reward_model")
QUERIES_PER_CALL = {"pokee": 3}
"""The number of queries in a call of web search, by recipe; 1 in the others."""
USUAL = {
    "max_completion_length": 256,
    "max_length": 1024,
    "max_steps": -1,
    "generation_batch": 64,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "turns": 10,
}
"""The values of settings that a configuration leaves open."""
TILE = (4096, 32_768)
"""The numbers of tokens and of vocabulary entries whose logits TRL computes at once."""
TRAINED_BYTES = 16
"""Bytes of a trained parameter: weight, gradient and AdamW's two moments, in float32."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, or of an encoder.

    Attributes:
        hidden: width of the hidden states.
        intermediate: width within the feed-forward network.
        layers: number of layers.
        keys: width of the keys of a token in a layer, and of its values.
        vocabulary: number of tokens that there are.
        tied: whether the output matrix is the embedding.
        parameters: number of all parameters.
        matrices: inputs and outputs of each linear map in a layer.
    """

    hidden: int
    intermediate: int
    layers: int
    keys: int
    vocabulary: int
    tied: bool
    parameters: int
    matrices: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, name: str) -> "Shape":
        """The sizes of a model in a directory, or with a known name. No weight is loaded."""
        config = config_of(name)
        kind = AutoModel if config.model_type in ENCODERS else AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config)
        layers = model.encoder.layer if config.model_type in ENCODERS else model.model.layers
        linear = [module for module in layers[0].modules() if isinstance(module, torch.nn.Linear)]
        key_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            keys=config.hidden_size // config.num_attention_heads * key_heads,
            vocabulary=config.vocab_size,
            tied=config.tie_word_embeddings,
            parameters=model.num_parameters(),
            matrices=tuple((module.in_features, module.out_features) for module in linear),
        )

    @property
    def body(self) -> int:
        """Number of parameters without an output matrix of its own."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)


@dataclass(frozen=True)
class Part:
    """One line of a sum, with the formula of its value in words."""

    name: str
    value: float
    formula: str


def weight_bytes(config: dict[str, Any]) -> int:
    """Bytes of a weight in the data type that the configuration loads."""
    return 4 if config.get("dtype", "float32") == "float32" else 2


def frozen_bytes(config: dict[str, Any]) -> float:
    """Bytes of a weight that an adapter leaves as it is."""
    if config.get("load_in_4bit"):
        return 0.56
    if config.get("load_in_8bit"):
        return 1
    return weight_bytes(config)


def resident(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """What lies on a GPU all the time, in GB."""
    buffers = Part("CUDA and buffers", flags.rest, "assumed")
    size = weight_bytes(config)
    billions = f"{shape.parameters / GB:.3f} B"
    if config["recipe"] == "evaluate":
        formula = f"{billions} x {size} bytes"
        return [Part("weights", shape.parameters * size / GB, formula), buffers]
    shards = flags.gpus if flags.zero3 else 1
    over = f" / {shards} GPUs" if shards > 1 else ""

    def sharded(name: str, parameters: int, size: float) -> Part:
        formula = f"{parameters / GB:.3f} B x {size} bytes{over}"
        return Part(name, parameters * size / shards / GB, formula)

    trained = adapter(config, shape) or shape.parameters
    parts = [sharded("trained", trained, TRAINED_BYTES)]
    if trained < shape.parameters:
        parts.append(sharded("frozen", shape.parameters, frozen_bytes(config)))
    if config.get("value_trunk"):
        parts.append(sharded("value's trunk", shape.body, TRAINED_BYTES))
    if config.get("beta"):
        # With an adapter the reference is the policy without it
        parameters = 0 if config.get("use_peft") else shape.parameters
        formula = f"{billions} x {size} bytes{over}, none with an adapter"
        parts.append(Part("reference", parameters * size / shards / GB, formula))
    if size == 4:
        parts.append(Part("cast by autocast", shape.parameters * 2 / GB, f"{billions} x 2 bytes"))
    if flags.zero3:
        ends = (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
        layer = sum(inputs * outputs for inputs, outputs in shape.matrices)
        gathered = ends + 2 * layer
        formula = "both ends and two layers x 2 bytes"
        parts.append(Part("gathered at a time", gathered * 2 / GB, formula))
    if config.get("use_vllm"):
        parts.append(_vllm(config, shape, flags))
    return [*parts, buffers]


def _vllm(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> Part:
    """The share of the GPU that vLLM takes, and how many tokens fit into it beside the weights."""
    share = config["vllm_gpu_memory_utilization"]
    token = cached_bytes(shape)
    room = share * flags.memory * GB - shape.parameters * 2 - flags.rest * GB
    episodes = int(room / token / longest_row(config, flags))
    formula = (
        f"{share} x {flags.memory:g} GB; beside weights {int(room / token):,} tokens of "
        f"{token:,} bytes, {episodes} longest episodes"
    )
    return Part("vLLM", share * flags.memory, formula)


def cached_bytes(shape: Shape) -> int:
    """Bytes of the keys and values of a token: two numbers of two bytes."""
    return 4 * shape.layers * shape.keys


def updating(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """What one forward and backward pass takes, in GB, with activations checkpointed."""
    tokens = config["per_device_train_batch_size"] * longest_row(config, flags)
    size = weight_bytes(config)
    layers = shape.layers * (2 if config.get("value_trunk") else 1)
    kept = Part(
        "kept of each layer",
        layers * tokens * shape.hidden * size / GB,
        f"{layers} layers x {tokens:,} tokens x {shape.hidden} x {size} bytes",
    )
    recomputed = Part(
        "one layer recomputed",
        tokens * (20 * shape.hidden + 8 * shape.intermediate) / GB,
        f"{tokens:,} tokens x (20 x {shape.hidden} + 8 x {shape.intermediate:,}) bytes",
    )
    tile_tokens, tile_pieces = TILE
    output_bytes = tile_tokens * tile_pieces * 2
    formula = f"logits by tiles of {tile_tokens} x {tile_pieces} x 2 bytes"
    if not config.get("use_peft"):  # an adapter leaves the output matrix as it is
        output_bytes += 4 * shape.vocabulary * shape.hidden
        formula += ", gradient x 4 bytes"
    return [kept, recomputed, Part("output matrix", output_bytes / GB, formula)]


def sampling(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """What a forward pass without gradient takes, in GB: to sample (without vLLM), and to ask for
    evidence sensitivity.
    """
    rows = min(config["generation_batch"], rollouts(config, 1))
    tokens = rows * longest_row(config, flags)
    token = cached_bytes(shape)
    parts = []
    if flags.zero3 and not config.get("use_vllm"):
        formula = f"{shape.parameters / GB:.3f} B x 2 bytes, all of it at once"
        parts.append(Part("gathered", shape.parameters * 2 / GB, formula))
    layer = Part(
        "one layer",
        tokens * (8 * shape.hidden + 6 * shape.intermediate) / GB,
        f"{tokens:,} tokens x (8 x {shape.hidden} + 6 x {shape.intermediate:,}) bytes",
    )
    cache = Part("keys and values", tokens * token / GB, f"{tokens:,} tokens x {token:,} bytes")
    return [*parts, layer, cache]


def seconds(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """What one step of the optimizer takes, in seconds."""
    if config["recipe"] in SUPERVISED:
        return [_updating(config, shape, flags, config["max_length"] * flags.filled)]
    count = rollouts(config, flags.gpus)
    formula = (
        f"{count // flags.gpus} rollouts x {flags.sampled:,} tokens / {flags.speed:,} a second "
        "and GPU"
    )
    parts = [
        Part("sampling", count / flags.gpus * flags.sampled / flags.speed, formula),
        Part("tools and judge", flags.waiting, "assumed"),
    ]
    if config["recipe"] != "evaluate":
        parts.append(_updating(config, shape, flags, flags.episode))
    # A forward pass takes two operations for each parameter and token
    reading = 2 * shape.parameters * count * flags.episode
    probes = probed_steps(config)
    if probes:
        formula = "2 prompts of half an episode a rollout, forward only"
        parts.append(Part("evidence sensitivity", reading * probes / _rate(flags), formula))
    if config["recipe"] == "self_eval":
        written = config.get("rubric_tokens", 256) + 16
        writing = count / flags.gpus * written / flags.speed
        formula = f"2 prompts of an episode a rollout, and {written} tokens sampled"
        parts.append(Part("self-evaluation", 2 * reading / _rate(flags) + writing, formula))
    return parts


def _rate(flags: argparse.Namespace) -> float:
    """Floating-point operations a second of all GPUs."""
    return float(flags.gpus * flags.peak * 1e12 * flags.use)


def _updating(
    config: dict[str, Any], shape: Shape, flags: argparse.Namespace, length: float
) -> Part:
    """The time in which the rows of a step, of `length` tokens on average, are trained on."""
    tokens = rollouts(config, flags.gpus) * length
    # Operations for each parameter and token: forward 2, backward 4 (2 where weights are frozen),
    # and forward again for the checkpointed activations 2
    operations = (4 if config.get("use_peft") else 6) + 2
    if config["recipe"] not in SUPERVISED and config.get("use_vllm"):
        operations += 2  # the log-probabilities of what vLLM sampled
    if config.get("advantages") == "ppo":
        # It reads values before it trains, and a trunk of their own is trained, too
        trunk = 10 if config.get("value_trunk") else 0
        operations = config.get("num_iterations", 1) * operations + 2 + trunk
    operations += 2 if config.get("beta") else 0
    machine = f"{flags.gpus} x {flags.peak:g} TFLOP/s x {flags.use}"
    formula = f"{operations} x {shape.parameters / GB:.3f} B x {tokens / 1e6:.2f} M / ({machine})"
    return Part("updating", operations * shape.parameters * tokens / _rate(flags), formula)


def probed_steps(config: dict[str, Any]) -> int:
    """How many steps of a rollout are perturbed; none, unless the reward is Proof-of-Use's."""
    if config["recipe"] != "pou" or config.get("reward", "pou") != "pou":
        return 0
    budget = int(config.get("budget", 1))
    return config["turns"] - 1 if budget < 0 else budget


def services(config: dict[str, Any], flags: argparse.Namespace) -> list[Part]:
    """What a step asks of services that may cost money: queries and pages of the web, and requests
    to the judge. Where the policy searches and reads pages, half of its calls are to each tool.
    """
    if config["recipe"] in SUPERVISED:
        return []
    count = rollouts(config, flags.gpus)
    calls = count * min(flags.calls, config["turns"])
    on_the_web = config.get("web_search", "none") != "none"
    reads_pages = config.get("browse", "none") != "none"
    parts = []
    if on_the_web:
        queries_per_call = QUERIES_PER_CALL.get(config["recipe"], 1)
        queries = calls * queries_per_call
        formula = f"{count} rollouts x {flags.calls} calls x {queries_per_call}"
        if reads_pages:
            queries /= 2
            formula += ", half of them to other tools"
        parts.append(Part("web queries", queries, formula))
    if reads_pages:
        parts.append(Part("pages", calls / 2, f"half of {count} rollouts x {flags.calls} calls"))
    requests = judge_requests(config, flags)
    if requests:
        by_rollout = " + ".join(f"{number:g} {name}" for name, number in requests.items())
        total = count * sum(requests.values())
        parts.append(Part("judge", total, f"{count} rollouts x ({by_rollout})"))
    return parts


def judge_requests(config: dict[str, Any], flags: argparse.Namespace) -> dict[str, float]:
    """The number of requests to the judge for a rollout, by what is asked; empty without a judge
    that is a model.
    """
    if config.get("judge") in (None, "lexical", "containment", "facts"):
        return {}
    recipe = config["recipe"]
    calls = min(flags.calls, config["turns"])
    requests: dict[str, float] = {}
    if recipe == "pou":
        if config.get("correctness") == "judge":
            requests["answer"] = 1
        if config.get("reward", "pou") == "pou":
            requests |= {"claims": 1, "support": 1}
        if config.get("lures") == "judge" and probed_steps(config):
            requests["lure"] = probed_steps(config)
    elif recipe in ("veritas", "ppo"):
        thoughts = {"info_think": "w_info_think", "think_search": "w_think_search"}
        requests = {name: calls for name, weight in thoughts.items() if config.get(weight)}
    elif recipe == "pokee" and config.get("correctness", "judge") == "judge":
        requests["answer"] = 1
    if config.get("condense"):
        requests["condensing"] = calls
    return requests


def prices(parts: Sequence[Part], steps: int, flags: argparse.Namespace) -> list[str]:
    """Lines on what a whole training asks of services (`parts` are of one step), and what it
    costs.
    """
    prompt_price, completion_price = map(float, flags.judge_prices.split(","))
    prompt_tokens, completion_tokens = map(float, flags.judge_tokens.split(","))
    judge_price = (prompt_price * prompt_tokens + completion_price * completion_tokens) / 1e6
    price_of = {
        "web queries": flags.search_price / 1000,
        "pages": flags.page_price / 1000,
        "judge": judge_price,
    }
    lines = []
    total = 0.0
    for part in parts:
        count = part.value * steps
        cost = count * price_of[part.name]
        total += cost
        formula = f"a step: {part.formula}; in all {count:,.0f}, price {cost:,.0f}"
        lines.append(f"  {part.name:<22}{part.value:>7,.0f}  {formula}")
    if not lines:
        return ["services: none are asked"]
    rates = (
        f"{flags.search_price:g} for 1,000 queries, {flags.page_price:g} for 1,000 pages, "
        f"{flags.judge_prices} for 1 M tokens of the judge, {flags.judge_tokens} a request"
    )
    return [f"services: price {total:,.0f} in all, at {rates}", *lines]


def longest_row(config: dict[str, Any], flags: argparse.Namespace) -> int:
    """The number of tokens of the longest row: an episode with its prompt, or an example."""
    if config["recipe"] in SUPERVISED:
        return int(config["max_length"])
    return int(flags.prompt + config["max_completion_length"])


def steps_of(config: dict[str, Any], flags: argparse.Namespace) -> int:
    """The number of steps of the optimizer; an evaluation counts as one step."""
    if flags.steps:
        return int(flags.steps)
    if config["recipe"] == "evaluate":
        return 1
    if config["max_steps"] > 0:
        return int(config["max_steps"])
    rows = rollouts(config, flags.gpus) / config.get("num_generations", 1)
    return math.ceil(flags.rows * config["num_train_epochs"] / rows)


def completed(path: str) -> dict[str, Any]:
    """The settings of a configuration, with its recipe, what it leaves open, and the settings of an
    adapter that it continues from.
    """
    settings = read_config(path)
    names = Path(path).stem.split("_")
    # The configurations of an experiment begin with its name, and may end in the recipe's
    recipe = RECIPES.get(names[0]) or RECIPES.get(names[-1])
    if recipe is None:  # pou has the rewards of the literature
        recipe = "pou" if "model_name_or_path" in settings else "evaluate"
    config = {"recipe": recipe, **USUAL, **settings}
    if recipe == "evaluate":
        episodes = config.get("limit", 300) * config.get("samples", 1)
        config["per_device_train_batch_size"] = episodes
        config["max_completion_length"] = config.get("total_tokens", 2048)
        config.setdefault("model_name_or_path", config.get("model", "tiny"))
    config.setdefault("model_name_or_path", "tiny")
    return {**settings_of_start(config["model_name_or_path"]), **config}


def rollouts(config: dict[str, Any], gpus: int) -> int:
    """The number of rollouts, or examples, in a step of the optimizer, over all processes."""
    return config["per_device_train_batch_size"] * config["gradient_accumulation_steps"] * gpus


def adapter(config: dict[str, Any], shape: Shape) -> int:
    """The number of parameters of LoRA on all linear maps; 0 without an adapter."""
    if not config.get("use_peft"):
        return 0
    rank = config.get("lora_r", 16)
    return shape.layers * rank * sum(inputs + outputs for inputs, outputs in shape.matrices)


def total_of(parts: Sequence[Part]) -> float:
    return sum(part.value for part in parts)


def lines(title: str, parts: Sequence[Part], unit: str, note: str = "") -> list[str]:
    """A line for the sum, and one for each of its parts."""
    total = f"{title}: {total_of(parts):.1f} {unit}{note}"
    return [total, *(f"  {part.name:<22}{part.value:>7.1f}  {part.formula}" for part in parts)]


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--zero3", action="store_true", help="what is trained is sharded over the GPUs"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="steps of the optimizer; by default those of the configuration",
    )
    parser.add_argument("--memory", type=float, default=80, help="GB of a GPU")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument(
        "--episode", type=int, default=3500, help="tokens of an episode on average, prompt included"
    )
    parser.add_argument(
        "--sampled", type=int, default=1000, help="tokens of an episode that the policy samples"
    )
    parser.add_argument(
        "--speed",
        type=int,
        default=2500,
        help="tokens a second that a GPU samples, all rows together",
    )
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s of a GPU in bfloat16")
    parser.add_argument(
        "--use", type=float, default=0.35, help="share of the peak that training reaches"
    )
    parser.add_argument(
        "--waiting", type=float, default=60, help="seconds a step waits for tools and judge"
    )
    parser.add_argument(
        "--rest", type=float, default=2, help="GB of CUDA, communication and fragments"
    )
    parser.add_argument("--calls", type=int, default=3, help="tool calls of a rollout on average")
    parser.add_argument(
        "--rows", type=int, default=10_000, help="questions or examples, where epochs are counted"
    )
    parser.add_argument(
        "--filled", type=float, default=0.5, help="share of max_length that an example takes"
    )
    parser.add_argument(
        "--search-price", type=float, default=1, help="price of 1,000 queries to the web search"
    )
    parser.add_argument("--page-price", type=float, default=0, help="price of 1,000 pages")
    parser.add_argument(
        "--judge-prices",
        default="0,0",
        help="prices of 1 M prompt tokens and of 1 M completion tokens, as 0.15,0.6",
    )
    parser.add_argument(
        "--judge-tokens",
        default="1200,60",
        help="prompt tokens and completion tokens of a request to the judge",
    )
    return parser.parse_args(argv)


def memory(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[str]:
    """Lines on the memory of a GPU: what is there all the time, and what each phase adds."""
    always = resident(config, shape, flags)
    phases: dict[str, list[Part]] = {}
    if config["recipe"] != "evaluate":
        phases["updating"] = updating(config, shape, flags)
    if probed_steps(config):
        phases["sampling and probing"] = sampling(config, shape, flags)
    elif config["recipe"] not in SUPERVISED and not config.get("use_vllm"):
        phases["sampling"] = sampling(config, shape, flags)
    largest_phase = max(total_of(parts) for parts in phases.values())
    total = total_of(always) + largest_phase
    report = [f"memory: {total:.1f} GB of {flags.memory:g}", *lines("always", always, "GB")]
    for name, parts in phases.items():
        report += lines(f"and while {name}", parts, "GB")
    return report


def main(argv: Sequence[str] | None = None) -> list[str]:
    """Print the estimate; returns its lines."""
    flags = parsed(argv)
    config = completed(flags.config)
    model = config["model_name_or_path"]
    if model in BUNDLED:
        model = bundled_policy(model, config.get("dialect", "pou"))
    shape = Shape.of(model)
    times = seconds(config, shape, flags)
    steps = steps_of(config, flags)
    hours = steps * total_of(times) / 3600
    report = memory(config, shape, flags)
    report += lines("time of a step", times, "s", f": {steps} steps in {hours:.1f} h")
    report += prices(services(config, flags), steps, flags)
    print("\n".join(report))
    return report


if __name__ == "__main__":
    main()
