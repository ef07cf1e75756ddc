"""Model configurations by name without a network, and small random models of the same architecture for dry runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, set_seed
from trl.chat_template_utils import qwen2_5_chat_template

from ..errors import ConfigError
from ..inference.loading import read_tokenizer
from ..tasks import read_rows, world_file

QWEN2 = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151_936, True),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151_936, True),
    "Qwen2.5-3B": (2048, 11_008, 36, 16, 2, 151_936, True),
    "Qwen2.5-7B": (3584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen2.5-14B": (5120, 13_824, 48, 40, 8, 152_064, False),
}
"""`FIELDS` of published configurations, by what the names of their repositories begin with."""
FIELDS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "tie_word_embeddings"),
)
LAYERS, HEAD, GROUPS = 2, 8, 2


def config_of(name: str) -> Any:
    """The Transformers configuration of the model in a directory, or of a name in `QWEN2`; asks no network.

    Raises:
        ConfigError: for a name that is neither.
    """
    if Path(name).is_dir():
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} has no readable model configuration: {error}") from error
    known = next((sizes for key, sizes in QWEN2.items() if f"{name}-".rpartition("/")[2].startswith(f"{key}-")), None)
    if known is None:
        raise ConfigError(f"the architecture of {name!r} is not known: give a directory, or one of {', '.join(QWEN2)}")
    sizes: dict[str, Any] = dict(zip(FIELDS, known, strict=True))
    return Qwen2Config(**sizes, max_position_embeddings=32_768)


def build_shrunk(name: str, out: str | Path, seed: int = 0) -> Path:
    """Write a random model of the architecture of `name` to `out`: two narrow layers, everything else as there.

    The tokenizer is the directory's own, else one of bytes and what the bundled world often spells, with Qwen2.5's chat
    template.

    Raises:
        ConfigError: for an architecture that is not known or has no grouped heads to keep.
    """
    config, out = config_of(name), Path(out)
    tokenizer = read_tokenizer(name) if (Path(name) / "tokenizer_config.json").exists() else _byte_tokenizer()
    values = config.to_dict()
    if not {"num_attention_heads", "num_key_value_heads"} <= values.keys():
        raise ConfigError(f"a model of type {config.model_type!r} cannot be shrunk: it has no grouped heads")
    heads = GROUPS * config.num_attention_heads // config.num_key_value_heads
    values |= {
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
        **({"head_dim": HEAD} if values.get("head_dim") else {}),
    }
    set_seed(seed)
    AutoModelForCausalLM.from_config(type(config)(**values)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    backend, level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer, backend.decoder = level, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=level.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator((row["text"] for row in read_rows(world_file("passages.jsonl.gz"))), trainer)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=qwen2_5_chat_template, **ends)
