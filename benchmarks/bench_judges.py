"""How many pairs a second the model judges take: with and without batches by length and prefixes
that are shared, and beside a plain `pipeline("text-generation")` that writes one token for the same
prompts.

The generator head judges as in a GRPO step: several thoughts on the same evidence, of 5 to 400
words. The encoder head judges four times as many pairs, each with its own evidence. The default is
an untrained Llama with the bundled policy's tokenizer as the generator head, and an untrained BERT
over the same words as the encoder head: how long they take depends on their sizes, not on what
their weights say. `--model DIR` measures a causal LM's directory instead, `--encoder DIR` a
classifier's. All ways judge the same pairs in one run and take turns, so that other load falls on
all; that they say the same is checked.

    python benchmarks/bench_judges.py [--model DIR] [--encoder DIR] [--pairs 48] [--repeats 3]
"""

import argparse
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    pipeline,
)

from faithful_search.bundled import tiny_policy
from faithful_search.inference import batching
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.judges import Pair, Verdict, generator, load, nli
from faithful_search.judges.generator import GeneratorJudge
from faithful_search.judges.nli import NLIJudge

SEED, BATCH_TOKENS, SAME, THOUGHTS = 7, 4096, 1e-4, 4
VOCABULARY = """
river treaty museum station village engine album season council bridge castle election company novel island player
general theatre market harbour symphony mountain railway professor painting district language empire garden
"""
WORDS = VOCABULARY.split()
Way = Callable[[], list[float]]
"""Judges all pairs and gives their p, or 1 and 0 where only the label is known."""


def main() -> None:
    """Read the command line, measure both heads, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a causal LM's directory")
    parser.add_argument("--encoder", help="a classifier's directory")
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    pairs = group(rng, args.pairs)
    print(
        f"{args.pairs} pairs, {torch.get_num_threads()} threads, median of {args.repeats} runs, seed {SEED}"
    )
    report("generator head", generator_ways(judge_of(args.model), pairs), args.repeats, args.pairs)
    encoder: Any = load("nli", args.encoder) if args.encoder else untrained_nli()
    more = [make_pair(rng) for _ in range(4 * args.pairs)]
    report(f"encoder head, {len(more)} pairs", encoder_ways(encoder, more), args.repeats, len(more))


def make_pair(rng: random.Random) -> Pair:
    """Evidence of 5 to 400 words, most of it short."""
    length = round(5 * 80 ** (rng.random() ** 1.5))
    return Pair(" ".join(rng.choices(WORDS, k=length)), " ".join(rng.choices(WORDS, k=8)))


def group(rng: random.Random, count: int) -> list[Pair]:
    """Pairs as a GRPO step has them: each piece of evidence with the thoughts of several rollouts,
    mixed.
    """
    evidence = [make_pair(rng).premise for _ in range(-(-count // THOUGHTS))]
    pairs = [
        msgspec.structs.replace(make_pair(rng), premise=text)
        for text in evidence
        for _ in range(THOUGHTS)
    ]
    return rng.sample(pairs, count)


def unsorted_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Rows in their order, in batches whose padded size is at most `budget` tokens."""
    batch: list[int] = []
    for row in range(len(lengths)):
        if batch and (len(batch) + 1) * max(lengths[other] for other in [*batch, row]) > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@contextmanager
def batched(
    module: Any, way: Callable[[Sequence[int], int], Iterator[list[int]]]
) -> Iterator[None]:
    """The judge of `module` makes its batches this way."""
    own = module.batches
    module.batches = way
    try:
        yield
    finally:
        module.batches = own


@contextmanager
def padded() -> Iterator[None]:
    """Batches are made of pairs as they come, and all rows of a batch are padded to its longest."""
    own = batching.passes
    batching.passes = lambda lengths, call: [
        sorted(range(len(lengths)), key=lambda row: -lengths[row])
    ]
    try:
        with batched(generator, unsorted_batches):
            yield
    finally:
        batching.passes = own


def judge_of(folder: str | None) -> GeneratorJudge:
    """The generator head of a directory, or an untrained one."""
    if folder:
        opened = GeneratorJudge.from_pretrained(folder, device="cpu")
        return dataclasses.replace(opened, batch_tokens=BATCH_TOKENS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    tokenizer.chat_template = None  # the policy's own leaves the judge's instruction out
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=4096, initializer_range=0.2, **sizes
    )
    model = LlamaForCausalLM(config).eval()
    return GeneratorJudge(
        TransformersGenerator(model, tokenizer), "untrained", batch_tokens=BATCH_TOKENS
    )


