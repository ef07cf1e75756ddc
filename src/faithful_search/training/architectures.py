"""What models of known families look like, without their weights: how large they are, and small random ones of a kind.

```
shape_of("Qwen/Qwen2.5-7B-Instruct").parameters         # 7,615,616,512
build_shrunk("Qwen/Qwen2.5-7B-Instruct", "outputs/dry") # two narrow layers, grouped heads and tied matrices as there
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    set_seed,
)
from trl.chat_template_utils import qwen2_5_chat_template

from .. import dialects
from ..errors import ConfigError
from ..inference.loading import read_tokenizer
from ..tasks import read_rows, world_file

LAYERS, HEAD, GROUPS = 2, 8, 2
_PIECES = 1200
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder with grouped-query attention and a gated MLP, as Llama's and Qwen2's.

    Attributes:
        hidden, intermediate: widths of a layer and of its MLP.
        layers, heads, groups: how many; `groups` are the heads of keys and values.
        vocabulary: rows of the embedding.
        tied: whether the output matrix is the embedding.
        biased: whether queries, keys and values have a bias, as Qwen2's.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    tied: bool
    biased: bool = True

    @property
    def keys(self) -> int:
        """Width of a layer's keys, and of its values."""
        return self.hidden // self.heads * self.groups

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's linear maps: queries, keys, values, output, gate, up, down."""
        wide, narrow = (self.hidden, self.intermediate), (self.hidden, self.keys)
        return (self.hidden, self.hidden), narrow, narrow, (self.hidden, self.hidden), wide, wide, wide[::-1]

    @property
    def parameters(self) -> int:
        """How many there are in all.

        Example:
            >>> f"{shape_of('Qwen/Qwen2.5-0.5B-Instruct').parameters:,}"
            '494,032,768'
        """
        layer = sum(rows * columns for rows, columns in self.matrices) + 2 * self.hidden
        bias = self.hidden + 2 * self.keys if self.biased else 0
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.layers * (layer + bias) + ends


QWEN2 = {
    "Qwen2.5-0.5B": Shape(896, 4864, 24, 14, 2, 151_936, True),
    "Qwen2.5-1.5B": Shape(1536, 8960, 28, 12, 2, 151_936, True),
    "Qwen2.5-3B": Shape(2048, 11_008, 36, 16, 2, 151_936, True),
    "Qwen2.5-7B": Shape(3584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen2.5-14B": Shape(5120, 13_824, 48, 40, 8, 152_064, False),
}
"""By what the names of their repositories begin with; published in each one's `config.json`."""


def shape_of(name: str) -> Shape:
    """The sizes of the model in a directory, or of a known name on the Hub.

    Raises:
        ConfigError: when neither says.
    """
    config = config_of(name)
    return Shape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings,
        biased=config.model_type == "qwen2",
    )


def config_of(name: str) -> Any:
    """The Transformers configuration of the model in a directory, or of a known name on the Hub; asks no network.

    Raises:
        ConfigError: for a name that is neither.
    """
    if Path(name).is_dir():
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} says nothing of a model's architecture: {error}") from error
    known = next((shape for key, shape in QWEN2.items() if f"{name}-".rpartition("/")[2].startswith(f"{key}-")), None)
    if known is None:
        raise ConfigError(f"the architecture of {name!r} is not known: give a directory, or one of {', '.join(QWEN2)}")
    return Qwen2Config(
        hidden_size=known.hidden,
        intermediate_size=known.intermediate,
        num_hidden_layers=known.layers,
        num_attention_heads=known.heads,
        num_key_value_heads=known.groups,
        vocab_size=known.vocabulary,
        tie_word_embeddings=known.tied,
        max_position_embeddings=32_768,
    )


def build_shrunk(name: str, out: str | Path, dialect: str = "pou", seed: int = 0) -> Path:
    """Write a random model of the architecture of `name` to `out`: two narrow layers, all else of its kind.

    The tokenizer is that of a directory that has one; else one of bytes and frequent pieces, with Qwen2.5's chat
    template.

    Raises:
        ConfigError: for an architecture that is not known, or has no grouped heads to keep.
    """
    config, out = config_of(name), Path(out)
    own = (Path(name) / "tokenizer_config.json").exists()
    tokenizer = read_tokenizer(name) if own else byte_tokenizer(dialect)
    set_seed(seed)
    AutoModelForCausalLM.from_config(_shrunk(config, tokenizer)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _shrunk(config: Any, tokenizer: Any) -> Any:
    shape = config.to_dict()
    if not {"num_attention_heads", "num_key_value_heads"} <= shape.keys():
        raise ConfigError(f"a model of type {config.model_type!r} cannot be shrunk: it has no grouped heads")
    heads = GROUPS * config.num_attention_heads // config.num_key_value_heads
    changes = {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": GROUPS,
        "hidden_size": heads * HEAD,
        "intermediate_size": 2 * heads * HEAD,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "layer_types": None,
        **({"head_dim": HEAD} if shape.get("head_dim") else {}),
    }
    return type(config)(**{**shape, **changes})


def byte_tokenizer(dialect: str = "pou") -> PreTrainedTokenizerFast:
    """Bytes, and what the bundled world and the dialect's prompt often spell, with Qwen2.5's chat template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    prompt = [str(message["content"]) for message in dialects.load(dialect).prompt("", ())]
    passages = (row["text"] for row in read_rows(world_file("passages.jsonl.gz")))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_PIECES, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([*prompt * 20, *passages], trainer)
    backend.add_special_tokens(list(_SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=qwen2_5_chat_template,
    )
