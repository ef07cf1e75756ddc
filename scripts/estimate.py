"""What a configuration in `recipes/configs` needs: memory of one GPU, the time of a step, and what
services are asked, with the arithmetic.

```
python scripts/estimate.py recipes/configs/pou_qwen2.5-7b.yaml --gpus 8 --zero3
python scripts/estimate.py recipes/configs/pou_qwen2.5-0.5b.yaml --memory 24 --peak 165 --speed 2000
python scripts/estimate.py recipes/configs/ppo_qwen2.5-7b.yaml --gpus 32 --zero3 --peak 312 --steps 1324
python scripts/estimate.py recipes/configs/pokee_qwen2.5-7b.yaml --gpus 8 --zero3 --judge-prices 0.15,0.6
python scripts/estimate.py recipes/configs/sft_qwen2.5-7b.yaml --gpus 8 --zero3 --rows 20000
```

Nothing is measured. Memory follows from the model's shape and the settings; time, requests and
prices rest on the flags' values, which are assumptions: replace them by what your machines do and
your services cost. GB are 10^9 bytes, B stands for 10^9 parameters.
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
    **{"pou": "pou", "hack": "pou", "veritas": "veritas", "ppo": "ppo", "pokee": "pokee"},
    **{"self": "self_eval", "sft": "sft", "rm": "reward_model", "eval": "evaluate"},
}
"""The recipe of a configuration, by what its name begins with."""
SUPERVISED = ("sft", "reward_model")
QUERIES_PER_CALL = {"pokee": 3}
"""Queries that a call of web search holds; one where the dialect writes one."""
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
"""What recipes take where a configuration says nothing."""
TILE = (4096, 32_768)
"""Tokens and pieces of the vocabulary that TRL projects at once: whole logits are never there."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: widths, counts, whether the output matrix is the embedding, and a layer's
    linear maps as (inputs, outputs).
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
        """Of a directory or a known name; nothing is allocated."""
        config = config_of(name)
        kind = AutoModel if config.model_type in ENCODERS else AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config)
        layers = model.encoder.layer if config.model_type in ENCODERS else model.model.layers
        linear = [part for part in layers[0].modules() if isinstance(part, torch.nn.Linear)]
        groups = getattr(config, "num_key_value_heads", config.num_attention_heads)
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            keys=config.hidden_size // config.num_attention_heads * groups,
            vocabulary=config.vocab_size,
            tied=config.tie_word_embeddings,
            parameters=model.num_parameters(),
            matrices=tuple((part.in_features, part.out_features) for part in linear),
        )


@dataclass(frozen=True)
class Part:
    """One line of a sum: what, how much, and how it was got."""

    name: str
    value: float
    how: str


