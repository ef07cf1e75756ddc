"""What Proof-of-Use's evidence sensitivity costs: `choice_probs` on pairs of contexts, one with the
real tool response and one with the perturbed one, against two full forward passes a probe.

The first lines have the probes of real rollouts: the bundled tiny policy's on the bundled world,
probed by the reward itself. The others are made up for an untrained Llama (how long it takes
depends on its sizes, not on its weights), all behind one system prompt: a training step's, eight
rollouts of each question with a probe at any of their turns; and pairs of contexts of about
`--lengths` tokens, alike up to a place early in the context, in its middle, or shortly before its
end. The two of a pair differ in length by a few tokens.

The other ways give the same prompts whole: in batches (`shares = False`) and one by one, as a plain
loop over `model(ids)` does. All ways take turns, and that their probabilities are the same is
checked. Tokens are counted as the model gets them, padding included. Beside them stand two ideals
without padding: what the two of each pair begin with read once, and what any prompts begin with
read once.

    python benchmarks/bench_sensitivity.py [--rollouts 32] [--repeats 2] [--threads 1]
    python benchmarks/bench_sensitivity.py --lengths 1000 2000 4000 --size 135m     # takes long
"""

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from faithful_search.bundled import tiny_policy
from faithful_search.inference.base import Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import EvidenceSensitivity
from faithful_search.rollout import Engine
from faithful_search.tasks import load_tasks
from faithful_search.training.starting import RunArguments
from faithful_search.trajectory import Trajectory

SEED, SAME, SYSTEM, QUESTION, TURN, VERDICT = 7, 1e-4, 200, 20, 60, 8
SIZES: dict[str, dict[str, int]] = {
    "8m": {
        "hidden_size": 320,
        "intermediate_size": 864,
        "num_hidden_layers": 6,
        "num_attention_heads": 5,
    },
    "30m": {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 9,
        "num_attention_heads": 8,
    },
    "135m": {
        **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
        **{"num_attention_heads": 9, "num_key_value_heads": 3},
    },
}
PLACES = {"early": 0.1, "middle": 0.5, "late": 0.9}
Ids = list[int]
Way = Callable[[Sequence[Ids], Sequence[Sequence[Ids]]], list[list[float]]]