def untrained_nli() -> NLIJudge:
    """A BERT of four layers that has learnt nothing, one token a word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate([*special, *WORDS])}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **names)
    size: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    labels = {0: "entailment", 1: "neutral", 2: "contradiction"}
    config = BertConfig(
        vocab_size=64, num_attention_heads=4, id2label=labels, initializer_range=0.2, **size
    )
    model = BertForSequenceClassification(config).eval()
    return NLIJudge(model, tokenizer, "untrained", window=450, batch_tokens=BATCH_TOKENS)


def generator_ways(judge: GeneratorJudge, pairs: Sequence[Pair]) -> dict[str, Way]:
    """By name; the first is ours as it comes, the others are compared with it."""
    own = judge.generator
    plain = TransformersGenerator(own.model, own.tokenizer)  # type: ignore[attr-defined]
    plain.shares = False
    alone = dataclasses.replace(judge, generator=plain)

    def as_they_come(judge: GeneratorJudge) -> list[float]:
        with padded():
            return chances(judge.judge_batch(pairs))

    return {
        "by length, prefixes shared": lambda: chances(judge.judge_batch(pairs)),
        "by length": lambda: chances(alone.judge_batch(pairs)),
        "prefixes shared": lambda: as_they_come(judge),
        "neither": lambda: as_they_come(alone),
        "pipeline": lambda: piped(judge, pairs, 1),
        "pipeline, batch_size=8": lambda: piped(judge, pairs, 8),
    }


def encoder_ways(judge: NLIJudge, pairs: Sequence[Pair]) -> dict[str, Way]:
    """By name, as `generator_ways`; a classifier has no prompt to share and writes no text."""

    def as_they_come() -> list[float]:
        with batched(nli, unsorted_batches):
            return chances(judge.judge_batch(pairs))

    return {"by length": lambda: chances(judge.judge_batch(pairs)), "neither": as_they_come}


def chances(verdicts: Sequence[Verdict]) -> list[float]:
    """p of each; every pair has a verdict here."""
    assert not any(verdict.abstained for verdict in verdicts)
    return [verdict.p or 0.0 for verdict in verdicts]


def piped(judge: GeneratorJudge, pairs: Sequence[Pair], batch_size: int) -> list[float]:
    """p from the scores of the token that a text-generation pipeline writes behind the same
    prompts.
    """
    own = judge.generator
    asked = [judge.asked(pair) for pair in pairs]
    texts = [own.tokenizer.decode(one.ids) for one in asked]
    found: list[torch.Tensor] = []
    write = pipeline("text-generation", model=own.model, tokenizer=own.tokenizer)  # type: ignore[attr-defined]
    own.tokenizer.padding_side = "left"

    def note(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        found.extend(scores.softmax(-1))
        return scores

    write(
        texts,
        batch_size=batch_size,
        max_new_tokens=1,
        do_sample=False,
        return_full_text=False,
        add_special_tokens=False,
        logits_processor=[note],
    )
    labels = [[choice[0] for choice in one.choices] for one in asked]
    shares = [row[ids] for row, ids in zip(found, labels, strict=True)]
    return [float(yes / (yes + no)) for yes, no in shares]


def report(title: str, ways: dict[str, Way], repeats: int, count: int) -> None:
    """A table of speeds, by the clock and by this process's CPU time. Asserts that all ways say the
    same.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    said: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            clock, cpu = time.perf_counter(), time.process_time()
            said[name] = way()
            taken[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    speed = {
        name: [count / statistics.median(side) for side in zip(*runs, strict=True)]
        for name, runs in taken.items()
    }
    first = next(iter(ways))
    print(
        f"\n| {title} | pairs/s | pairs a CPU second | {first}: faster by, CPU time | largest difference of p |"
    )
    print("|---|---|---|---|---|")
    for name, (clock, cpu) in speed.items():
        apart = max(abs(one - two) for one, two in zip(said[first], said[name], strict=True))
        print(f"| {name} | {clock:.1f} | {cpu:.1f} | {speed[first][1] / cpu:.2f} | {apart:.0e} |")
        assert apart < SAME, f"{name} says something else"


if __name__ == "__main__":
    main()
