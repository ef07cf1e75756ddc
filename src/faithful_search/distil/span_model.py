"""The network of a span judge: an encoder with two heads, one for each token of the hypothesis and
one for the pair.

```
x      = word embedding + mark embedding, read by the encoder -> h
token  = sigmoid(w · h_i)                       that token i of the hypothesis is not supported
pair   = sigmoid(v · gelu(U [h_cls; mean h_i; max h_i]))      that the hypothesis is supported
loss   = BCE(pair) + weight * BCE(token), where the places of errors are known
```

The heads look opposite ways: 1 is good of a pair and bad of a token, since a token is marked where
something is wrong with it. So are their labels.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, gelu
from transformers import AutoModel

from ..errors import ConfigError
from ..inference.loading import opening, read_config, read_tokenizer
from ..judges import distilled
from ..judges.span import TOKENIZER
from ..judges.span_inputs import MARKS, SpanReader, unsupported_tokens
from ..measure.agreement import Labelled

WEIGHTS = "model.safetensors"
IGNORED = -1.0
"""The label of a token of which nothing is known."""


class SpanModel(nn.Module):
    """See the module. `token_weight` is that of the tokens' loss beside the pair's."""

    def __init__(self, encoder: Any, token_weight: float = 0.5) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = encoder.config  # the trainer writes it down
        self.token_weight = token_weight
        width = self.config.hidden_size
        self.marks = nn.Embedding(len(MARKS), width)
        nn.init.normal_(self.marks.weight, std=0.02)
        self.token_head = nn.Linear(width, 1)
        self.pair_inner = nn.Linear(3 * width, width)
        self.pair_head = nn.Linear(width, 1)

    def forward(
        self,
        input_ids: torch.Tensor,
        marks: torch.Tensor,
        attention_mask: torch.Tensor,
        claim_mask: torch.Tensor,
        labels: torch.Tensor | None = None,
        token_labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """`logits` (rows) of support, and `token_logits` (rows, tokens) of the lack of it; with
        labels also the `loss`.
        """
        words = self.encoder.get_input_embeddings()(input_ids)
        embedded = (words + self.marks(marks)).to(words.dtype)  # that of the encoder's weights
        output = self.encoder(inputs_embeds=embedded, attention_mask=attention_mask)
        states = output.last_hidden_state.float()
        token_logits = self.token_head(states).squeeze(-1)
        in_claim = claim_mask.unsqueeze(-1).to(states.dtype)  # 1 there, 0 elsewhere
        mean = (states * in_claim).sum(1) / in_claim.sum(1).clamp(min=1)
        # Other tokens are pushed far below, so that none of them is the greatest
        most = (states + (in_claim - 1) * 1e4).amax(1)
        pooled = torch.cat([states[:, 0], mean, most], -1)
        logits = self.pair_head(gelu(self.pair_inner(pooled))).squeeze(-1)
        outputs = {"logits": logits, "token_logits": token_logits}
        if labels is not None:
            loss = binary_cross_entropy_with_logits(logits.float(), labels)
            if token_labels is not None:
                loss = loss + self.token_weight * _token_loss(token_logits.float(), token_labels)
            outputs["loss"] = loss
        return outputs


def open_span_model(
    encoder: str, token_weight: float = 0.5, seed: int = 0, **kwargs: Any
) -> tuple[SpanModel, Tokenizer]:
    """A new network on an encoder, a Hub id or a directory, and the encoder's tokenizer.

    Heads and marks are initialised from `seed`. `kwargs` are of `from_pretrained`; the weights are
    float32 unless they say otherwise.

    Raises `ConfigError` if it cannot be opened, for a tokenizer without [CLS] and [SEP], and for a
    directory in which a span judge was saved, which `open_saved` opens.
    """
    if is_saved(encoder):
        raise ConfigError(
            f"{encoder!r} is a span judge, not an encoder: `open_saved` opens it with its heads"
        )
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    kwargs.setdefault("dtype", torch.float32)
    tokenizer = _tokenizer(encoder, kwargs.get("revision"), kwargs.get("trust_remote_code", False))
    torch.manual_seed(seed)
    with opening(f"the encoder {encoder!r}"):
        return SpanModel(AutoModel.from_pretrained(encoder, **kwargs), token_weight), tokenizer


def open_saved(
    folder: str,
    token_weight: float = 0.5,
    *,
    dtype: torch.dtype | str = torch.float32,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[SpanModel, Tokenizer]:
    """The network that `save` wrote into a directory, and its tokenizer.

    `dtype` is that of the encoder's weights, "auto" the one that its configuration names; the heads
    are float32. Raises `ConfigError` as `open_span_model` does.
    """
    tokenizer = _tokenizer(folder, None, trust_remote_code)
    config = read_config(folder, trust_remote_code=trust_remote_code)
    kwargs: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if dtype != "auto":  # which `from_config` does not know: without a dtype it does the same
        kwargs["dtype"] = dtype
    if attn_implementation is not None:
        kwargs["attn_implementation"] = attn_implementation
    with opening(f"the span judge {folder!r}"):
        model = SpanModel(AutoModel.from_config(config, **kwargs), token_weight)
        load_model(model, Path(folder) / WEIGHTS)
    return model, tokenizer


def is_saved(name: str) -> bool:
    """Whether this is a directory in which a span judge was saved."""
    folder = Path(name)
    return (folder / distilled.FILE).is_file() and (folder / WEIGHTS).is_file()


def _tokenizer(name: str, revision: str | None, trust_remote_code: bool) -> Tokenizer:
    tokenizer = read_tokenizer(name, revision=revision, trust_remote_code=trust_remote_code)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or None in map(backend.token_to_id, ("[CLS]", "[SEP]")):
        raise ConfigError(f"the tokenizer of {name!r} is not one of BERT's kind")
    return backend


def save(model: SpanModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the weights, the encoder's configuration and the tokenizer, from which training can go
    on.
    """
    model.config.save_pretrained(folder)
    tokenizer.save(str(folder / TOKENIZER))
    save_model(model, str(folder / WEIGHTS))


