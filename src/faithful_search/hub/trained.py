"""How a policy was trained to write and to see, read from the settings that its run left beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ConfigError

SEEN = ("dialect", "observation_tokens", "force_answer", "verify", "kept_responses")
"""What a policy must be measured and asked with as it was trained: with another dialect or another context it fails
without an error."""
BOUNDS = ("turns", "turn_tokens", "total_tokens", "search_top_k")
"""Below what it was trained with, a policy's episodes are cut."""


def trained_with(policy: str, names: Sequence[str] = SEEN) -> dict[str, Any]:
    """Those of the settings `names` that `metrics.json` beside a policy tells; none for a policy of others.

    Args:
        policy: a directory or Hub id.

    Raises:
        ConfigError: when there is no such model on the Hub, the Hub is out of reach, or the file cannot be read.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, HTTPError, RepositoryNotFoundError

    local = Path(policy).is_dir()
    if not local and find_spec("torch"):  # which the file with the check imports, and reading a file does not need
        from ..inference.loading import check_there

        check_there(policy)  # first: a download from a Hub that is out of reach is tried again for minutes
    try:
        path = Path(policy) / "metrics.json" if local else hf_hub_download(policy, "metrics.json")
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, EntryNotFoundError, RepositoryNotFoundError, HFValidationError):
        return {}
    except (OSError, ValueError, HTTPError) as error:
        raise ConfigError(f"cannot read metrics.json of {policy}, which says how it was trained: {error}") from error
    settings = found.get("settings") if isinstance(found, dict) else None
    return {name: settings[name] for name in names if name in settings} if isinstance(settings, dict) else {}


def weights_of(policy: str) -> list[tuple[str, int, int]]:
    """Name, size and time of a directory's weights: a policy that was trained on in the same folder is another one."""
    found = sorted(Path(policy).glob("*.safetensors")) if Path(policy).is_dir() else []
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]
