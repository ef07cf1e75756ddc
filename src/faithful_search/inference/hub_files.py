"""Whether a model is on the Hub, and the files beside it. Nothing here needs torch."""

from functools import cache
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from ..errors import WeightsError

_CONFIGS = ("config.json", "adapter_config.json")
_SECONDS = 15.0  # for the Hub's answer


@cache
def check_there(name: str, revision: str | None = None) -> None:
    """Ask the Hub once for a model that is not on this machine: `from_pretrained` would ask it for
    minutes. Raises `WeightsError` when there is no such model, or the Hub cannot be reached.
    """
    if Path(name).exists():
        return
    try:
        validate_repo_id(name)
        if constants.HF_HUB_OFFLINE or _is_cached(name, revision):
            return
        HfApi().model_info(name, revision=revision, timeout=_SECONDS)
    # The last two are subclasses of HfHubHTTPError
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        at = f" at revision {revision}" if revision else ""
        raise WeightsError(
            f"there is no model {name!r}{at}: it is neither a folder here nor on the Hub"
        ) from error
    except HfHubHTTPError:  # the Hub is busy, say: it may answer when asked for the files
        return
    except HTTPError as error:  # of the HTTP library that huggingface_hub uses, which changed
        raise _out_of_reach(name, str(error)) from error


def _is_cached(name: str, revision: str | None) -> bool:
    """Whether the Hub's cache has the configuration of a model."""
    cached = (try_to_load_from_cache(name, file, revision=revision) for file in _CONFIGS)
    return any(isinstance(path, str) for path in cached)


def _out_of_reach(name: str, why: str) -> WeightsError:
    return WeightsError(
        f"there is no model {name!r} here, neither a folder nor in the Hub's cache, and the Hub "
        f"cannot be reached ({why})"
    )


def file_beside(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file in a model's directory or Hub repository; `None` where there is none. Raises
    `WeightsError` when there is no such model, when the file cannot be downloaded, and when the Hub
    was never asked for the file and cannot be reached.
    """
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.exists() else None
    check_there(model, revision)
    try:
        return Path(hf_hub_download(model, name, revision=revision))
    # A subclass of EntryNotFoundError, but here nobody has said that there is no such file
    except LocalEntryNotFoundError as error:
        cached = try_to_load_from_cache(model, name, revision=revision)
        if cached is not None and not isinstance(cached, str):
            return None  # the Hub has said that there is no such file
        if not _is_cached(model, revision):
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it does not answer"
            raise _out_of_reach(model, why) from error
        raise WeightsError(
            f"whether there is a {name} beside the model {model!r} is not known here, and the Hub "
            "cannot be reached; open it once while it can be, or give the directory that holds it"
        ) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError, HTTPError) as error:
        raise WeightsError(f"cannot open the model {model!r}: {name}: {error}") from error
