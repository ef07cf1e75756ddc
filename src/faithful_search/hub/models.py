"""What the folder or repository of a model says of it: its licence, its adapter, and the settings
of its training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import loose_json
from ..bundled import bundled_policy
from ..errors import ConfigError, reason_of
from ..inference.hub_files import file_beside

CONTEXT_SETTINGS = ("dialect", "observation_tokens", "force_answer", "verify", "kept_responses")
"""The settings that decide what a policy reads. They must be as in training when it is measured or
asked: with another dialect or another context it fails without an error.
"""
BOUNDS = ("turns", "turn_tokens", "total_tokens", "search_top_k")
"""The limits of a policy's episodes. Smaller ones than in training cut its episodes off."""
_SECONDS = 10  # that the Hub may take to answer


def is_hub_id(name: str) -> bool:
    """Whether the name is `organisation/name` and not a folder here. The Hub refuses a card with
    any other base model.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    # A folder such as outputs/pou has the form of an id, too
    return name.count("/") == 1 and not Path(name).exists()


def license_of(model: str) -> str | None:
    """The licence that the card of a model states. `None` if it states none, or there is no card
    that can be read.

    `model` is a folder, a Hub id, or the name of a bundled policy.
    """
    from huggingface_hub import HfApi, ModelCard
    from huggingface_hub.errors import HTTPError
    from yaml import YAMLError

    # The bundled policies of all dialects have one licence
    model = bundled_policy(model, dialect="pou")
    card = Path(model) / "README.md"
    card_data = None
    try:
        if card.is_file():
            card_data = ModelCard.load(card, ignore_metadata_errors=True).data
        elif is_hub_id(model):
            # Not downloaded: a download is retried for half a minute if the Hub is out of reach
            card_data = HfApi().model_info(model, timeout=_SECONDS).card_data
    except (HTTPError, OSError, ValueError, YAMLError):
        return None
    license = card_data.get("license") if card_data else None
    return license if isinstance(license, str) else None


def adapter_config(folder: str | Path) -> dict[str, Any] | None:
    """The PEFT settings of the adapter in a folder, or `None` if there is no adapter. Raises
    `ConfigError` if they cannot be read.
    """
    file = Path(folder) / "adapter_config.json"
    if not file.exists():
        return None
    try:
        config = loose_json.decode(file.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {reason_of(error)}") from error
    return config


def trained_with(policy: str, names: Sequence[str] = CONTEXT_SETTINGS) -> dict[str, Any]:
    """The settings of a policy's training with these names, as far as the `metrics.json` beside it
    has them. A policy of another program has none.

    `policy` is a directory or Hub id. Raises `ConfigError` when the Hub has no such model, when it
    cannot be asked whether there is a `metrics.json`, and when the file cannot be read.
    """
    path = file_beside(policy, "metrics.json")
    if path is None:
        return {}
    try:
        metadata = loose_json.decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read metrics.json of {policy}, which says how it was trained: "
            f"{reason_of(error)}"
        ) from error
    settings = metadata.get("settings") if isinstance(metadata, dict) else None
    if not isinstance(settings, dict):
        return {}
    return {name: settings[name] for name in names if name in settings}


def tuned_on(policy: str) -> dict[str, Any]:
    """The questions that a policy was trained on (`questions`) and those that it was watched on
    (`eval_questions`, `eval_split`), as far as the `metrics.json` beside it says so.

    `policy` is a directory, a Hub id, or the name of a bundled policy. Raises as `trained_with`
    does.
    """
    # The bundled policies of all dialects were trained on the same questions
    folder = bundled_policy(policy, dialect="pou")
    return trained_with(folder, ("questions", "eval_questions", "eval_split"))


def settings_to_run(
    policy: str, dialect: str | None = None, names: Sequence[str] = CONTEXT_SETTINGS
) -> dict[str, Any]:
    """The settings with these names that a policy is run with: those of its training
    (`trained_with`), and the dialect `pou` if nothing says how it writes. With another `dialect`
    than its own, none of them is used, and the dialect is the only setting.

    `policy` is a directory or Hub id. Raises as `trained_with` does.
    """
    settings = {"dialect": "pou"} | trained_with(policy, names)
    if dialect not in (None, settings["dialect"]):
        return {"dialect": dialect}
    return settings


def weights_of(policy: str) -> list[tuple[str, int, int]]:
    """The name, size and time of the weights in a directory. They differ when a policy is trained
    further in the same folder.
    """
    files = sorted(Path(policy).glob("*.safetensors"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
