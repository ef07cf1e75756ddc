"""What keeping keys and values from turn to turn saves, against reading every context again.

Two settings. In the first, the bundled tiny policy plays the bundled world with the limits of
`recipes/configs/pou_tiny.yaml`, through the engine: 4 questions, 8 rollouts each, sampled. The
rounding of either way leads to other samples here and there, so the figures are for each sampled
token, over several seeds. In the second, an untrained Llama of 32 million parameters (or the model
of `--model DIR`) plays episodes whose lengths are scripted: a prompt of 300 tokens or so, turns of
20 to 96 tokens, tool responses of 200 to 600. Both ways have the same lengths and take turns with
each turn of the episodes, so that other load falls on both. The log-probabilities that are noted
while keeping are compared with those of one pass over the whole context.

    python benchmarks/bench_turns.py [--model DIR] [--rollouts 8] [--turns 2 4 8] [--seeds 3]
    [--threads 1]
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from faithful_search.bundled import tiny_policy
from faithful_search.inference.base import Completion, Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rollout.engine import Engine
from faithful_search.rollout.episode import Limits
from faithful_search.tasks import load_tasks
from faithful_search.tools import LocalSearch, Toolbox

SAME, QUESTIONS, GROUP = 1e-4, 4, 8
PROMPT, OWN, TURN, RESPONSE = 270, (15, 45), (20, 96), (200, 600)
SIZES = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 10, "vocab_size": 8192}
Taken = tuple[float, float]
"""Seconds of this process's CPU time, and by the clock."""


class Rereading:
    """A generator that cannot keep."""

    def __init__(self, own: TransformersGenerator) -> None:
        self.generate, self.choice_probs, self.tokenizer = (
            own.generate,
            own.choice_probs,
            own.tokenizer,
        )


def main() -> None:
    """Read the command line, measure both settings, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a causal LM's directory")
    parser.add_argument(
        "--rollouts", type=int, default=8, help="of the scripted episodes, four for each question"
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3, help="runs of the tiny policy")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        "| setting | read again, CPU s | kept, CPU s | ratio | ratio by the clock |\n|---|---|---|---|---|"
    )
    report(f"tiny policy in its world, 1000 tokens sampled, {args.seeds} seeds", tiny(args.seeds))
    model, tokenizer = opened(args.model)
    name = f"{sum(part.numel() for part in model.parameters()) / 1e6:.0f}M"
    for turns, found in scripted(model, tokenizer, args.rollouts, max(args.turns)):
        if turns in args.turns:
            report(f"{name}, {args.rollouts} rollouts of {turns} turns", found)


def tiny(seeds: int) -> dict[str, Taken]:
    """Of a thousand sampled tokens, all of the engine's work included."""
    model, tokenizer = (
        auto.from_pretrained(tiny_policy()) for auto in (AutoModelForCausalLM, AutoTokenizer)
    )
    own = TransformersGenerator(model.float().eval(), tokenizer)
    tasks = [task for task in load_tasks("world", "train", limit=QUESTIONS) for _ in range(GROUP)]
    limits, toolbox = (
        Limits(turns=6, turn_tokens=96, total_tokens=768),
        Toolbox([LocalSearch.from_corpus("world")]),
    )
    spent: dict[str, list[tuple[Taken, int]]] = {}
    for seed in range(seeds):
        for name, policy in {"again": Rereading(own), "kept": own}.items():
            torch.manual_seed(seed)
            engine = Engine(policy, toolbox, limits=limits, sampling=Sampling(temperature=1.0))
            played, taken = timed(engine.run, tasks)
            sampled = sum(sum(one.tokens.mask) for one in played if one.tokens)
            spent.setdefault(name, []).append((taken, sampled))
    return {name: per_thousand(runs) for name, runs in spent.items()}


def per_thousand(runs: list[tuple[Taken, int]]) -> Taken:
    """Seconds for a thousand tokens."""
    tokens = sum(count for _, count in runs) / 1000
    return sum(taken[0] for taken, _ in runs) / tokens, sum(taken[1] for taken, _ in runs) / tokens


