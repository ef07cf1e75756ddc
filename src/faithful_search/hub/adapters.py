"""What cards say of adapters: of what model they are, and of what a full model was merged from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..wire.redact import redact
from .pushing import is_hub_id

TAGS = ("lora", "peft")


def adapter_config(folder: str | Path) -> dict[str, Any] | None:
    """PEFT's settings of the adapter in a folder; `None` where there is none.

    Raises:
        ConfigError: when they cannot be read.
    """
    file = Path(folder) / "adapter_config.json"
    if not file.exists():
        return None
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def adapter_note(config: Mapping[str, Any], name: str) -> str:
    """The paragraph of an adapter's card that says what it is.

    Example:
        >>> adapter_note({"r": 8, "base_model_name_or_path": "me/base"}, "me/policy").splitlines()[0]
        'The weights are those of a LoRA adapter of rank 8; the model below them, `me/base`, is'
    """
    kind = "DoRA" if config.get("use_dora") else str(config.get("peft_type") or "LoRA").replace("LORA", "LoRA")
    base = config.get("base_model_name_or_path")
    return (
        f"The weights are those of a {kind} adapter of rank {config.get('r')}; the model below them, `{base}`, is\n"
        f"loaded with it. This writes a full model that needs no PEFT: `faithful-search merge {name} OUT`."
    )


def merged_note(config: Mapping[str, Any], adapter: str) -> str:
    """The paragraph of a merged model's card in its place."""
    base = config.get("base_model_name_or_path")
    return f"The weights are full ones: those of `{base}`, with the adapter\n`{adapter}` merged into them."


def merged_card(adapter: str | Path, out: str | Path) -> Path:
    """Write the card of the merged model in `out`: its adapter's, changed where it differs.

    Args:
        adapter: the adapter's folder.
        out: the merged model's.

    Raises:
        ConfigError: when there is no adapter.
    """
    from huggingface_hub import ModelCard

    adapter, out = Path(adapter), Path(out)
    config = adapter_config(adapter)
    if config is None:
        raise ConfigError(f"there is no PEFT adapter in {adapter}")
    own, merged = adapter_note(config, str(adapter)), merged_note(config, str(adapter))
    card: Any = ModelCard.load(adapter / "README.md") if (adapter / "README.md").exists() else ModelCard("")
    text = card.text.replace(own, merged) if own in card.text else f"# {out.name}\n\nA search agent. {merged}\n"
    card.text = text.replace(json.dumps(str(adapter)), json.dumps(str(out)))
    card.data.library_name = "transformers"
    card.data.tags = [tag for tag in card.data.tags or ["faithful-search"] if tag not in TAGS]
    base = str(config.get("base_model_name_or_path"))
    card.data.base_model = base if is_hub_id(base) else None
    ModelCard(redact(str(card))).save(out / "README.md")  # an older version's card may hold one
    return out / "README.md"
