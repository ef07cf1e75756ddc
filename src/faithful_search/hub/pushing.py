"""What of a folder goes to the Hub: policies, judges, labelled pairs, metrics and the Space."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bundled import shipped
from ..errors import ConfigError
from ..measure.evaluation import MERGED
from ..measure.metrics import names as metric_names
from .repository import WEIGHTS, Files, Repository

_CONFIGS = ("config.json", "generation_config.json", "processor_config.json")
_CODE = ("configuration_*.py", "modeling_*.py", "tokenization_*.py")
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
_MEASURED = ("metrics.json", "history.json", "agreement.json", "*.png", "remembered.json")
_CARD = ("README.md", "LICENSE*")
MAY_BE_PUSHED = {
    "model": (*_CARD, *WEIGHTS, *_CONFIGS, *_CODE, *_TOKENIZER, "judge.json", *_MEASURED),
    "dataset": (*_CARD, "pairs.jsonl", "provenance.json"),
    "space": (*_CARD, "*.py", "requirements.txt"),
}
"""By kind of repository the files that may leave this machine; whatever else lies in a folder stays."""
_STAYS = ("*checkpoint-*/**", f"{MERGED}/**")  # `*` matches folders, too: a checkpoint's plots, say
_LOADED = re.compile(r'(?:open_generator\(|load\("\w+", )("(?:[^"\\]|\\.)*")\)')


def staged(folder: str | os.PathLike[str], repository: Repository) -> Files:
    """The files of a folder that may be pushed there; its card's code then loads the model from there.

    Raises:
        ConfigError: when there is no such folder or nothing in it that may be pushed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"nothing to push: {folder} is not a folder")
    files: dict[str, Path | bytes] = {path: folder / path for path in _pushed(folder, repository.type)}
    if not files:
        raise ConfigError(f"nothing to push: {folder} has none of {', '.join(MAY_BE_PUSHED[repository.type])}")
    if "README.md" in files:
        # in the usage only: the command of the training stays as it was given
        usage, training, rest = (folder / "README.md").read_text(encoding="utf-8").partition("\n## Training")
        if found := _LOADED.search(usage):
            name = json.loads(found[1])
            usage = usage.replace(found[1], json.dumps(repository.id)).replace(f" {name}", f" {repository.id}")
        files["README.md"] = (usage + training + rest).encode()
    return files


def push(folder: str | os.PathLike[str], repository: Repository, message: str = "Upload search agent") -> str:
    """Upload what may be pushed of a folder as one commit; returns its address. `stays` names the other files.

    Raises:
        ConfigError: as `staged` and `Repository.commit` do.
    """
    return repository.commit(staged(folder, repository), message)


def stays(folder: str | os.PathLike[str], repo_type: str = "model") -> list[str]:
    """The files of a folder that `push` leaves behind, in order."""
    return sorted(set(_files(Path(folder))) - set(_pushed(Path(folder), repo_type)))


def takes_over(args: Any) -> Repository | None:
    """Take `--push_to_hub` from a trainer's settings, which would upload everything in its folder: `push_run` does it.

    The repository is created now, so that a missing token or a wrong name is told before training and not after it.

    Returns:
        The repository, by its full name; `None` where nothing was to be pushed.

    Raises:
        ConfigError: when checkpoints are asked for, which are not pushed, or as `Repository.make`.
    """
    if not args.push_to_hub:
        return None
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if "checkpoint" in strategy:
        raise ConfigError(
            "--hub_strategy checkpoint or all_checkpoints is not supported: the policy is pushed once, at the end; "
            "checkpoints hold pickled settings and stay here"
        )
    args.push_to_hub = False  # or the trainer would upload its whole folder, pickled settings included
    name = str(args.hub_model_id or Path(args.output_dir).absolute().name)
    repository = Repository(name, private=bool(args.hub_private_repo), revision=args.hub_revision)
    return repository if args.process_index else replace(repository, id=repository.make())


def push_run(folder: str | os.PathLike[str], repository: Repository, *, merged: bool = False) -> list[str]:
    """Upload what a training run left: the policy, and with `merged` the full model of its adapter as `…-merged`.

    Returns the commits' addresses. Raises `ConfigError` as `push` does.
    """
    return [push(of, repo) for repo, of in policy_folders(folder, repository, merged).items()]


def policy_folders(folder: str | os.PathLike[str], repository: Repository, merged: bool) -> dict[Repository, Path]:
    """What is pushed of a run, by its repository: the policy, and with `merged` the full model of its adapter.

    Raises:
        ConfigError: when there is no merged model.
    """
    folders, full = {repository: Path(folder)}, Path(folder) / MERGED
    if merged and not full.is_dir():
        raise ConfigError(f"there is no merged model: faithful-search merge {folder} {full} makes it")
    return folders | ({replace(repository, id=f"{repository.id}-{MERGED}"): full} if merged else {})


def metric_folders(owner: Repository) -> dict[Repository, Path]:
    """The folder of every metric, by the Space `owner.id/name` whence `evaluate.load` takes it."""
    folder = shipped("evaluate_metrics")
    return {replace(owner, id=f"{owner.id}/{name}", type="space"): folder / name for name in metric_names()}


def staged_space(repository: Repository, wheel: str | os.PathLike[str] | None = None) -> Files:
    """The faithfulness explorer's files, and with them a wheel of the package: what the Space then installs.

    Raises:
        ConfigError: when there is no such wheel.
    """
    files = dict(staged(shipped("spaces") / "faithfulness_explorer", repository))
    if wheel is not None:
        from huggingface_hub import hf_hub_url

        wheel = Path(wheel)
        if not wheel.is_file():
            raise ConfigError(f"no wheel {wheel}: `pip wheel --no-deps .` or `uv build` makes one")
        # A Space installs its requirements before its own files are there, so the wheel is named by its address
        at = hf_hub_url(repository.id, wheel.name, repo_type="space")
        files |= {wheel.name: wheel, "requirements.txt": f"faithful-search[train] @ {at}\n".encode()}
    return files


def _pushed(folder: Path, repo_type: str) -> list[str]:
    from huggingface_hub.utils import filter_repo_objects

    may = list(MAY_BE_PUSHED[repo_type])
    return list(filter_repo_objects(_files(folder), allow_patterns=may, ignore_patterns=list(_STAYS)))


def _files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
