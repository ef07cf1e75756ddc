"""What all cards share: templates, front matter and secrets taken out; the base model, its licence, and adapters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..bundled import bundled_policy
from ..errors import ConfigError
from ..text import as_markdown
from ..wire.redact import redact

TAGS = ("lora", "peft")
_SECONDS = 10


def command_line(recipe: str, argv: Sequence[str]) -> str:
    """How a recipe was called, to be pasted into a shell, without the secrets among its flags.

    Example:
        >>> command_line("recipes/pou.py", ["--seed", "1", "--hub_token", "x"])
        'accelerate launch recipes/pou.py --seed 1 --hub_token [secret]'
    """
    words = redact(["accelerate", "launch", recipe, *argv])  # before quoting, which would hide one with a quote in it
    return str(redact(shlex.join(words)))


def render(template: str, **values: Any) -> str:
    """The text of a template in this folder."""
    return str(_environment().from_string((files(__package__) / f"{template}.j2").read_text("utf-8")).render(values))


@cache
def _environment() -> Any:
    from jinja2 import Environment, StrictUndefined

    made = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    made.filters["text"] = as_markdown
    return made


def with_front(data: Any, body: str) -> str:
    """A card of front matter (`huggingface_hub.CardData`) and body, without the secrets of `wire.redact`."""
    return str(redact(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def write_card(folder: Path, data: Any, body: str) -> Path:
    """Write a model's `README.md`; returns its path."""
    from huggingface_hub import ModelCard

    folder.mkdir(parents=True, exist_ok=True)
    ModelCard(with_front(data, body)).save(folder / "README.md")
    return folder / "README.md"


def as_json(config: Mapping[str, Any]) -> str:
    """A run's settings as a card shows them."""
    return json.dumps(dict(config), indent=2, ensure_ascii=False, default=str)


def is_hub_id(name: str) -> bool:
    """Whether it is `organisation/name` and not a folder here: the Hub refuses a card with any other base model."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1 and not Path(name).exists()  # outputs/pou has the form of an id, too


def license_of(model: str) -> str | None:
    """The licence that a model's own card states; `None` where none is stated, or the card cannot be had or read.

    Args:
        model: a folder, a Hub id, or a bundled policy's name.
    """
    from huggingface_hub import HfApi, ModelCard
    from huggingface_hub.errors import HTTPError
    from yaml import YAMLError

    model = bundled_policy(model, "pou")
    card = Path(model) / "README.md"
    try:
        if card.is_file():
            stated = ModelCard.load(card, ignore_metadata_errors=True).data.get("license")
        elif is_hub_id(model):  # asked once: a download is tried again for half a minute where the Hub is out of reach
            told = HfApi().model_info(model, timeout=_SECONDS).card_data
            stated = told.get("license") if told else None
        else:
            return None
    except (HTTPError, OSError, ValueError, YAMLError):
        return None
    return stated if isinstance(stated, str) else None


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
    base, own = str(config.get("base_model_name_or_path")), adapter_note(config, str(adapter))
    merged = f"The weights are full ones: those of `{base}`, with the adapter\n`{adapter}` merged into them."
    card: Any = ModelCard.load(adapter / "README.md") if (adapter / "README.md").exists() else ModelCard("")
    # Only a card of ours has our paragraph; any other would say something wrong of the merged model
    text = card.text.replace(own, merged) if own in card.text else f"# {out.name}\n\nA search agent. {merged}\n"
    card.text = text.replace(json.dumps(str(adapter)), json.dumps(str(out)))
    card.data.library_name = "transformers"  # no longer peft
    card.data.tags = [tag for tag in card.data.tags or ["faithful-search"] if tag not in TAGS]
    card.data.base_model = base if is_hub_id(base) else None
    ModelCard(redact(str(card))).save(out / "README.md")  # an older version's card may hold a secret
    return out / "README.md"