def opened(folder: str | None) -> tuple[Any, Any]:
    """The model of a directory, or an untrained one; its tokenizer ends no turn."""
    tokenizer = AutoTokenizer.from_pretrained(folder or tiny_policy())
    tokenizer.eos_token = None
    torch.manual_seed(0)
    if folder:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        heads = {
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16384,
        }
        model = LlamaForCausalLM(
            LlamaConfig(**SIZES, **heads, tie_word_embeddings=True, eos_token_id=None)
        )
    model.generation_config.eos_token_id = None
    return model.eval(), tokenizer


def scripted(
    model: Any, tokenizer: Any, rollouts: int, turns: int
) -> Iterator[tuple[int, dict[str, Taken]]]:
    """Seconds of all turns so far, after each turn."""
    draw = random.Random(0)
    ways = {name: TransformersGenerator(model, tokenizer) for name in ("again", "kept")}
    start = prompts(draw, rollouts, model.config.vocab_size)
    contexts = {name: list(start) for name in ways}
    spent = dict.fromkeys(ways, (0.0, 0.0))
    with ways["kept"].keeping():
        for turn in range(1, turns + 1):
            limits = [draw.randint(*TURN) for _ in range(rollouts)]
            responses = [
                row(draw, draw.randint(*RESPONSE), model.config.vocab_size) for _ in range(rollouts)
            ]
            for name, own in ways.items():
                written, taken = timed(go_on, own, contexts[name], limits)
                check(model, contexts[name][0], written[0])
                contexts[name] = [
                    context + one.ids + response
                    for context, one, response in zip(
                        contexts[name], written, responses, strict=True
                    )
                ]
                spent[name] = (spent[name][0] + taken[0], spent[name][1] + taken[1])
            yield turn, dict(spent)


def prompts(draw: random.Random, rollouts: int, vocabulary: int) -> list[list[int]]:
    """A prompt for each rollout: what all share, and a question that four share."""
    shared = row(draw, PROMPT, vocabulary)
    questions = [row(draw, draw.randint(*OWN), vocabulary) for _ in range(-(-rollouts // 4))]
    return [shared + questions[number // 4] for number in range(rollouts)]


def row(draw: random.Random, length: int, vocabulary: int) -> list[int]:
    """Ids drawn at random."""
    return [draw.randrange(vocabulary) for _ in range(length)]


def go_on(
    own: TransformersGenerator, contexts: list[list[int]], limits: list[int]
) -> list[Completion]:
    """A turn of each episode, exactly as long as its limit."""
    written = own.generate(
        contexts, Sampling(temperature=1.0, max_new_tokens=max(limits), logprobs=True), limits
    )
    assert [len(one.ids) for one in written] == limits
    return written


def check(model: Any, context: list[int], written: Completion) -> None:
    """Asserts that a turn's log-probabilities are those of one pass over everything."""
    with torch.no_grad():
        logits = model(
            torch.tensor([context + written.ids]), logits_to_keep=len(written.ids) + 1
        ).logits[0, :-1]
    found = logits.log_softmax(-1).gather(1, torch.tensor(written.ids)[:, None])[:, 0]
    apart = float((found - torch.tensor(written.logprobs)).abs().max())
    assert apart < SAME, f"log-probabilities are {apart:.1e} apart"


def timed(work: Callable[..., Any], *given: Any) -> tuple[Any, Taken]:
    """What it gives, and how long it takes."""
    clock, cpu = time.perf_counter(), time.process_time()
    found = work(*given)
    return found, (time.process_time() - cpu, time.perf_counter() - clock)


def report(title: str, found: dict[str, Taken]) -> None:
    """A row of the table."""
    again, kept = found["again"], found["kept"]
    print(
        f"| {title} | {again[0]:.2f} | {kept[0]:.2f} | {again[0] / kept[0]:.2f} | {again[1] / kept[1]:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