def span_rows(reader: SpanReader, rows: Sequence[Labelled]) -> list[dict[str, Any]]:
    """What the network is trained on: an example for each part in which a hypothesis is read.

    An example holds

    - `input_ids` and `marks`: a number for each token, as in `SpanInput`
    - `claim`: the first token of the hypothesis and the one behind its last
    - `labels`: 1.0 if the part is supported, else 0.0
    - `token_labels`, one for each token of the hypothesis: 1.0 if it is *not* supported, 0.0 if it
      is, `IGNORED` where that is not known, as in a false pair without `spans`
    - `length`: the number of tokens

    Of a false hypothesis in several parts those are false in which one of its `spans` begins, ends
    or goes on. Without `spans` nobody knows which parts these are, so such rows are left out, and
    rows with a blank hypothesis, too.
    """
    examples = []
    for row in rows:
        readings = reader.readings(row.pair)
        spans = row.spans
        if spans is None and row.label:
            spans = ()  # all of it is supported
        if spans is None and len(readings) > 1:
            continue
        for reading in readings:
            start, end = reading.claim
            is_supported = row.label
            token_labels = [IGNORED] * (end - start)
            if spans is not None:
                are_unsupported = unsupported_tokens(reading, spans)
                token_labels = list(map(float, are_unsupported))
                if len(readings) > 1:
                    is_supported = not any(are_unsupported)
            examples.append(
                {
                    "input_ids": reading.ids,
                    "marks": reading.marks,
                    "claim": list(reading.claim),
                    "token_labels": token_labels,
                    "labels": float(is_supported),
                    "length": len(reading.ids),
                }
            )
    return examples


def collate(
    rows: Sequence[Mapping[str, Any]], pad_to_multiple_of: int | None = None
) -> dict[str, torch.Tensor]:
    """A batch of what `span_rows` gives, padded to its longest row, or to the next multiple."""
    multiple = pad_to_multiple_of or 1
    longest = max(len(row["input_ids"]) for row in rows)
    shape = len(rows), math.ceil(longest / multiple) * multiple
    batch: dict[str, torch.Tensor] = {
        "input_ids": torch.zeros(shape, dtype=torch.long),
        "marks": torch.zeros(shape, dtype=torch.long),
        "attention_mask": torch.zeros(shape, dtype=torch.long),
        "claim_mask": torch.zeros(shape, dtype=torch.long),
        "token_labels": torch.full(shape, IGNORED),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }
    for number, row in enumerate(rows):
        size = len(row["input_ids"])
        start, end = row["claim"]
        batch["input_ids"][number, :size] = torch.tensor(row["input_ids"])
        batch["marks"][number, :size] = torch.tensor(row["marks"])
        batch["attention_mask"][number, :size] = 1
        batch["claim_mask"][number, start:end] = 1
        batch["token_labels"][number, start:end] = torch.tensor(row["token_labels"])
    return batch


def _token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of each one's mean over its labelled tokens; unsupported tokens, which are
    rare, weigh three times as much.
    """
    is_labelled = (labels != IGNORED).float()
    is_unsupported = labels.clamp(min=0)
    losses = binary_cross_entropy_with_logits(logits, is_unsupported, reduction="none")
    weights = is_labelled * (1 + 2 * is_unsupported)
    row_losses = (losses * weights).sum(1) / weights.sum(1).clamp(min=1)
    has_labels = (is_labelled.sum(1) > 0).float()  # 1 for each row with a labelled token, else 0
    return (row_losses * has_labels).sum() / has_labels.sum().clamp(min=1)
