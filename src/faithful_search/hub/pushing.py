"""Push folders to the Hub, each as one commit: policies, judges, labelled pairs, metrics and the
Space.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bundled import bundled_json, shipped
from ..errors import ConfigError
from ..measure.evaluation import MERGED
from ..measure.metrics import names as metric_names
from ..wire.redact import redact

Files = Mapping[str, Path | bytes]
"""By path in the repository: a file here, or its content."""
_REPLACED = [
    "model*.safetensors",
    "adapter_model*.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "data/*.parquet",
    "sessions/*.jsonl",
]
"""The files of an earlier push that a push deletes if it does not replace them."""
_TEXT = {".md", ".json", ".jsonl", ".py", ".txt", ".jinja", ".yaml"}
_ADVICE = {
    401: "the token is wrong or has expired: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: it needs write access to this owner's repositories",
    409: "somebody else changes it at the same time, or the name is taken by another kind: try again",
    412: "somebody else changed it at the same time: try again",
    429: "the Hub has had too many requests: try again later",
}
MAY_BE_PUSHED: dict[str, list[str]] = bundled_json("may_be_pushed.json")
"""By kind of repository, the files of a folder that may be pushed. All others stay here."""
_STAYS = ["*checkpoint-*/**", f"{MERGED}/**"]
"""The files that stay although their names may be pushed, such as the plots of a checkpoint: `*`
matches folders, too.
"""
_LOADED = re.compile(r'(?:open_generator\(|load\("\w+", )("(?:[^"\\]|\\.)*")\)')


@dataclass(frozen=True)
class Repository:
    """A repository to push to.

    Attributes:
        id: OWNER/NAME. Without an owner it is yours.
        type: "model", "dataset" or "space" (a Gradio one).
        private: create it as a private one.
        revision: the branch, which is created if needed; by default main.
        tag: a tag for the commit, which must not exist yet.
        collection: the title of a collection of the owner, which is created if needed.
    """

    id: str
    type: str = "model"
    private: bool = False
    revision: str | None = None
    tag: str | None = None
    collection: str | None = None

    def make(self) -> str:
        """Create the repository unless it exists, and return its full name.

        Raises `ConfigError` without a token, when the Hub refuses, and when the repository is
        public but should be private.
        """
        sdk = "gradio" if self.type == "space" else None
        with self._api(f"cannot push to {self.id!r} on the Hub") as api:
            made = api.create_repo(
                self.id, repo_type=self.type, private=self.private, exist_ok=True, space_sdk=sdk
            )
            id = str(made.repo_id)
            if self.private and not api.repo_info(id, repo_type=self.type).private:
                raise ValueError(
                    f"{id!r} is a public repository already: make it private there, or leave "
                    "--private out"
                )
        return id

    def commit(self, files: Files, message: str) -> str:
        """Push files as one commit, so that nobody ever sees half of them, and return its address.

        The same commit deletes weights and data of an earlier push that are not among the files.
        What was uploaded before an interruption is not sent again. Raises `ConfigError` without a
        token, when a file holds the token, and when the Hub cannot be reached or refuses. The
        message then says what was published, if anything.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete
        from huggingface_hub.utils import filter_repo_objects

        # Checked before anything is created
        self._check_token(files)
        repository = replace(self, id=self.make())
        place: dict[str, Any] = {"repo_id": repository.id, "repo_type": repository.type}
        with repository._api(f"cannot push to {repository.id!r} on the Hub") as api:
            # Checked now, not when everything is published
            if self.tag and self.tag in {ref.name for ref in api.list_repo_refs(**place).tags}:
                raise ValueError(
                    f"there is a tag {self.tag!r} already: choose another, or delete that one"
                )
            if self.revision:
                api.create_branch(**place, branch=self.revision, exist_ok=True)
            earlier = filter_repo_objects(
                api.list_repo_files(**place, revision=self.revision), allow_patterns=_REPLACED
            )
            operations: list[Any] = [
                CommitOperationAdd(path, content) for path, content in files.items()
            ]
            operations += [CommitOperationDelete(path) for path in earlier if path not in files]
            commit = api.create_commit(
                **place, operations=operations, commit_message=message, revision=self.revision
            )
        # An error from here on does not undo the commit, and its message says so
        with repository._api(f"pushed ({commit.commit_url}), but not tagged or collected") as api:
            if self.tag:
                api.create_tag(**place, tag=self.tag, revision=commit.oid)
            if self.collection:
                owner = repository.id.partition("/")[0]
                collection = api.create_collection(
                    self.collection, namespace=owner, private=self.private, exists_ok=True
                )
                api.add_collection_item(
                    collection.slug, repository.id, repository.type, exists_ok=True
                )
        return str(commit.commit_url)

    def _check_token(self, files: Files) -> None:
        """Raise `ConfigError` if a text holds the token: older versions of this package wrote it
        into cards.
        """
        token = _token(self.id).encode()
        for path, content in files.items():
            if isinstance(content, Path):
                if Path(path).suffix not in _TEXT:
                    continue
                content = content.read_bytes()
            if token in content:
                raise ConfigError(
                    f"{path} holds the Hub token: take it out; if it was shared, make a new token"
                )

    @contextmanager
    def _api(self, action: str) -> Iterator[Any]:
        """The Hub's client. Its errors become `ConfigError`, with advice and without the token."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (  # the latter of its HTTP library
            HfHubHTTPError,
            HTTPError,
        )

        token = _token(self.id)
        try:
            yield HfApi(token=token, library_name="faithful-search")
        except (HTTPError, OSError, ValueError) as error:
            text = str(error)
            advice = ""
            if isinstance(error, HfHubHTTPError):
                code = error.response.status_code
                if error.server_message:
                    text = f"{code}, {error.server_message}"
                if code in _ADVICE:
                    advice = f"; {_ADVICE[code]}"
            message = redact(" ".join(text.split()), [token])
            # Without its cause, whose message may hold the token
            raise ConfigError(f"{action}: {message}{advice}") from None


def _token(id: str) -> str:
    """The Hub's token. Raises `ConfigError` if there is none."""
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise ConfigError(
            f"no Hugging Face token to push to {id!r} with: run `hf auth login`, or set HF_TOKEN"
        )
    return token


