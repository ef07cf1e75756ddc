"""What a configuration of `pou.py` or `ppo.py` needs: memory of one GPU, and the time of a step,
with the arithmetic.

```
python scripts/estimate.py recipes/configs/pou_qwen2.5-7b.yaml --gpus 8 --zero3
python scripts/estimate.py recipes/configs/pou_qwen2.5-0.5b.yaml --memory 24 --peak 165 --speed 2000
python scripts/estimate.py recipes/configs/ppo_qwen2.5-7b.yaml --gpus 32 --zero3 --peak 312 --steps 1324
```

Nothing is measured. Memory follows from the model's shape and the settings; time rests on the
flags' values, which are assumptions: replace them by what your machines do. GB are 10^9 bytes, B
stands for 10^9 parameters.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from faithful_search.training.dry_run import config_of
from faithful_search.training.refusing import read_config

GB = 1e9
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
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        linear = [
            part for part in model.model.layers[0].modules() if isinstance(part, torch.nn.Linear)
        ]
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            keys=config.hidden_size // config.num_attention_heads * config.num_key_value_heads,
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
    tokens = config["per_device_train_batch_size"] * (
        flags.prompt + config["max_completion_length"]
    )
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
    tokens, each = (
        rows * (flags.prompt + config["max_completion_length"]),
        4 * shape.layers * shape.keys,
    )
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
    many = rollouts(config, flags.gpus)
    tokens, rate = many * flags.episode, flags.gpus * flags.peak * 1e12 * flags.use
    passes = (6 if not config.get("use_peft") else 4) + 2 + (2 if config.get("use_vllm") else 0)
    ppo = config.get("advantages") == "ppo"
    if ppo:  # it reads values before it trains, and a trunk of their own is trained, too
        passes = (
            config.get("num_iterations", 1) * passes + 2 + (10 if config.get("value_trunk") else 0)
        )
    passes += 2 if config.get("beta") else 0
    work = passes * shape.parameters * tokens
    asked = 2 * shape.parameters * tokens * config.get("budget", 0 if ppo else 1)
    machine = f"{flags.gpus} x {flags.peak:g} TFLOP/s x {flags.use}"
    sampled = f"{many // flags.gpus} rollouts x {flags.sampled:,} tokens / {flags.speed:,} a second and GPU"
    return [
        Part("sampling", many / flags.gpus * flags.sampled / flags.speed, sampled),
        Part("tools and judge", flags.waiting, "assumed"),
        Part(
            "updating",
            work / rate,
            f"{passes} x {shape.parameters / GB:.3f} B x {tokens / 1e6:.2f} M / ({machine})",
        ),
        Part(
            "evidence sensitivity",
            asked / rate,
            "2 prompts of half an episode a rollout, forward only",
        ),
    ]


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
    flags = parser.parse_args(argv)
    config = read_config(flags.config)
    shape = Shape.of(config["model_name_or_path"])
    always, times = resident(config, shape, flags), seconds(config, shape, flags)
    phases = [
        ("updating", updating(config, shape, flags)),
        ("sampling and probing", sampling(config, shape, flags)),
    ]
    steps, most = (
        flags.steps or config["max_steps"],
        max(sum(part.value for part in parts) for _, parts in phases),
    )
    total = sum(part.value for part in always) + most
    hours = steps * sum(part.value for part in times) / 3600
    found = [f"memory: {total:.1f} GB of {flags.memory:g}", *lines("always", always, "GB")]
    for name, parts in phases:
        found += lines(f"and while {name}", parts, "GB")
    found += lines("time of a step", times, "s", f": {steps} steps in {hours:.1f} h")
    print("\n".join(found))
    return found


if __name__ == "__main__":
    main()
