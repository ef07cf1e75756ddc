"""How many pairs a second the small judges take, `counted` and `span`, beside a judge of
LettuceDetect's architecture, in one run on the same pairs.

`span` and the larger judge are untrained: how long they take depends on their sizes, not on what
their weights say. The span judge has the sizes of `recipes/configs/rm_minilm.yaml` (six layers of
384, 8 bits, onnxruntime) and long windows, or is that of `--model DIR`; the other is a ModernBERT
of its base size (22 layers of 768, float32, PyTorch), opened as the judge `lettuce`. A pair has 400
words, 30 of them the claim. They take turns, so that other load falls on all. `span` reads the
first `--span` pairs and the larger judge the first `--beside`: 100,000 would take them an hour and
more than a day.

    OMP_NUM_THREADS=1 python benchmarks/bench_small_judge.py [--model DIR] [--pairs 100000] [--span 200] [--beside 16]
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from bench_judges import WORDS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertForTokenClassification,
    PreTrainedTokenizerFast,
)

from faithful_search.distil.span_export import export
from faithful_search.distil.span_model import SpanModel
from faithful_search.judges import CountedJudge, Judge, Pair
from faithful_search.judges.distilled import JudgeFile
from faithful_search.judges.lettuce import LettuceJudge
from faithful_search.judges.span import SpanJudge

SEED, BATCH, WORDS_OF_PAIR, WORDS_OF_CLAIM = 46, 32, 400, 30
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="directory of a span judge")
    parser.add_argument("--pairs", type=int, default=200, help="pairs for counted")
    parser.add_argument("--span", type=int, default=200, help="pairs for span")
    parser.add_argument("--beside", type=int, default=16, help="pairs for the larger judge")
    parser.add_argument("--turns", type=int, default=3, help="parts in which they take turns")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    small = SpanJudge.open(str(options.model)) if options.model else untrained_span()
    large = untrained_lettuce()
    pairs = [a_pair(rng) for _ in range(options.pairs)]
    judges: dict[str, Judge] = {"counted": CountedJudge(), "span": small, "lettuce": large}
    counts = {"counted": options.pairs, "span": options.span, "lettuce": options.beside}
    speeds: dict[str, list[float]] = {name: [] for name in judges}
    for turn in range(options.turns):
        for name, judge in judges.items():
            speeds[name].append(speed(judge, pairs[: counts[name]][turn :: options.turns]))
    threads = torch.get_num_threads()
    print(f"pairs of {WORDS_OF_PAIR} words, {threads} threads, seed {SEED}")
    print(
        "| judge | pairs | pairs a CPU second | ms a pair | times lettuce |\n|---|---|---|---|---|"
    )
    medians = {name: statistics.median(parts) for name, parts in speeds.items()}
    for name, median in medians.items():
        times = median / medians["lettuce"]
        count = min(counts[name], options.pairs)
        print(f"| {name} | {count:,} | {median:.1f} | {1000 / median:.2f} | {times:.1f} |")


def a_pair(rng: random.Random) -> Pair:
    evidence = rng.choices(WORDS, k=WORDS_OF_PAIR - WORDS_OF_CLAIM)
    sentences = [" ".join(evidence[start : start + 18]) for start in range(0, len(evidence), 18)]
    return Pair(". ".join(sentences) + ".", " ".join(rng.choices(WORDS, k=WORDS_OF_CLAIM)) + ".")


def speed(judge: Judge, pairs: Sequence[Pair]) -> float:
    """Pairs a second of this process's CPU time."""
    start = time.process_time()
    for first in range(0, len(pairs), BATCH):
        judge.judge_batch(pairs[first : first + BATCH])
    return len(pairs) / (time.process_time() - start)


def word_tokenizer() -> Tokenizer:
    """One token a word, which is kind to both judges alike."""
    names = {name: number for number, name in enumerate([*SPECIAL, *WORDS, "."])}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def untrained_span() -> SpanJudge:
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
    network = SpanModel(BertModel(BertConfig(num_attention_heads=12, **shape)))
    with TemporaryDirectory() as folder:
        export(network, word_tokenizer(), Path(folder))
        JudgeFile("span", "support", window=256, hypothesis_window=160).write(folder)
        size = (Path(folder) / "model.onnx").stat().st_size / 1e6
        print(f"the span judge has {size:.1f} MB")
        return SpanJudge.open(folder)


def untrained_lettuce() -> LettuceJudge:
    network = ModernBertForTokenClassification(ModernBertConfig(num_labels=2)).eval()
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), model_max_length=4096, **named
    )
    return LettuceJudge(network, tokenizer, "untrained")


if __name__ == "__main__":
    main()
