"""What goes to the Hub and becomes one commit there: policies, judges, labelled pairs, metrics and the Space."""

import json
import os
import re
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
# An earlier push may have left others of these names
_REPLACED = [
    "model*.safetensors",
    "adapter_model*.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
]
_REPLACED += ["data/*.parquet", "sessions/*.jsonl"]
_TEXT = {".md", ".json", ".jsonl", ".py", ".txt", ".jinja", ".yaml"}
_ADVICE = {
    401: "the token is wrong or has expired: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: it needs write access to this owner's repositories",
    409: "somebody else changes it at the same time, or the name is taken by another kind: try again",
    412: "somebody else changed it at the same time: try again",
    429: "the Hub has had too many requests: try again later",
}
MAY_BE_PUSHED: dict[str, list[str]] = bundled_json("may_be_pushed.json")
"""By kind of repository the files that may leave this machine; whatever else lies in a folder stays."""
_STAYS = ["*checkpoint-*/**", f"{MERGED}/**"]  # `*` matches folders, too: a checkpoint's plots, say
_LOADED = re.compile(r'(?:open_generator\(|load\("\w+", )("(?:[^"\\]|\\.)*")\)')


@dataclass(frozen=True)
class Repository:
    """Where something is pushed.

    `id` is `OWNER/NAME`, the owner you where it is left out; `type` `model`, `dataset` or `space` (a Gradio one);
    `revision` the branch, created where it does not exist, by default main. `tag` is put on the commit, and refused
    when it exists already; `collection` is the title of one of the owner's, created where it does not exist.
    """

    id: str
    type: str = "model"
    private: bool = False
    revision: str | None = None
    tag: str | None = None
    collection: str | None = None

    def make(self) -> str:
        """Create it unless it exists; returns its full name.

        Raises `ConfigError` without a token, where the Hub refuses, and where it is public and is to be private.
        """
        sdk = "gradio" if self.type == "space" else None
        with self._api(f"cannot push to {self.id!r} on the Hub") as api:
            made = api.create_repo(
                self.id, repo_type=self.type, private=self.private, exist_ok=True, space_sdk=sdk
            )
            id = str(made.repo_id)
            if self.private and not api.repo_info(id, repo_type=self.type).private:
                raise ValueError(
                    f"{id!r} is a public repository already: make it private there, or leave --private out"
                )
        return id

    def commit(self, files: Files, message: str) -> str:
        """Put files there as one commit, so that nobody ever sees half of them; returns its address.

        Weights and data of an earlier push that are not among them are deleted by the same commit. What was uploaded
        before an interruption is not sent again. Raises `ConfigError` without a token, where one of the files holds it,
        and where the Hub cannot be reached or refuses; the message says what was published then, if anything.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete
        from huggingface_hub.utils import filter_repo_objects

        # before anything is created; an older version of this package wrote the token into cards
        token = _token(self.id).encode()
        for path, content in files.items():
            text = (
                content.read_bytes()
                if isinstance(content, Path) and Path(path).suffix in _TEXT
                else content
            )
            if isinstance(text, bytes) and token in text:
                raise ConfigError(
                    f"{path} holds the Hub token: take it out; if it was shared, make a new token"
                )
        own = replace(self, id=self.make())
        place: dict[str, Any] = {"repo_id": own.id, "repo_type": own.type}
        with own._api(f"cannot push to {own.id!r} on the Hub") as api:
            # now, and not when all is published
            if self.tag and self.tag in {ref.name for ref in api.list_repo_refs(**place).tags}:
                raise ValueError(
                    f"there is a tag {self.tag!r} already: choose another, or delete that one"
                )
            if self.revision:
                api.create_branch(**place, branch=self.revision, exist_ok=True)
            there = filter_repo_objects(
                api.list_repo_files(**place, revision=self.revision), allow_patterns=_REPLACED
            )
            operations: list[Any] = [
                CommitOperationAdd(path, content) for path, content in files.items()
            ]
            operations += [CommitOperationDelete(path) for path in there if path not in files]
            done = api.create_commit(
                **place, operations=operations, commit_message=message, revision=self.revision
            )
        # what fails from here on leaves the commit where it is, and the message has to say so
        with own._api(f"pushed ({done.commit_url}), but not tagged or collected") as api:
            if self.tag:
                api.create_tag(**place, tag=self.tag, revision=done.oid)
            if self.collection:
                owner = own.id.partition("/")[0]
                found = api.create_collection(
                    self.collection, namespace=owner, private=self.private, exists_ok=True
                )
                api.add_collection_item(found.slug, own.id, own.type, exists_ok=True)
        return str(done.commit_url)

    @contextmanager
    def _api(self, what: str) -> Iterator[Any]:
        """The Hub's client; its errors become `ConfigError`, with advice and without the token."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError  # of the HTTP library that it uses

        token = _token(self.id)
        try:
            yield HfApi(token=token, library_name="faithful-search")
        except (HTTPError, OSError, ValueError) as error:
            code = getattr(getattr(error, "response", None), "status_code", None)
            told = getattr(error, "server_message", None)
            said = redact(" ".join((f"{code}, {told}" if told else str(error)).split()), [token])
            # Without its cause, whose message may hold the token
            raise ConfigError(
                f"{what}: {said}{f'; {_ADVICE[code]}' if code in _ADVICE else ''}"
            ) from None


