"""Texts as vectors, with any Transformers encoder; the files of sentence-transformers beside a
model are followed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from transformers import AutoModel

from ..errors import ConfigError
from ..text import well_formed
from .batching import batches
from .hub_files import file_beside
from .loading import max_tokens, open_model

Pooling = Literal["mean", "cls", "max"]
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_PLAIN = {"type": "Transformer", "path": ""}  # a model without files of sentence-transformers
_TASK = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)
_FAMILIES: tuple[tuple[str, str, str], ...] = (
    (r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", "query: ", "passage: "),
    (r"multilingual-e5-large-instruct", _TASK, ""),
    (
        r"bge-(small|base|large)-en(-v1\.5)?",
        "Represent this sentence for searching relevant passages: ",
        "",
    ),
)
"""What encoders of retrieval were trained to read before queries and passages."""


@dataclass(frozen=True)
class Encoder:
    """Maps texts to vectors of length 1, so that their dot product is the cosine."""

    model: Any = field(repr=False, compare=False)  # in eval mode
    tokenizer: Any = field(repr=False, compare=False)  # with a padding token
    source: str = ""  # where the model comes from
    # How a text's token vectors become one: their mean, the first, or their greatest values
    pooling: Pooling = "mean"
    # Tokens of a text that are read, special ones included; what is longer is cut at its end
    limit: int = 512
    query_prefix: str = ""  # written before each text that is encoded as a query (E5: "query: ")
    passage_prefix: str = ""  # the same for passages (E5: "passage: ")
    batch_tokens: int = 8192  # tokens of a batch, padding included

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        **kwargs: Any,
    ) -> Self:
        """The encoder of a Hub id or a directory; `trust_remote_code` as of `open_model`.

        Pooling, length and prefixes are those that the sentence-transformers files beside the model
        name; without such files the mean is taken over at most 512 tokens, and E5 and BGE models
        get the prefixes of their cards. Other parts and poolings are a `ConfigError`.
        """
        files = _FilesBeside(model, revision)
        parts = files.parts()
        folder = parts.get("Transformer", _PLAIN)["path"]
        encoder, tokenizer = open_model(
            AutoModel,
            model,
            device=device,
            dtype=dtype,
            revision=revision,
            subfolder=folder,
            trust_remote_code=trust_remote_code,
        )
        query_prefix, passage_prefix = files.prefixes()
        pooling = files.pooling(parts.get("Pooling"))
        limit = files.read("sentence_bert_config.json", folder).get("max_seq_length")
        if not limit:
            limit = min(512, max_tokens(encoder, tokenizer) or 512)
        settings: dict[str, Any] = {
            "pooling": pooling,
            "limit": limit,
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
        }
        return cls(encoder, tokenizer, model, **(settings | kwargs))

    def encode(
        self, texts: Sequence[str], kind: Literal["query", "passage"] | None = None
    ) -> np.ndarray:
        """Vectors of shape `(len(texts), d)`, float32, in the order of the texts; `kind` says which
        prefix they get.
        """
        prefix = {"query": self.query_prefix, "passage": self.passage_prefix, None: ""}[kind]
        prefixed = [prefix + text for text in texts]
        rows = self._encoded(prefixed, truncation=True, max_length=self.limit)
        lengths = [len(ids) for ids in rows]
        vectors = np.zeros((len(rows), self.model.config.hidden_size), dtype=np.float32)
        # texts of like length together, so that little of a batch is padding
        for batch in batches(lengths, self.batch_tokens):
            unpadded = {"input_ids": [rows[row] for row in batch]}
            inputs = self.tokenizer.pad(unpadded, return_tensors="pt").to(self.model.device)
            with torch.inference_mode():
                # sums over many tokens lose too much in half precision
                states = self.model(**inputs).last_hidden_state.float()
            pooled = self._pooled(states, inputs["attention_mask"].bool())
            unit = torch.nn.functional.normalize(pooled, dim=-1)
            vectors[batch] = unit.cpu().numpy()
        return vectors

    def _pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector of each text's states; `mask` tells its tokens from padding."""
        if self.pooling == "cls":
            first_tokens = mask.int().argmax(-1)  # padding may stand on the left
            return states[torch.arange(len(states)), first_tokens]
        is_token = mask[:, :, None]
        if self.pooling == "max":
            return states.masked_fill(~is_token, float("-inf")).amax(1)
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return (states * is_token).sum(1) / lengths

    def count(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, special ones left out."""
        return [len(ids) for ids in self._encoded(texts, add_special_tokens=False)]

    @property
    def room(self) -> int:
        """Tokens of a text that are read, special ones left out."""
        return self.limit - self.tokenizer.num_special_tokens_to_add()

    def _encoded(self, texts: Sequence[str], **kwargs: Any) -> list[list[int]]:
        if not texts:
            return []
        # tokenizers refuse lone surrogates; a text that spells control tokens is read as the
        # characters it is
        encodable = [well_formed(text) for text in texts]
        inputs = self.tokenizer(encodable, split_special_tokens=True, verbose=False, **kwargs)
        return inputs["input_ids"]


class _FilesBeside(NamedTuple):
    """The JSON files of sentence-transformers beside a model. Each method raises `ConfigError` for
    a file that is no JSON.
    """

    model: str
    revision: str | None

    def read(self, name: str, folder: str = "") -> Any:
        """What a file holds; an empty mapping where there is none, or nothing in it. `folder` is
        that of one of the model's parts.
        """
        if folder:
            name = f"{folder}/{name}"
        path = file_beside(self.model, name, self.revision)
        if path is None:
            return {}
        try:
            return json.loads(path.read_text(encoding="utf-8")) or {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot open the model {self.model!r}: {name}: {error}") from error

    def parts(self) -> dict[str, dict[str, Any]]:
        """The model's parts by the names of their classes. Raises `ConfigError` for other parts
        than are used here.
        """
        parts: dict[str, dict[str, Any]] = {}
        for part in self.read("modules.json") or [_PLAIN]:
            class_name = part["type"].rpartition(".")[2]
            parts[class_name] = part
        # a dense layer left out would give other vectors without a word
        unknown = parts.keys() - {"Transformer", "Pooling", "Normalize"}
        if unknown:
            raise ConfigError(
                f"{self.model!r} has parts that cannot be used here: {', '.join(sorted(unknown))}"
            )
        return parts

    def prefixes(self) -> tuple[str, str]:
        """What is written before queries and before passages."""
        prompts = self.read("config_sentence_transformers.json").get("prompts") or {}
        query = prompts.get("query") or ""
        passage = prompts.get("passage") or prompts.get("document") or ""
        if query or passage:
            return query, passage
        return known_prefixes(self.model)  # the first E5 and BGE models have no such file

    def pooling(self, part: dict[str, Any] | None) -> Pooling:
        """How this part pools; the mean without one. Raises `ConfigError` for any other pooling
        than one of `_POOLINGS`.
        """
        if part is None:
            return "mean"
        modes = []
        for name, value in self.read("config.json", part["path"]).items():
            if name.startswith("pooling_mode_") and value is True:
                modes.append(name)
        if len(modes) != 1 or modes[0] not in _POOLINGS:
            used = ", ".join(modes) or "nothing"
            usable = ", ".join(_POOLINGS)
            raise ConfigError(f"{self.model!r} pools by {used}; what can be used: one of {usable}")
        return _POOLINGS[modes[0]]


def known_prefixes(model: str) -> tuple[str, str]:
    """Prefixes of queries and of passages, by the last part of a Hub id or path; empty for a model
    not known here.
    """
    name = re.split(r"[\\/]", model.rstrip("\\/"))[-1].lower()
    for pattern, query, passage in _FAMILIES:
        if re.fullmatch(pattern, name):
            return query, passage
    return "", ""
