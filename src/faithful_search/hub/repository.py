"""A repository of the Hub, and what becomes one commit there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..wire.redact import redact

Files = Mapping[str, Path | bytes]
"""By path in the repository: a file here, or its content."""
WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors", "model.safetensors.index.json", "adapter_config.json")
_REPLACED = [*WEIGHTS, "data/*.parquet", "sessions/*.jsonl"]  # an earlier push may have left others of these names
_TEXT = {".md", ".json", ".jsonl", ".py", ".txt", ".jinja", ".yaml"}
_ADVICE = {
    401: "the token is wrong or has expired: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: it needs write access to this owner's repositories",
    409: "somebody else changes it at the same time, or the name is taken by another kind: try again",
    412: "somebody else changed it at the same time: try again",
    429: "the Hub has had too many requests: try again later",
}


@dataclass(frozen=True)
class Repository:
    """Where something is pushed.

    Attributes:
        id: `OWNER/NAME`; the owner is you where it is left out.
        type: `model`, `dataset` or `space`; a Space is made as a Gradio one.
        private: whether it is created as a private one.
        revision: the branch, created where it does not exist; `None`: main.
        tag: put on the commit; refused when it exists already.
        collection: title of a collection of the owner's that it is added to, created where it does not exist.
        token: `None`: that of `hf auth login` or `HF_TOKEN`.
    """

    id: str
    type: str = "model"
    private: bool = False
    revision: str | None = None
    tag: str | None = None
    collection: str | None = None
    token: str | None = None

    def make(self) -> str:
        """Create it unless it exists; returns its full name.

        Raises:
            ConfigError: when there is no token, or the Hub cannot be reached or refuses; when it is to be private and
                exists as a public one.
        """
        api = self._api()
        sdk = "gradio" if self.type == "space" else None
        with self._refusals(f"cannot push to {self.id!r} on the Hub", api):
            made = api.create_repo(self.id, repo_type=self.type, private=self.private, exist_ok=True, space_sdk=sdk)
            id = str(getattr(made, "repo_id", self.id))
            public = self.private and not api.repo_info(id, repo_type=self.type).private
        if public:
            raise ConfigError(f"{id!r} is a public repository already: make it private there, or leave --private out")
        return id

    def commit(self, files: Files, message: str) -> str:
        """Put files there as one commit, so that nobody ever sees half of them; weights and data of an earlier push
        that are not among them are deleted by the same commit. What was uploaded before an interruption is not sent
        again.

        Returns:
            The commit's address.

        Raises:
            ConfigError: when there is no token, one of the files holds it, or the Hub cannot be reached or refuses.
                The message says what was published then, if anything.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete
        from huggingface_hub.utils import filter_repo_objects

        api = self._api()
        # before anything is created; an older version of this package wrote the token into cards
        for path, content in files.items():
            if Path(path).suffix in _TEXT:
                read = content if isinstance(content, bytes) else content.read_bytes()
                if str(api.token).encode() in read:
                    raise ConfigError(f"{path} holds the Hub token: take it out; if it was shared, make a new token")
        own = replace(self, id=self.make())
        place: dict[str, Any] = {"repo_id": own.id, "repo_type": own.type}
        added = [
            CommitOperationAdd(path, content if isinstance(content, bytes) else str(content))
            for path, content in files.items()
        ]
        with own._refusals(f"cannot push to {own.id!r} on the Hub", api):
            # now, and not when all is published; the error becomes a `ConfigError` like those of the Hub
            if self.tag and self.tag in {ref.name for ref in api.list_repo_refs(**place).tags}:
                raise ValueError(f"there is a tag {self.tag!r} already: choose another, or delete that one")
            if self.revision:
                api.create_branch(**place, branch=self.revision, exist_ok=True)
            there = filter_repo_objects(api.list_repo_files(**place, revision=self.revision), allow_patterns=_REPLACED)
            operations = [*added, *(CommitOperationDelete(path) for path in there if path not in files)]
            done = api.create_commit(**place, operations=operations, commit_message=message, revision=self.revision)
        # what fails from here on leaves the commit where it is, and the message has to say so
        with own._refusals(f"pushed ({done.commit_url}), but not tagged or collected", api):
            if self.tag:
                api.create_tag(**place, tag=self.tag, revision=done.oid)
            if self.collection:
                owner = own.id.partition("/")[0]
                found = api.create_collection(self.collection, namespace=owner, private=self.private, exists_ok=True)
                api.add_collection_item(found.slug, own.id, own.type, exists_ok=True)
        return str(done.commit_url)

    def _api(self) -> Any:
        from huggingface_hub import HfApi, get_token

        token = self.token or get_token()
        if not token:
            raise ConfigError(
                f"no Hugging Face token to push to {self.id!r} with: run `hf auth login`, or set HF_TOKEN"
            )
        return HfApi(token=token, library_name="faithful-search")

    @contextmanager
    def _refusals(self, what: str, api: Any) -> Iterator[None]:
        """Errors of the Hub as `ConfigError`, with advice and without the token."""
        from huggingface_hub.errors import HTTPError  # of the HTTP library that it uses

        try:
            yield
        except (HTTPError, OSError, ValueError) as error:
            code = getattr(getattr(error, "response", None), "status_code", None)
            told = getattr(error, "server_message", None)
            said = redact(" ".join((f"{code}, {told}" if told else str(error)).split()), [str(api.token)])
            # Without its cause, whose message may hold the token
            raise ConfigError(f"{what}: {said}{f'; {_ADVICE[code]}' if code in _ADVICE else ''}") from None
