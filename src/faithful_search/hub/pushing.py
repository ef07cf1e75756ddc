"""The way to the Hub: folders of policies, judges, datasets and metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..evaluation.install import metrics_folder
from ..evaluation.metrics import names as metric_names
from ..evaluation.record import MERGED


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload search agent",
    repo_type: str = "model",
) -> str:
    """Upload a folder, making the repository when there is none; returns the commit's address.

    Checkpoints (`checkpoint-*`) and a merged model beside its adapter (`merged`) stay behind. A Space is made as a
    Gradio one.

    Raises:
        ConfigError: when there is no token, nothing at `folder`, or the Hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError  # of the HTTP library that it uses

    if not Path(folder).is_dir():
        raise ConfigError(f"nothing to push: {folder} is not a folder")
    token = token or get_token()
    if not token:
        raise ConfigError(f"no Hugging Face token to push to {repo_id!r} with: run `hf auth login`, or set HF_TOKEN")
    api = HfApi(token=token)
    sdk = "gradio" if repo_type == "space" else None
    try:
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
        commit = api.upload_folder(
            folder_path=str(folder),
            repo_id=repo_id,
            repo_type=repo_type,
            commit_message=message,
            ignore_patterns=["*checkpoint-*/**", f"{MERGED}/**"],
        )
    except (HTTPError, OSError, ValueError) as error:
        raise ConfigError(f"cannot push {folder} to {repo_id!r} on the Hub: {error}") from error
    return str(commit)


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


def is_hub_id(name: str) -> bool:
    """Whether it is an `organisation/name`, and no folder here: the Hub refuses a card with any other base model."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1 and not Path(name).exists()
