"""Models that become judges: a classifier with two labels from any checkpoint, with parts of it frozen."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoModelForSequenceClassification, set_seed

from ..errors import ConfigError
from ..inference.loading import read_config, read_tokenizer

LABELS = {0: "not_entailment", 1: "entailment"}


def open_classifier(name: str, seed: int = 0, **how: Any) -> tuple[Any, Any]:
    """A sequence classifier with the labels `not_entailment` and `entailment`, and its tokenizer.

    Any encoder or decoder will do; a classifier's head is kept if it has these two labels, else it is initialised from
    `seed`. The weights are float32 unless `how` says otherwise. A tokenizer that puts nothing between two texts (most
    decoders') gets its end-of-text token there and at the end; padding is on the right.

    Raises:
        ConfigError: if it cannot be opened (or only by its own code, without `trust_remote_code=True`), or its
            tokenizer lacks an end-of-text token that is needed.
    """
    how = {"dtype": torch.float32, **{key: value for key, value in how.items() if value is not None}}
    where = {"revision": how.pop("revision", None), "trust_remote_code": how.pop("trust_remote_code", False)}
    config, tokenizer = read_config(name, **where), read_tokenizer(name, **where)
    try:
        kept = {str(label).lower() for label in config.id2label.values()} == set(LABELS.values())
        labels = {} if kept else {"id2label": LABELS, "label2id": {text: place for place, text in LABELS.items()}}
        set_seed(seed)  # a new head is random
        model = AutoModelForSequenceClassification.from_pretrained(
            name, ignore_mismatched_sizes=not kept, **labels, **where, **how
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot open {name!r} as a classifier: {error}") from error
    tokenizer = _for_pairs(tokenizer)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def entailment_index(model: Any) -> int:
    """The number of the label `entailment`."""
    return next(int(place) for place, label in model.config.id2label.items() if str(label).lower() == LABELS[1])


def freeze(model: Any, embeddings: bool = False, layers: int = 0) -> None:
    """Freeze the embeddings and the lowest `layers` layers.

    With any layer, the table of relative positions that all layers read (MPNet's) is frozen too: its gradient would
    have to pass through the frozen layers.

    Raises:
        ConfigError: if the model has fewer layers.
    """
    stack: Any = max((part for part in model.modules() if isinstance(part, nn.ModuleList)), key=len, default=[])
    if layers > len(stack):
        raise ConfigError(f"cannot freeze {layers} layers of {model.config.name_or_path!r}, which has {len(stack)}")
    named = ["embeddings", "embed_tokens", "wte", "wpe"] if embeddings else []
    named += ["relative_attention_bias"] if layers else []
    for part in (*stack[:layers], *(part for name, part in model.named_modules() if name.rpartition(".")[2] in named)):
        part.requires_grad_(False)


def _for_pairs(tokenizer: Any) -> Any:
    """The tokenizer, so that two texts stay two and rows can be padded."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add():
        return tokenizer
    end, backend = tokenizer.eos_token, getattr(tokenizer, "backend_tokenizer", None)
    if end is None or backend is None:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} puts nothing between two texts, and is not a fast one with "
            "an end-of-text token to put there"
        )
    backend.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer
