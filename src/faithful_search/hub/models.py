"""What a model's folder or repository says of it: its licence, its adapter, how it was trained to write and to see."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..bundled import bundled_policy
from ..errors import ConfigError

SEEN = ("dialect", "observation_tokens", "force_answer", "verify", "kept_responses")
"""What a policy must be measured and asked with as it was trained: with another dialect or another context it fails
without an error."""
BOUNDS = ("turns", "turn_tokens", "total_tokens", "search_top_k")
"""Below what it was trained with, a policy's episodes are cut."""
_SECONDS = 10


def is_hub_id(name: str) -> bool:
    """Whether it is `organisation/name` and not a folder here: the Hub refuses a card with any other base model."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return (
        name.count("/") == 1 and not Path(name).exists()
    )  # outputs/pou has the form of an id, too


def license_of(model: str) -> str | None:
    """The licence that a model's own card states; `None` where none is stated, or the card cannot be had or read.

    `model` is a folder, a Hub id, or a bundled policy's name.
    """
    from huggingface_hub import HfApi, ModelCard
    from huggingface_hub.errors import HTTPError
    from yaml import YAMLError

    model = bundled_policy(model, "pou")
    card, told = Path(model) / "README.md", None
    try:
        if card.is_file():
            told = ModelCard.load(card, ignore_metadata_errors=True).data
        elif is_hub_id(
            model
        ):  # asked once: a download is tried again for half a minute where the Hub is out of reach
            told = HfApi().model_info(model, timeout=_SECONDS).card_data
    except (HTTPError, OSError, ValueError, YAMLError):
        return None
    stated = told.get("license") if told else None
    return stated if isinstance(stated, str) else None


def adapter_config(folder: str | Path) -> dict[str, Any] | None:
    """PEFT's settings of the adapter in a folder, or `None`. Raises `ConfigError` where they cannot be read."""
    file = Path(folder) / "adapter_config.json"
    if not file.exists():
        return None
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def trained_with(policy: str, names: Sequence[str] = SEEN) -> dict[str, Any]:
    """Those of the settings `names` that `metrics.json` beside a policy tells; none for a policy of others.

    `policy` is a directory or Hub id. Raises `ConfigError` when there is no such model on the Hub, the Hub is out of
    reach, or the file cannot be read.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
    )

    local = Path(policy).is_dir()
    if not local and find_spec(
        "torch"
    ):  # which the file with the check imports, and reading a file does not need
        from ..inference.loading import check_there

        check_there(
            policy
        )  # first: a download from a Hub that is out of reach is tried again for minutes
    try:
        path = Path(policy) / "metrics.json" if local else hf_hub_download(policy, "metrics.json")
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, EntryNotFoundError, RepositoryNotFoundError, HFValidationError):
        return {}
    except (OSError, ValueError, HTTPError) as error:
        raise ConfigError(
            f"cannot read metrics.json of {policy}, which says how it was trained: {error}"
        ) from error
    settings = found.get("settings") if isinstance(found, dict) else None
    return (
        {name: settings[name] for name in names if name in settings}
        if isinstance(settings, dict)
        else {}
    )


def weights_of(policy: str) -> list[tuple[str, int, int]]:
    """Name, size and time of a directory's weights: a policy that was trained on in the same folder is another one."""
    found = sorted(Path(policy).glob("*.safetensors"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]