def resident(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """GB on one GPU all the time."""
    full = config.get("dtype", "float32") == "float32"
    if config["recipe"] == "evaluate":
        size = 4 if full else 2
        how = f"{shape.parameters / GB:.3f} B x {size} bytes"
        weights = Part("weights", shape.parameters * size / GB, how)
        return [weights, Part("CUDA and buffers", flags.rest, "assumed")]
    trained, shards = adapter(config, shape) or shape.parameters, flags.gpus if flags.zero3 else 1
    over, billions = f" / {shards} GPUs" if shards > 1 else "", f"{shape.parameters / GB:.3f} B"
    parts = [Part("trained", trained * 16 / shards / GB, f"{trained / GB:.3f} B x 16 bytes{over}")]
    if trained < shape.parameters:
        size = (
            0.56
            if config.get("load_in_4bit")
            else 1
            if config.get("load_in_8bit")
            else 4
            if full
            else 2
        )
        parts.append(
            Part(
                "frozen", shape.parameters * size / shards / GB, f"{billions} x {size} bytes{over}"
            )
        )
    if config.get("value_trunk"):
        own = shape.parameters - (0 if shape.tied else shape.vocabulary * shape.hidden)
        parts.append(
            Part("value's trunk", own * 16 / shards / GB, f"{own / GB:.3f} B x 16 bytes{over}")
        )
    if config.get("beta"):
        size = 4 if full else 2
        how = f"{billions} x {size} bytes{over}, none with an adapter"
        parts.append(
            Part(
                "reference",
                0 if config.get("use_peft") else shape.parameters * size / shards / GB,
                how,
            )
        )
    if full:
        parts.append(Part("cast by autocast", shape.parameters * 2 / GB, f"{billions} x 2 bytes"))
    if flags.zero3:
        ends = (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
        gathered = ends + 2 * sum(a * b for a, b in shape.matrices)
        parts.append(
            Part("gathered at a time", gathered * 2 / GB, "both ends and two layers x 2 bytes")
        )
    if config.get("use_vllm"):
        share = config["vllm_gpu_memory_utilization"]
        how = f"{share} x {flags.memory:g} GB; beside weights {_room(config, shape, flags)}"
        parts.append(Part("vLLM", share * flags.memory, how))
    return [*parts, Part("CUDA and buffers", flags.rest, "assumed")]


def updating(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """GB of one forward and backward pass, activations checkpointed."""
    tokens = config["per_device_train_batch_size"] * longest_row(config, flags)
    size = 4 if config.get("dtype", "float32") == "float32" else 2
    trunks = 2 if config.get("value_trunk") else 1
    head = 0 if config.get("use_peft") else 4 * shape.vocabulary * shape.hidden
    return [
        Part(
            "kept of each layer",
            trunks * shape.layers * tokens * shape.hidden * size / GB,
            f"{trunks * shape.layers} layers x {tokens:,} tokens x {shape.hidden} x {size} bytes",
        ),
        Part(
            "one layer recomputed",
            tokens * (20 * shape.hidden + 8 * shape.intermediate) / GB,
            f"{tokens:,} tokens x (20 x {shape.hidden} + 8 x {shape.intermediate:,}) bytes",
        ),
        Part(
            "output matrix",
            (TILE[0] * TILE[1] * 2 + head) / GB,
            f"logits by tiles of {TILE[0]} x {TILE[1]} x 2 bytes"
            + (", gradient x 4 bytes" if head else ""),
        ),
    ]


def sampling(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """GB of a forward pass without gradient, to sample (without vLLM) and to ask for evidence
    sensitivity.
    """
    rows = min(config["generation_batch"], rollouts(config, 1))
    tokens = rows * longest_row(config, flags)
    each = 4 * shape.layers * shape.keys
    whole = Part(
        "gathered",
        shape.parameters * 2 / GB,
        f"{shape.parameters / GB:.3f} B x 2 bytes, all of it at once",
    )
    return [
        *([whole] if flags.zero3 and not config.get("use_vllm") else []),
        Part(
            "one layer",
            tokens * (8 * shape.hidden + 6 * shape.intermediate) / GB,
            f"{tokens:,} tokens x (8 x {shape.hidden} + 6 x {shape.intermediate:,}) bytes",
        ),
        Part("keys and values", tokens * each / GB, f"{tokens:,} tokens x {each:,} bytes"),
    ]


def _room(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> str:
    each, longest = 4 * shape.layers * shape.keys, flags.prompt + config["max_completion_length"]
    room = (
        config["vllm_gpu_memory_utilization"] * flags.memory * GB
        - shape.parameters * 2
        - flags.rest * GB
    )
    return f"{int(room / each):,} tokens of {each:,} bytes, {int(room / each / longest)} longest episodes"


def seconds(config: dict[str, Any], shape: Shape, flags: argparse.Namespace) -> list[Part]:
    """Of one step of the optimizer."""
    if config["recipe"] in SUPERVISED:
        return [_updating(config, shape, flags, config["max_length"] * flags.filled)]
    many = rollouts(config, flags.gpus)
    speed = f"{flags.speed:,} a second and GPU"
    sampled = f"{many // flags.gpus} rollouts x {flags.sampled:,} tokens / {speed}"
    times = [
        Part("sampling", many / flags.gpus * flags.sampled / flags.speed, sampled),
        Part("tools and judge", flags.waiting, "assumed"),
    ]
    if config["recipe"] != "evaluate":
        times.append(_updating(config, shape, flags, flags.episode))
    probes = probed_steps(config)
    if probes:
        asked = 2 * shape.parameters * many * flags.episode * probes
        how = "2 prompts of half an episode a rollout, forward only"
        times.append(Part("evidence sensitivity", asked / _rate(flags), how))
    if config["recipe"] == "self_eval":
        written = config.get("rubric_tokens", 256) + 16
        reading = 2 * 2 * shape.parameters * many * flags.episode / _rate(flags)
        how = f"2 prompts of an episode a rollout, and {written} tokens sampled"
        value = reading + many / flags.gpus * written / flags.speed
        times.append(Part("self-evaluation", value, how))
    return times


def _rate(flags: argparse.Namespace) -> float:
    """Floating-point operations a second of all GPUs."""
    return float(flags.gpus * flags.peak * 1e12 * flags.use)


def _updating(
    config: dict[str, Any], shape: Shape, flags: argparse.Namespace, length: float
) -> Part:
    """The time in which the rows of a step, of `length` tokens on average, are trained on."""
    tokens = rollouts(config, flags.gpus) * length
    passes = (4 if config.get("use_peft") else 6) + 2  # forward, backward, and forward again
    if config["recipe"] not in SUPERVISED and config.get("use_vllm"):
        passes += 2  # the log-probabilities of what vLLM sampled
    if config.get("advantages") == "ppo":
        # It reads values before it trains, and a trunk of their own is trained, too
        trunk = 10 if config.get("value_trunk") else 0
        passes = config.get("num_iterations", 1) * passes + 2 + trunk
    passes += 2 if config.get("beta") else 0
    machine = f"{flags.gpus} x {flags.peak:g} TFLOP/s x {flags.use}"
    how = f"{passes} x {shape.parameters / GB:.3f} B x {tokens / 1e6:.2f} M / ({machine})"
    return Part("updating", passes * shape.parameters * tokens / _rate(flags), how)


def probed_steps(config: dict[str, Any]) -> int:
    """How many steps of a rollout are perturbed, which Proof-of-Use alone does."""
    rewarded = config.get("reward", "pou") == "pou"
    budget = int(config.get("budget", 1)) if config["recipe"] == "pou" and rewarded else 0
    return config["turns"] - 1 if budget < 0 else budget


def services(config: dict[str, Any], flags: argparse.Namespace) -> list[Part]:
    """What a step asks of services that may cost money: queries and pages of the web, and requests
    to the judge.
    """
    if config["recipe"] in SUPERVISED:
        return []
    many = rollouts(config, flags.gpus)
    on_the_web = config.get("web_search", "none") != "none"
    reads_pages = config.get("browse", "none") != "none"
    calls = many * min(flags.calls, config["turns"])
    asked = []
    if on_the_web:
        queries = QUERIES_PER_CALL.get(config["recipe"], 1)
        how = f"{many} rollouts x {flags.calls} calls x {queries}, half of them to other tools"
        if not reads_pages:
            how = how.partition(",")[0]
        searches = calls * queries / (2 if reads_pages else 1)
        asked.append(Part("web queries", searches, how))
    if reads_pages:
        asked.append(Part("pages", calls / 2, f"half of {many} rollouts x {flags.calls} calls"))
    requests = judge_requests(config, flags)
    if requests:
        how = " + ".join(f"{count:g} {name}" for name, count in requests.items())
        count = many * sum(requests.values())
        asked.append(Part("judge", count, f"{many} rollouts x ({how})"))
    return asked


def judge_requests(config: dict[str, Any], flags: argparse.Namespace) -> dict[str, float]:
    """How often a rollout is judged, by what is asked; nothing without a judge that is a model."""
    if config.get("judge") in (None, "lexical", "containment", "facts"):
        return {}
    recipe, calls = config["recipe"], min(flags.calls, config["turns"])
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


def prices(asked: Sequence[Part], steps: int, flags: argparse.Namespace) -> list[str]:
    """Lines on how much a whole training asks, and what that costs at the prices given."""
    per_request = {"web queries": flags.search_price / 1000, "pages": flags.page_price / 1000}
    prompt, completion = map(float, flags.judge_prices.split(","))
    read, written = map(float, flags.judge_tokens.split(","))
    per_request["judge"] = (prompt * read + completion * written) / 1e6
    lines = []
    total = 0.0
    for part in asked:
        count = part.value * steps
        cost = count * per_request[part.name]
        total += cost
        how = f"a step: {part.how}; in all {count:,.0f}, price {cost:,.0f}"
        lines.append(f"  {part.name:<22}{part.value:>7,.0f}  {how}")
    if not lines:
        return ["services: none are asked"]
    rates = (
        f"{flags.search_price:g} for 1,000 queries, {flags.page_price:g} for 1,000 pages, "
        f"{flags.judge_prices} for 1 M tokens of the judge, {flags.judge_tokens} a request"
    )
    return [f"services: price {total:,.0f} in all, at {rates}", *lines]


def longest_row(config: dict[str, Any], flags: argparse.Namespace) -> int:
    """Tokens of the longest row: an episode with its prompt, or an example."""
    if config["recipe"] in SUPERVISED:
        return int(config["max_length"])
    return int(flags.prompt + config["max_completion_length"])


def steps_of(config: dict[str, Any], flags: argparse.Namespace) -> int:
    """Steps of the optimizer; of an evaluation, batches of questions."""
    if flags.steps:
        return int(flags.steps)
    if config["recipe"] == "evaluate":
        return 1
    if config["max_steps"] > 0:
        return int(config["max_steps"])
    rows = rollouts(config, flags.gpus) / config.get("num_generations", 1)
    return math.ceil(flags.rows * config["num_train_epochs"] / rows)


def completed(path: str) -> dict[str, Any]:
    """The settings of a configuration, with its recipe and what it leaves open; those of an adapter
    that it goes on from, too.
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
    """In one step of the optimizer, over all processes."""
    return config["per_device_train_batch_size"] * config["gradient_accumulation_steps"] * gpus


def adapter(config: dict[str, Any], shape: Shape) -> int:
    """Parameters of LoRA on all linear maps; 0 where everything is trained."""
    rank = config.get("lora_r", 16) if config.get("use_peft") else 0
    return shape.layers * rank * sum(rows + columns for rows, columns in shape.matrices)


def lines(title: str, parts: Sequence[Part], unit: str, note: str = "") -> list[str]:
    """A sum, its parts one a line."""
    total = f"{title}: {sum(part.value for part in parts):.1f} {unit}{note}"
    return [total, *(f"  {part.name:<22}{part.value:>7.1f}  {part.how}" for part in parts)]


def main(argv: Sequence[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--zero3", action="store_true", help="what is trained is shared out over the GPUs"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="of the optimizer, where the configuration counts epochs",
    )
    parser.add_argument("--memory", type=float, default=80, help="GB of a GPU")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument(
        "--episode", type=int, default=3500, help="tokens of an episode on average, prompt included"
    )
    parser.add_argument("--sampled", type=int, default=1000, help="of these the policy's own")
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
        "--search-price", type=float, default=1, help="of 1,000 queries to the web search"
    )
    parser.add_argument("--page-price", type=float, default=0, help="of 1,000 pages")
    parser.add_argument(
        "--judge-prices", default="0,0", help="of 1 M prompt and completion tokens, as 0.15,0.6"
    )
    parser.add_argument(
        "--judge-tokens", default="1200,60", help="of a request: those read, those written"
    )
    flags = parser.parse_args(argv)
    config = completed(flags.config)
    model = config["model_name_or_path"]
    if model in BUNDLED:
        model = bundled_policy(model, config.get("dialect", "pou"))
    shape = Shape.of(model)
    always, times = resident(config, shape, flags), seconds(config, shape, flags)
    phases: list[tuple[str, list[Part]]] = []
    if config["recipe"] != "evaluate":
        phases.append(("updating", updating(config, shape, flags)))
    if probed_steps(config):
        phases.append(("sampling and probing", sampling(config, shape, flags)))
    elif config["recipe"] not in SUPERVISED and not config.get("use_vllm"):
        phases.append(("sampling", sampling(config, shape, flags)))
    steps = steps_of(config, flags)
    most = max(sum(part.value for part in parts) for _, parts in phases)
    total = sum(part.value for part in always) + most
    hours = steps * sum(part.value for part in times) / 3600
    report = [f"memory: {total:.1f} GB of {flags.memory:g}", *lines("always", always, "GB")]
    for name, parts in phases:
        report += lines(f"and while {name}", parts, "GB")
    report += lines("time of a step", times, "s", f": {steps} steps in {hours:.1f} h")
    report += prices(services(config, flags), steps, flags)
    print("\n".join(report))
    return report


if __name__ == "__main__":
    main()