def main() -> None:
    """Read the command line, measure both, print."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--step", type=int, default=16, help="rollouts of the step that is made up")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[1000], help="tokens of a context"
    )
    parser.add_argument("--probes", type=int, default=4, help="pairs of each length")
    parser.add_argument("--size", choices=SIZES, default="8m", help="of the untrained model")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(SEED)
    print(f"{given.threads} threads, median of {given.repeats} runs, seed {SEED}")
    head()
    prompts, choices = Recording(tiny()).probes(given.rollouts)
    name = f"tiny policy, probes of {given.rollouts} rollouts"
    report(name, tiny(), prompts, choices, given.repeats)
    model = untrained(given.size)
    prompts = step(random.Random(SEED), given.step)
    report(
        f"{given.size} model, a step of {given.step} rollouts",
        model,
        prompts,
        [[[5]]] * len(prompts),
        given.repeats,
    )
    for length in given.lengths:
        for place, share in PLACES.items():
            prompts = pairs(random.Random(SEED), given.probes, length, share)
            name = f"{given.size} model, {given.probes} probes of {length:,}, {place}"
            report(name, model, prompts, [[[5]]] * len(prompts), given.repeats)


def tiny() -> TransformersGenerator:
    """The bundled policy in float32."""
    path = tiny_policy("pou")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return TransformersGenerator(model, AutoTokenizer.from_pretrained(path))


def untrained(size: str) -> TransformersGenerator:
    """A Llama of that many parameters, those of its words not counted."""
    config = LlamaConfig(vocab_size=4096, max_position_embeddings=8192, **SIZES[size])
    return TransformersGenerator(
        LlamaForCausalLM(config).eval(), AutoTokenizer.from_pretrained(tiny_policy("pou"))
    )


class Recording:
    """A policy that notes what the reward asks it."""

    def __init__(self, generator: TransformersGenerator) -> None:
        self.generator, self.tokenizer = generator, generator.tokenizer
        self.asked: tuple[list[Ids], list[list[Ids]]] = ([], [])

    def generate(self, *args: Any) -> Any:
        """As the policy does."""
        return self.generator.generate(*args)

    def choice_probs(
        self, prompts: Sequence[Ids], choices: Sequence[Sequence[Ids]]
    ) -> list[list[float]]:
        """As the policy does."""
        self.asked[0].extend(prompts)
        self.asked[1].extend(list(own) for own in choices)
        return self.generator.choice_probs(prompts, choices)

    def probes(self, rollouts: int) -> tuple[list[Ids], list[list[Ids]]]:
        """What the reward asks about rollouts as a training step has them: eight of each
        question.
        """
        EvidenceSensitivity(budget=2).bind(policy=self).score_batch(self._rollouts(rollouts))
        return self.asked

    def _rollouts(self, count: int) -> list[Trajectory]:
        script = RunArguments(turns=6, turn_tokens=96, search_top_k=3)
        tasks = [
            task for task in load_tasks("world", "train", limit=-(-count // 8)) for _ in range(8)
        ]
        with script.toolbox() as toolbox:
            engine = Engine(self, toolbox, "pou", script.limits(768), Sampling(temperature=1.0))
            return engine.run(tasks[:count])


def step(rng: random.Random, rollouts: int) -> list[Ids]:
    """Contexts, real and perturbed in turn, of eight rollouts of each question: turns, and
    responses of 100 to 300 tokens; which turn is probed is drawn.
    """
    system, question, found = draw(rng, SYSTEM), [], []
    for number in range(rollouts):
        question = question if number % 8 else draw(rng, QUESTION)
        before = system + question + draw(rng, TURN)
        for _ in range(rng.randrange(5)):
            before = before + draw(rng, rng.randrange(100, 300)) + draw(rng, TURN)
        found += pair(rng, before, rng.randrange(100, 300))
    return found


def pair(rng: random.Random, before: Ids, response: int) -> list[Ids]:
    """A real and a perturbed response behind the same turns, and the turn that is probed up to its
    verdict.
    """
    verdict = draw(rng, VERDICT)
    return [before + draw(rng, response + more) + verdict for more in (0, rng.randrange(-10, 10))]


def pairs(rng: random.Random, count: int, length: int, share: float) -> list[Ids]:
    """Contexts of about `length` tokens, real and perturbed in turn, alike in their first
    `share`.
    """
    system = draw(rng, SYSTEM)
    found = []
    for _ in range(count):
        own = length + rng.randrange(-length // 10, length // 10)
        before = system + draw(rng, int(own * share) - SYSTEM if own * share > SYSTEM else 0)
        found += pair(rng, before, own - len(before) - VERDICT)
    return found


def draw(rng: random.Random, count: int) -> Ids:
    """Any tokens."""
    return [rng.randrange(10, 4000) for _ in range(count)]


def ways(generator: TransformersGenerator) -> dict[str, Way]:
    """By name; the first is ours as it comes."""
    whole = TransformersGenerator(generator.model, generator.tokenizer)
    whole.shares = False

    def one_by_one(prompts: Sequence[Ids], choices: Sequence[Sequence[Ids]]) -> list[list[float]]:
        with torch.no_grad():
            return [alone(prompt, own) for prompt, own in zip(prompts, choices, strict=True)]

    def alone(prompt: Ids, own: Sequence[Ids]) -> list[float]:
        probs = generator.model(
            input_ids=torch.tensor([prompt]), use_cache=False, logits_to_keep=1
        ).logits.softmax(-1)
        return [float(probs[0, -1, choice[0]]) for choice in own]

    return {
        "choice_probs": generator.choice_probs,
        "whole, batched": whole.choice_probs,
        "whole, one by one": one_by_one,
    }


@contextmanager
def counting(model: Any) -> Iterator[Counter[str]]:
    """What goes through the model while the block runs: tokens and passes."""
    seen: Counter[str] = Counter()

    def note(module: Any, args: Any, kwargs: Any) -> None:
        seen.update(tokens=kwargs["input_ids"].numel(), passes=1)

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def by_pair(rows: Sequence[Ids]) -> int:
    """Tokens of all rows, what the two of a pair begin with alike counted once."""
    return sum(
        len(one) + len(two) - alike(one, two)
        for one, two in zip(rows[::2], rows[1::2], strict=True)
    )


def distinct(rows: Sequence[Ids]) -> int:
    """Tokens of all rows, what rows begin with alike counted once."""
    order = sorted(rows)
    return len(order[0]) + sum(len(row) - alike(before, row) for before, row in pairwise(order))


def alike(one: Ids, two: Ids) -> int:
    """How many tokens two rows begin with alike."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )


def head() -> None:
    """The table's first lines."""
    columns = (
        "probes",
        "way",
        "CPU s",
        "choice_probs is faster by",
        "tokens read",
        "passes",
        "ideal of pairs / of all",
    )
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))


def report(
    name: str,
    generator: TransformersGenerator,
    prompts: list[Ids],
    choices: Sequence[Sequence[Ids]],
    repeats: int,
) -> None:
    """The lines of one set of probes. Asserts that all ways say the same."""
    assert all(len(choice) == 1 for own in choices for choice in own)
    taken: dict[str, list[float]] = {}
    seen: dict[str, Counter[str]] = {}
    said: dict[str, list[float]] = {}
    for _ in range(repeats):
        for way, ask in ways(generator).items():
            with counting(generator.model) as seen[way]:
                start = time.process_time()
                said[way] = [p for row in ask(prompts, choices) for p in row]
                taken.setdefault(way, []).append(time.process_time() - start)
    seconds = {way: statistics.median(own) for way, own in taken.items()}
    ours = seconds["choice_probs"]
    ideal = f"{by_pair(prompts):,} / {distinct(prompts):,}"
    for way, own in seconds.items():
        apart = max(
            abs(one - two) for one, two in zip(said["choice_probs"], said[way], strict=True)
        )
        assert apart < SAME, f"{way} says something else: {apart}"
        tokens, passes = seen[way]["tokens"], seen[way]["passes"]
        print(
            f"| {name} | {way} | {own:.2f} | {own / ours:.2f} | {tokens:,} | {passes} | {ideal} |"
        )


if __name__ == "__main__":
    main()
