"""How many pairs a second the model judges take, batched by length and batched as the pairs come, in one run.

The pairs have evidence of very different lengths, as search results do. The `nli` judge asks an untrained BERT, the
`generator` judge the bundled tiny policy: how long they take depends on their sizes, not on what their weights say.
Without sorting, the same texts go through the same model in batches of at most as many tokens, padded to the longest.
Run: `python benchmarks/bench_judges.py`
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from faithful_search.bundled import tiny_policy
from faithful_search.judges import Judge, Pair, generator, load, nli

COUNT, REPEATS, SEED, BATCH_TOKENS = 96, 3, 7, 4096
VOCABULARY = """
river treaty museum station village engine album season council bridge castle election company novel island player
general theatre market harbour symphony mountain railway professor painting district language empire garden
"""
WORDS = VOCABULARY.split()


def main() -> None:
    """Print both speeds of each judge, their ratio, and that both say the same."""
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    pairs = [make_pair(rng) for _ in range(COUNT)]
    words = sorted(len(pair.premise.split()) for pair in pairs)
    print(f"{COUNT} pairs, evidence of {words[0]} to {words[-1]} words (median {words[COUNT // 2]}), seed {SEED}")
    print(f"batches of at most {BATCH_TOKENS} tokens, {torch.get_num_threads()} threads, median of {REPEATS} runs")
    report("nli, untrained BERT", untrained_nli(), nli, pairs)
    report("generator, tiny policy", load("generator", str(tiny_policy()), batch_tokens=BATCH_TOKENS), generator, pairs)


def make_pair(rng: random.Random) -> Pair:
    """Evidence of 5 to 400 words, most of it short."""
    length = round(5 * 80 ** (rng.random() ** 1.5))
    return Pair(" ".join(rng.choices(WORDS, k=length)), " ".join(rng.choices(WORDS, k=8)))


def untrained_nli() -> Judge:
    """A BERT of four layers that has learnt nothing, one token a word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **names)
    size: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    labels = {0: "entailment", 1: "neutral", 2: "contradiction"}
    config = BertConfig(vocab_size=64, num_attention_heads=4, id2label=labels, initializer_range=0.2, **size)
    model = BertForSequenceClassification(config).eval()
    return nli.NLIJudge(model, tokenizer, "untrained", window=450, batch_tokens=BATCH_TOKENS)


def report(title: str, judge: Judge, module: Any, pairs: Sequence[Pair]) -> None:
    """One line about a judge; the runs of both ways take turns, so that other load falls on both."""
    seconds: dict[str, list[float]] = {"sorted": [], "as they come": []}
    said: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        for way, taken in seconds.items():
            with batching(module, unsorted_batches if way == "as they come" else module.batches):
                start = time.perf_counter()
                said[way] = [verdict.p or 0.0 for verdict in judge.judge_batch(pairs)]
                taken.append(time.perf_counter() - start)
    speed = {way: len(pairs) / statistics.median(taken) for way, taken in seconds.items()}
    apart = max(abs(one - other) for one, other in zip(*said.values(), strict=True))
    print(
        f"{title:<24} by length {speed['sorted']:>7.1f} pairs/s   as they come {speed['as they come']:>7.1f} pairs/s   "
        f"ratio {speed['sorted'] / speed['as they come']:.2f}   largest difference of p {apart:.0e}"
    )


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
def batching(module: Any, way: Callable[[Sequence[int], int], Iterator[list[int]]]) -> Iterator[None]:
    """The judge of `module` makes its batches this way."""
    own = module.batches
    module.batches = way
    try:
        yield
    finally:
        module.batches = own


if __name__ == "__main__":
    main()