def _token(id: str) -> str:
    from huggingface_hub import get_token

    if found := get_token():
        return found
    raise ConfigError(
        f"no Hugging Face token to push to {id!r} with: run `hf auth login`, or set HF_TOKEN"
    )


def staged(folder: str | os.PathLike[str], repository: Repository) -> Files:
    """The files of a folder that may be pushed there; its card's code then loads the model from there.

    Raises `ConfigError` when there is no such folder or nothing in it that may be pushed.
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
        # in the usage only: the command of the training stays as it was given
        usage, training, rest = (
            (folder / "README.md").read_text(encoding="utf-8").partition("\n## Training")
        )
        if found := _LOADED.search(usage):
            name = json.loads(found[1])
            usage = usage.replace(found[1], json.dumps(repository.id)).replace(
                f" {name}", f" {repository.id}"
            )
        files["README.md"] = (usage + training + rest).encode()
    return files


def push(
    folder: str | os.PathLike[str], repository: Repository, message: str = "Upload search agent"
) -> str:
    """Upload what may be pushed of a folder as one commit; returns its address. Raises as `staged` and `commit` do."""
    return repository.commit(staged(folder, repository), message)


def stays(folder: Path) -> list[str]:
    """The files of a model's folder that `push` leaves behind, in order."""
    return sorted(set(_files(folder)) - set(_pushed(folder, "model")))


def takes_over(args: Any) -> Repository | None:
    """Take `--push_to_hub` from a trainer's settings, which would upload everything in its folder: `push_run` does it.

    The repository is created now, so that a missing token or a wrong name is told before training and not after it.
    Returns it by its full name, or `None` where nothing was to be pushed. Raises `ConfigError` when checkpoints are
    asked for, which are not pushed, or as `Repository.make`.
    """
    if not args.push_to_hub:
        return None
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if "checkpoint" in strategy:
        raise ConfigError(
            "--hub_strategy: the policy is pushed once, at the end; checkpoints hold pickled settings"
        )
    args.push_to_hub = False
    name = str(args.hub_model_id or Path(args.output_dir).absolute().name)
    repository = Repository(name, private=bool(args.hub_private_repo), revision=args.hub_revision)
    return repository if args.process_index else replace(repository, id=repository.make())


def push_run(
    folder: str | os.PathLike[str], repository: Repository, *, merged: bool = False
) -> None:
    """Upload what a training run left, see `policy_folders`. Raises `ConfigError` as `push` does."""
    for repo, of in policy_folders(folder, repository, merged).items():
        push(of, repo)


def policy_folders(
    folder: str | os.PathLike[str], repository: Repository, merged: bool
) -> dict[Repository, Path]:
    """What is pushed of a run, by its repository: the policy, and with `merged` its adapter's full model as `…-merged`.

    Raises `ConfigError` when there is no merged model.
    """
    folders, full = {repository: Path(folder)}, Path(folder) / MERGED
    if merged and not full.is_dir():
        raise ConfigError(
            f"there is no merged model: faithful-search merge {folder} {full} makes it"
        )
    return folders | ({replace(repository, id=f"{repository.id}-{MERGED}"): full} if merged else {})


def metric_folders(owner: Repository) -> dict[Repository, Path]:
    """The folder of every metric, by the Space `owner.id/name` whence `evaluate.load` takes it."""
    folder = shipped("evaluate_metrics")
    return {
        replace(owner, id=f"{owner.id}/{name}", type="space"): folder / name
        for name in metric_names()
    }


def staged_space(repository: Repository, wheel: str | os.PathLike[str] | None = None) -> Files:
    """The faithfulness explorer's files, and with them a wheel of the package: what the Space then installs.

    Raises `ConfigError` when there is no such wheel.
    """
    files = dict(staged(shipped("spaces") / "faithfulness_explorer", repository))
    if wheel is not None:
        from huggingface_hub import hf_hub_url

        wheel = Path(wheel)
        if not wheel.is_file():
            raise ConfigError(f"no wheel {wheel}: `pip wheel --no-deps .` or `uv build` makes one")
        # A Space installs its requirements before its own files are there, so the wheel is named by its address
        at = hf_hub_url(repository.id, wheel.name, repo_type="space")
        files |= {
            wheel.name: wheel,
            "requirements.txt": f"faithful-search[train] @ {at}\n".encode(),
        }
    return files


def _pushed(folder: Path, repo_type: str) -> list[str]:
    from huggingface_hub.utils import filter_repo_objects

    found = filter_repo_objects(
        _files(folder), allow_patterns=MAY_BE_PUSHED[repo_type], ignore_patterns=_STAYS
    )
    return list(found)


def _files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