def staged(folder: str | os.PathLike[str], repository: Repository) -> Files:
    """The files of a folder that may be pushed to this repository. The code in the card loads the
    model from the repository.

    Raises `ConfigError` when there is no such folder, or it holds nothing that may be pushed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"nothing to push: {folder} is not a folder")
    files: dict[str, Path | bytes] = {
        path: folder / path for path in _pushed(folder, repository.type)
    }
    if not files:
        raise ConfigError(
            f"nothing to push: {folder} has none of {', '.join(MAY_BE_PUSHED[repository.type])}"
        )
    if "README.md" in files:
        # The name is replaced in the part on usage only: the command of training stays as it was
        card = (folder / "README.md").read_text(encoding="utf-8")
        usage, training, after_training = card.partition("\n## Training")
        match = _LOADED.search(usage)
        if match is not None:
            name = json.loads(match[1])
            usage = usage.replace(match[1], json.dumps(repository.id)).replace(
                f" {name}", f" {repository.id}"
            )
        files["README.md"] = (usage + training + after_training).encode()
    return files


def push(
    folder: str | os.PathLike[str], repository: Repository, message: str = "Upload search agent"
) -> str:
    """Push the files of a folder that may be pushed as one commit, and return its address. Raises
    as `staged` and `commit` do.
    """
    return repository.commit(staged(folder, repository), message)


def stays(folder: Path) -> list[str]:
    """The files of a model's folder that `push` leaves behind, in order."""
    return sorted(set(_files(folder)) - set(_pushed(folder, "model")))


def takes_over(args: Any) -> Repository | None:
    """Take `--push_to_hub` out of a trainer's settings, since the trainer would push everything in
    its folder. `push_run` pushes instead.

    The repository is created now, so that a missing token or a wrong name is an error before
    training. Returns the repository with its full name, or `None` if nothing is to be pushed.
    Raises `ConfigError` when checkpoints are to be pushed, and as `Repository.make` does.
    """
    if not args.push_to_hub:
        return None
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if "checkpoint" in strategy:
        raise ConfigError(
            "--hub_strategy: the policy is pushed once, at the end; checkpoints hold pickled "
            "settings"
        )
    args.push_to_hub = False
    name = str(args.hub_model_id or Path(args.output_dir).absolute().name)
    repository = Repository(name, private=bool(args.hub_private_repo), revision=args.hub_revision)
    return repository if args.process_index else replace(repository, id=repository.make())


def push_run(
    folder: str | os.PathLike[str], repository: Repository, *, merged: bool = False
) -> None:
    """Push the results of a training run (`policy_folders`). Raises `ConfigError` as `push`
    does.
    """
    for target, source in policy_folders(folder, repository, merged).items():
        push(source, target)


def policy_folders(
    folder: str | os.PathLike[str], repository: Repository, merged: bool
) -> dict[Repository, Path]:
    """The folders of a training run that are pushed, by their repositories: the policy, and with
    `merged` its full model as `…-merged`.

    Raises `ConfigError` when there is no merged model.
    """
    folders = {repository: Path(folder)}
    if merged:
        full_model = Path(folder) / MERGED
        if not full_model.is_dir():
            paths = shlex.join([str(folder), str(full_model)])
            raise ConfigError(f"there is no merged model: faithful-search merge {paths} makes it")
        folders[replace(repository, id=f"{repository.id}-{MERGED}")] = full_model
    return folders


def metric_folders(owner: Repository) -> dict[Repository, Path]:
    """The folders of all metrics, by the Spaces `owner.id/NAME` that `evaluate.load` reads."""
    folder = shipped("evaluate_metrics")
    return {
        replace(owner, id=f"{owner.id}/{name}", type="space"): folder / name
        for name in metric_names()
    }


def staged_space(repository: Repository, wheel: str | os.PathLike[str] | None = None) -> Files:
    """The files of the faithfulness explorer. With a `wheel` of the package, the Space installs
    that.

    Raises `ConfigError` when there is no such wheel.
    """
    files = dict(staged(shipped("spaces") / "faithfulness_explorer", repository))
    if wheel is not None:
        from huggingface_hub import hf_hub_url

        wheel = Path(wheel)
        if not wheel.is_file():
            raise ConfigError(f"no wheel {wheel}: `pip wheel --no-deps .` or `uv build` makes one")
        # Named by its address, since a Space installs its requirements before it has its own files
        address = hf_hub_url(repository.id, wheel.name, repo_type="space")
        files[wheel.name] = wheel
        files["requirements.txt"] = f"faithful-search[train] @ {address}\n".encode()
    return files


def _pushed(folder: Path, repo_type: str) -> list[str]:
    from huggingface_hub.utils import filter_repo_objects

    matching = filter_repo_objects(
        _files(folder), allow_patterns=MAY_BE_PUSHED[repo_type], ignore_patterns=_STAYS
    )
    return list(matching)


def _files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
