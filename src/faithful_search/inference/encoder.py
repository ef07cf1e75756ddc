"""Texts as vectors, with any encoder of Transformers or sentence-transformers."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from transformers import AutoModel

from ..errors import ConfigError
from ..text import well_formed
from .batching import batches
from .loading import file_beside, max_tokens, open_model

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
# For families of encoders, by a pattern of their names, what they were trained to read before
# queries and before passages
_FAMILIES: tuple[tuple[str, str, str], ...] = (
    (r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", "query: ", "passage: "),
    (r"multilingual-e5-large-instruct", _TASK, ""),
    (
        r"bge-(small|base|large)-en(-v1\.5)?",
        "Represent this sentence for searching relevant passages: ",
        "",
    ),
)


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
        """The encoder of a Hub id or a directory.

        Pooling, length and prefixes are those that the files of sentence-transformers beside the
        model name. Without such files the mean is taken over at most 512 tokens, and E5 and BGE
        models get the prefixes of their cards.

        Args:
            device, dtype, revision, trust_remote_code: see `open_model`.
            kwargs: fields of this class, in the place of what the files say.

        Raises:
            ConfigError: the model cannot be opened, or has parts or a pooling of another kind.
        """
        read_json = partial(_json_beside, model, revision)
        parts = {}  # by the last part of their class's name
        for part in read_json("modules.json") or [_PLAIN]:
            parts[part["type"].rsplit(".", 1)[-1]] = part
        # To leave out a dense layer, for example, would give other vectors, and nobody would know.
        unknown = parts.keys() - {"Transformer", "Pooling", "Normalize"}
        if unknown:
            raise ConfigError(
                f"{model!r} has parts that cannot be used here: {', '.join(sorted(unknown))}"
            )
        folder = parts.get("Transformer", _PLAIN)["path"]
        where: dict[str, Any] = {
            "revision": revision,
            "subfolder": folder,
            "trust_remote_code": trust_remote_code,
        }
        encoder, tokenizer = open_model(AutoModel, model, device=device, dtype=dtype, **where)
        config = read_json("config_sentence_transformers.json") or {}
        prompts = config.get("prompts") or {}
        query_prefix = prompts.get("query") or ""
        passage_prefix = prompts.get("passage") or prompts.get("document") or ""
        if not query_prefix and not passage_prefix:  # the first E5 and BGE models lack the file
            query_prefix, passage_prefix = known_prefixes(model)
        poolings = ["pooling_mode_mean_tokens"]
        if "Pooling" in parts:
            pooling_config = read_json(f"{parts['Pooling']['path']}/config.json") or {}
            poolings = []
            for name, value in pooling_config.items():
                if name.startswith("pooling_mode_") and value is True:
                    poolings.append(name)
        if len(poolings) != 1 or poolings[0] not in _POOLINGS:
            raise ConfigError(
                f"{model!r} pools by {', '.join(poolings) or 'nothing'}; what can be used: one of "
                f"{', '.join(_POOLINGS)}"
            )
        lengths = read_json(f"{folder}/sentence_bert_config.json".lstrip("/")) or {}
        limit = lengths.get("max_seq_length")
        if not limit:
            limit = min(512, max_tokens(encoder, tokenizer) or 512)
        settings: dict[str, Any] = {
            "pooling": _POOLINGS[poolings[0]],
            "limit": limit,
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
        }
        return cls(encoder, tokenizer, model, **(settings | kwargs))

    def encode(
        self, texts: Sequence[str], kind: Literal["query", "passage"] | None = None
    ) -> np.ndarray:
        """Vectors of shape `(len(texts), dimension)`, float32, in the order of the texts.

        Args:
            kind: which prefix the texts get; `None` for none.
        """
        prefix = {"query": self.query_prefix, "passage": self.passage_prefix, None: ""}[kind]
        prefixed = [prefix + text for text in texts]
        rows = self._encoded(prefixed, truncation=True, max_length=self.limit)
        vectors = np.zeros((len(rows), self.model.config.hidden_size), dtype=np.float32)
        # Texts of similar length share a batch, so that little of it is padding.
        lengths = [len(ids) for ids in rows]
        for batch in batches(lengths, self.batch_tokens):
            ids = {"input_ids": [rows[row] for row in batch]}
            inputs = self.tokenizer.pad(ids, return_tensors="pt").to(self.model.device)
            with torch.inference_mode():
                # In half precision sums over many tokens would lose too much.
                states = self.model(**inputs).last_hidden_state.float()
            pooled = self._pooled(states, inputs["attention_mask"].bool())
            vectors[batch] = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors

    def _pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector for each text.

        Args:
            states: of its tokens; (texts, tokens, dimension).
            mask: which tokens are no padding; (texts, tokens).
        """
        if self.pooling == "cls":  # the first token that is no padding, which may stand on the left
            return states[torch.arange(len(states)), mask.int().argmax(-1)]
        if self.pooling == "max":
            return states.masked_fill(~mask[:, :, None], float("-inf")).amax(1)
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return (states * mask[:, :, None]).sum(1) / lengths

    def count(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, without special ones."""
        return [len(ids) for ids in self._encoded(texts, add_special_tokens=False)]

    @property
    def room(self) -> int:
        """Tokens of a text that are read, without special ones."""
        return self.limit - self.tokenizer.num_special_tokens_to_add()

    def _encoded(self, texts: Sequence[str], **kwargs: Any) -> list[list[int]]:
        """The token ids of each text; `kwargs` are the tokenizer's."""
        if not texts:
            return []
        encodable = [well_formed(text) for text in texts]  # tokenizers refuse lone surrogates
        # `split_special_tokens`: "[SEP]" in a text is five characters, and not the token.
        inputs = self.tokenizer(encodable, split_special_tokens=True, verbose=False, **kwargs)
        return inputs["input_ids"]


def _json_beside(model: str, revision: str | None, name: str) -> Any:
    """The content of a JSON file beside a model; `None` where there is no such file."""
    path = file_beside(model, name, revision)
    try:
        return None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot open the model {model!r}: {name}: {error}") from error


def known_prefixes(model: str) -> tuple[str, str]:
    """The prefixes of queries and of passages that a model was trained with, by the last part of
    its Hub id or path; empty for a model that is not known here.
    """
    name = re.split(r"[\\/]", model.rstrip("\\/"))[-1].lower()
    for pattern, query, passage in _FAMILIES:
        if re.fullmatch(pattern, name):
            return query, passage
    return "", ""
