"""Tiny models of words w0 to w199: their tokenizers, entailment models, an embedding model and its
files.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from faithful_search.trajectory import Evidence

WORDS = [f"W{number}" for number in range(200)]
LABELS = {0: "CONTRADICTION", 1: "neutral", 2: "Entailment"}
SHAPE = {
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
}
SHAPE |= {"num_hidden_layers": 2, "num_attention_heads": 2}
LONG = " ".join(f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 196, 7))


def bert_tokenizer(longest: int = 64) -> Any:
    """One token a word, pairs as BERT writes them."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {
        word: number for number, word in enumerate([*special, ".", *map(str.lower, WORDS)])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=longest, **named)


def bert(labels: dict[int, str] = LABELS, spread: float = 0.5, **named: Any) -> Any:
    torch.manual_seed(1)
    told = {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
    return BertForSequenceClassification(
        BertConfig(**SHAPE, **told, initializer_range=spread, **named)
    ).eval()


def t5_tokenizer(whole: str = "▁1") -> Any:
    """Metaspace pieces; `whole` says which label is one piece together with its blank, as in T5's
    own vocabulary.
    """
    pieces = ["<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz.:01"]
    scores = [(piece, -3.0) for piece in pieces] + ([(whole, -1.0)] if whole else [])
    backend = Tokenizer(models.Unigram(scores, unk_id=2))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=200,
    )


def t5() -> Any:
    torch.manual_seed(4)
    size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=40,
            decoder_start_token_id=0,
            initializer_factor=1.0,
            tie_word_embeddings=False,
            **size,
        )
    ).eval()


def tiny_encoder(seed: int = 5, size: int = 16) -> Any:
    torch.manual_seed(seed)
    config = BertConfig(**SHAPE | {"hidden_size": size}, initializer_range=0.5)
    return BertModel(config, add_pooling_layer=False).eval()


def saved(folder: Path, encoder: Any = None, tokenizer: Any = None, **files: Any) -> str:
    """A model's directory with these JSON files beside it."""
    (encoder or tiny_encoder()).save_pretrained(folder)
    (tokenizer or bert_tokenizer()).save_pretrained(folder)
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


def other_model(folder: Path, size: int = 16) -> str:
    """The directory of a model whose vectors are others."""
    return saved(folder, tiny_encoder(99, size))


COUNT = 300


def corpus(count: int = COUNT) -> list[Evidence]:
    draw = np.random.default_rng(7)
    texts = [
        " ".join(f"w{word}" for word in draw.integers(0, 190, draw.integers(3, 12)))
        for _ in range(count)
    ]
    return [
        Evidence(text=text, title=f"w{n % 190}", source=f"p{n}", url=f"u{n}")
        for n, text in enumerate(texts)
    ]


QUERIES = ["w1 w2", "w50 w3 w7", "", "w180"]
