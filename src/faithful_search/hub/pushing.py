"""The way to the Hub: folders of policies, judges, datasets and metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..measure.install import metrics_folder
from ..measure.metrics import names as metric_names
from ..measure.record import MERGED
from ..wire.redact import redact

_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors", "model.safetensors.index.json")
_CONFIGS = ("config.json", "generation_config.json", "adapter_config.json", "processor_config.json")
_CODE = ("configuration_*.py", "modeling_*.py", "tokenization_*.py")
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
_MEASURED = ("metrics.json", "history.json", "agreement.json", "reliability.png")
_MEASURED += ("rewards.png", "tools.png", "stability.png")
_CARD = ("README.md", "LICENSE*")
MAY_BE_PUSHED = {
    "model": (*_CARD, *_WEIGHTS, *_CONFIGS, *_CODE, *_TOKENIZER, "judge.json", *_MEASURED),
    "dataset": (*_CARD, "pairs.jsonl", "provenance.json"),
    "space": (*_CARD, "*.py", "requirements.txt"),
}
"""By kind of repository the files that may leave this machine; whatever else lies in a folder stays."""
_STAYS = ("*checkpoint-*/**", f"{MERGED}/**")
_TEXT = {".md", ".json", ".jsonl", ".py", ".txt", ".jinja"}


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload search agent",
    repo_type: str = "model",
) -> str:
    """Upload of a folder what may be pushed, making the repository when there is none; returns the commit's address.

    What may be pushed is listed in `MAY_BE_PUSHED`; `stays` names the rest: trajectories, pickled settings, checkpoints
    and a merged model beside its adapter among it. A Space is made as a Gradio one.

    Raises:
        ConfigError: when there is no token, nothing at `folder`, the token stands in a file that would be pushed, or
            the Hub cannot be reached or refuses.
    """
    from huggingface_hub.errors import HTTPError  # of the HTTP library that it uses

    if not Path(folder).is_dir():
        raise ConfigError(f"nothing to push: {folder} is not a folder")
    api = _api(repo_id, token)
    _check_clean(Path(folder), repo_type, str(api.token))
    _make_repository(api, folder, repo_id, repo_type, private)
    try:
        commit = api.upload_folder(
            folder_path=str(folder),
            repo_id=repo_id,
            repo_type=repo_type,
            commit_message=message,
            allow_patterns=list(MAY_BE_PUSHED[repo_type]),
            ignore_patterns=list(_STAYS),
        )
    except (HTTPError, OSError, ValueError) as error:
        raise _refused(folder, repo_id, error, api) from None
    return str(commit)


def stays(folder: str | os.PathLike[str], repo_type: str = "model") -> list[str]:
    """The files of a folder that `push` leaves behind, in order."""
    known = {str(path) for path in _pushed(Path(folder), repo_type)}
    return sorted(str(path) for path in _files(Path(folder)) if str(path) not in known)


def takes_over(args: Any) -> str | None:
    """Take `--push_to_hub` from a trainer's settings, which would upload everything in its folder: `push_run` does it.

    The repository is made now, so that a missing token or a wrong name is told before training and not after it.

    Args:
        args: the trainer's; its `push_to_hub` is false afterwards.

    Returns:
        The repository's full name; `None` where nothing was to be pushed.

    Raises:
        ConfigError: when checkpoints or a revision are asked for, which are not pushed, or as `push`.
    """
    if not args.push_to_hub:
        return None
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if "checkpoint" in strategy or args.hub_revision:
        raise ConfigError(
            "--hub_strategy checkpoint or all_checkpoints and --hub_revision are not supported: the policy is pushed "
            "once, at the end, to the main branch; checkpoints hold pickled settings and stay here"
        )
    args.push_to_hub = False
    name = str(args.hub_model_id or Path(args.output_dir).absolute().name)
    if args.process_index:
        return name
    return _make_repository(_api(name), args.output_dir, name, "model", args.hub_private_repo)


def push_run(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    merged: bool = False,
    private: bool = False,
    token: str | None = None,
) -> list[str]:
    """Upload what a training run left: the policy, and with `merged` the full model of its adapter as `repo_id-merged`.

    Returns the commits' addresses. Raises `ConfigError` as `push` does.
    """
    whole = [(Path(folder) / MERGED, f"{repo_id}-{MERGED}")] if merged else []
    if merged and not whole[0][0].is_dir():
        raise ConfigError(f"there is no merged model: faithful-search merge {folder} {whole[0][0]} makes it")
    return [push(of, repo, private=private, token=token) for of, repo in [(Path(folder), repo_id), *whole]]


def push_metrics(organisation: str, *, private: bool = False, token: str | None = None) -> list[str]:
    """Upload every metric as a Space `organisation/name`, whence `evaluate.load("organisation/name")` takes it.

    Returns the commits' addresses. Raises `ConfigError` when there is no token.
    """
    folders = [metrics_folder() / name for name in metric_names()]
    settings: dict[str, Any] = {"private": private, "token": token, "repo_type": "space", "message": "Upload metric"}
    return [push(folder, f"{organisation}/{folder.name}", **settings) for folder in folders]


def _api(repo_id: str, token: str | None = None) -> Any:
    from huggingface_hub import HfApi, get_token

    token = token or get_token()
    if not token:
        raise ConfigError(f"no Hugging Face token to push to {repo_id!r} with: run `hf auth login`, or set HF_TOKEN")
    return HfApi(token=token)


def _make_repository(api: Any, folder: Any, repo_id: str, repo_type: str, private: bool | None) -> str:
    """The full name of a repository, which is there afterwards; `folder` is what shall be pushed to it."""
    from huggingface_hub.errors import HTTPError

    sdk = "gradio" if repo_type == "space" else None
    try:
        made = api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
    except (HTTPError, OSError, ValueError) as error:
        raise _refused(folder, repo_id, error, api) from None
    return str(getattr(made, "repo_id", repo_id))


def _refused(folder: Any, repo_id: str, error: Exception, api: Any) -> ConfigError:
    return ConfigError(f"cannot push {folder} to {repo_id!r} on the Hub: {redact(str(error), [str(api.token)])}")


def _check_clean(folder: Path, repo_type: str, token: str) -> None:
    """An older version wrote tokens into cards."""
    for path in _pushed(folder, repo_type):
        if path.suffix in _TEXT and token.encode() in (folder / path).read_bytes():
            raise ConfigError(f"{folder / path} holds the Hub token: take it out; if it was shared, make a new token")


def _pushed(folder: Path, repo_type: str) -> list[Path]:
    from huggingface_hub.utils import filter_repo_objects

    kept = filter_repo_objects(
        map(str, _files(folder)), allow_patterns=list(MAY_BE_PUSHED[repo_type]), ignore_patterns=list(_STAYS)
    )
    return list(map(Path, kept))


def _files(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


def is_hub_id(name: str) -> bool:
    """Whether it is an `organisation/name`, and no folder here: the Hub refuses a card with any other base model."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1 and not Path(name).exists()
