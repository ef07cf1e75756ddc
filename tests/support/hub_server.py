"""The Hub on loopback: its HTTP interface as `huggingface_hub`, Datasets and Evaluate use it, with
accounts and faults.

    with HubServer() as hub:
        subprocess.run([...], env={**os.environ, **hub.environment(cache)})
        hub.files("me/policy")               # what main holds, by path
        hub.fail("PUT", "/lfs/", 500, 1)     # the next such request gets a 500

`TOKEN` may write what `me` and `team` own; `READER` may only read; every other token has expired.
Large files (weights, parquet, images) go through the Git LFS protocol, to which clients keep with
`HF_HUB_DISABLE_XET=1`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import yaml
from faulty_server import Handler, Loopback, Request

TOKEN, READER = "hf_planted-Secret9", "hf_reader-Secret9"
OWNERS = ("me", "team")
LARGE = (".safetensors", ".parquet", ".png", ".whl")
_DAY = "2026-01-01T00:00:00.000Z"


class Refusal(Exception):
    """An answer that is no good one."""

    def __init__(
        self, status: int, words: str, headers: dict[str, str] | None = None, **told: str
    ) -> None:
        self.status, self.told, self.headers = status, {"error": words, **told}, headers or {}


def missing(code: str, status: int = 404, **headers: str) -> Refusal:
    return Refusal(status, code, {"X-Error-Code": code, **headers})


@dataclass
class Repo:
    """A repository: commits by id, each the whole of its files, and what names them."""

    id: str
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str) -> str:
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid

    def at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        oid = self.branches.get(revision) or self.tags.get(revision) or revision
        if oid not in self.commits:
            raise missing("RevisionNotFound")
        return oid, self.commits[oid]


class HubServer(Loopback):
    """`repos` are by (type, id), `collections` by slug."""

    def __init__(self) -> None:
        super().__init__()
        self.repos: dict[tuple[str, str], Repo] = {}
        self.collections: dict[str, dict[str, Any]] = {}
        self.large: dict[str, bytes] = {}
        self.log: list[tuple[str, str]] = []
        self.faults: list[list[Any]] = []
        self.url = f"http://127.0.0.1:{self.port}"

    def environment(self, home: Any, token: str = TOKEN) -> dict[str, str]:
        """Variables with which a process takes this for the Hub, with a cache of its own."""
        own = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": token, "NO_PROXY": "*"}
        offline = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "HF_EVALUATE_OFFLINE": "0"}
        return {**own, **offline, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

    def files(self, name: str, kind: str = "model", revision: str = "main") -> dict[str, bytes]:
        """What a repository holds, by path."""
        return self.repos[kind, name].at(revision)[1]

    def fail(self, method: str, part: str, status: int, times: int = 1) -> None:
        """Answer the next requests with `part` in their path by that status."""
        self.faults.append([method, part, status, times])

    def respond(self, request: Request, handler: Handler) -> None:
        self.log.append((request.method, unquote(request.path)))
        status, headers = 200, {"Content-Type": "application/json"}
        try:
            told = self._answer(request)
            if isinstance(told, tuple):
                told, headers = told
        except Refusal as error:
            status, told, headers = error.status, error.told, error.headers
        payload = told if isinstance(told, bytes) else json.dumps(told).encode()
        handler.begin(status, {"Content-Length": str(len(payload)), **headers})
        if request.method != "HEAD":
            handler.wfile.write(payload)

    def _answer(self, request: Request) -> Any:
        method, path = request.method.replace("HEAD", "GET"), unquote(request.path)
        for fault in self.faults:
            if fault[0] == method and fault[1] in path and fault[3]:
                fault[3] -= 1
                raise Refusal(fault[2], f"fault {fault[2]}")
        for asked, pattern, view in ROUTES:
            if asked == method and (found := re.fullmatch(pattern, path)):
                return view(self, request, **found.groupdict(default=""))
        raise Refusal(404, "there is no such page")

    def admit(self, request: Request, owner: str | None = None) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in ("", TOKEN, READER):
            raise Refusal(401, "User access token is expired")
        if owner is not None and (token != TOKEN or owner not in OWNERS):
            raise Refusal(
                403, f"You don't have the rights to create something under the namespace {owner!r}"
            )

    # what requests are answered with

    def whoami(self, request: Request) -> Any:
        return {
            "name": "me",
            "type": "user",
            "orgs": [{"name": "team"}],
            "auth": {"accessToken": {}},
        }

    def create(self, request: Request) -> Any:
        asked = request.body
        owner, kind = asked.get("organization") or "me", asked.get("type") or "model"
        name = f"{owner}/{asked['name']}"
        self.admit(request, owner)
        told = {
            "url": f"{self.url}/{'' if kind == 'model' else f'{kind}s/'}{name}",
            "name": name,
            "id": "0",
        }
        if (kind, name) in self.repos:
            raise Refusal(409, "You already created this repo", **told)
        self.repos[kind, name] = repo = Repo(name, asked.get("visibility") == "private")
        repo.commit({".gitattributes": b""}, "main")
        return told

    def about(self, request: Request, repo: Repo, revision: str = "main") -> Any:
        oid, files = repo.at(revision)
        card = files.get("README.md", b"").decode().split("---\n")
        own = {
            "id": repo.id,
            "sha": oid,
            "siblings": [{"rfilename": path} for path in files],
            "private": repo.private,
        }
        told = {"cardData": yaml.safe_load(card[1])} if len(card) > 2 else {}
        more = {
            "lastModified": _DAY,
            "createdAt": _DAY,
            "downloads": 0,
            "likes": 0,
            "gated": False,
            "tags": [],
        }
        return {**own, **told, **more}

    def refs(self, request: Request, repo: Repo) -> Any:
        def told(names: dict[str, str], kind: str) -> list[dict[str, str]]:
            return [
                {"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid}
                for n, oid in names.items()
            ]

        return {
            "branches": told(repo.branches, "heads"),
            "tags": told(repo.tags, "tags"),
            "converts": [],
        }

    def tag(self, request: Request, repo: Repo, revision: str) -> Any:
        repo.tags[request.body["tag"]] = revision
        return {}

    def preupload(self, request: Request, repo: Repo, revision: str) -> Any:
        names = [one["path"] for one in request.body["files"]]
        modes = [(name, "lfs" if name.endswith(LARGE) else "regular") for name in names]
        return {
            "files": [
                {"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes
            ]
        }

    def batch(self, request: Request, repo: Repo) -> Any:
        def told(one: dict[str, Any]) -> dict[str, Any]:
            actions = {
                "upload": {"href": f"{self.url}/lfs/{one['oid']}"},
                "verify": {"href": f"{self.url}/lfs-verify"},
            }
            return one if one["oid"] in self.large else {**one, "actions": actions}

        return {"transfer": "basic", "objects": [told(one) for one in request.body["objects"]]}

    def put(self, request: Request, oid: str) -> Any:
        assert hashlib.sha256(request.data).hexdigest() == oid
        self.large[oid] = request.data
        return {}

    def commit(self, request: Request, repo: Repo, revision: str) -> Any:
        files = dict(repo.at(revision)[1])
        for told in request.body:
            value = told["value"]
            match told["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        oid = repo.commit(files, revision)
        url = f"{self.url}/{repo.id}/commit/{oid}"
        return {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""}

    def tree(self, request: Request, repo: Repo, revision: str, path: str = "") -> Any:
        start = f"{path.strip('/')}/".lstrip("/")
        under = {
            name: content
            for name, content in repo.at(revision)[1].items()
            if name.startswith(start)
        }
        if start and not under:
            raise missing("EntryNotFound")
        deep = request.parameters.get("recursive", "").lower() in ("1", "true")
        entries: dict[str, Any] = {}
        for name, content in under.items():
            parts = name.removeprefix(start).split("/")
            for depth in range(1, len(parts)):
                folder = start + "/".join(parts[:depth])
                if deep or depth == 1:
                    entries[folder] = {
                        "type": "directory",
                        "path": folder,
                        "size": 0,
                        "oid": "0" * 40,
                    }
            if deep or len(parts) == 1:
                entries[name] = entry(name, content)
        return list(entries.values())

    def resolve(self, request: Request, repo: Repo, revision: str, path: str) -> Any:
        oid, files = repo.at(revision)
        if path not in files:
            raise missing("EntryNotFound", **{"X-Repo-Commit": oid})
        content = files[path]
        etag = hashlib.sha256(content).hexdigest()
        return content, {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": oid,
            "X-Linked-Size": str(len(content)),
        }

    def collect(self, request: Request) -> Any:
        asked = request.body
        slug = f"{asked['namespace']}/{asked['title'].lower().replace(' ', '-')}"
        if slug in self.collections:
            raise Refusal(409, "exists", slug=slug)
        own = {
            "slug": slug,
            "title": asked["title"],
            "owner": {"name": asked["namespace"]},
            "items": [],
        }
        more = {
            "lastUpdated": _DAY,
            "position": 0,
            "private": asked["private"],
            "theme": "blue",
            "upvotes": 0,
        }
        self.collections[slug] = {**own, **more}
        return self.collections[slug]

    def collected(self, request: Request, slug: str) -> Any:
        return self.collections[slug]

    def add_item(self, request: Request, slug: str) -> Any:
        items = self.collections[slug]["items"]
        items.append({"_id": str(len(items)), "position": 0, **request.body["item"]})
        return self.collections[slug]


def entry(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    own = {"type": "file", "path": path, "size": len(content), "oid": oid}
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {**own, "lfs": large} if path.endswith(LARGE) else own


def of_repository(view: Callable[..., Any]) -> Callable[..., Any]:
    """The view for a request that names a repository which is there and may be seen."""

    def answer(
        hub: HubServer, request: Request, kind: str, owner: str, name: str, **more: str
    ) -> Any:
        hub.admit(request, owner if request.method == "POST" else None)
        repo = hub.repos.get((kind or "model", f"{owner}/{name}"))
        signed = "authorization" in request.headers
        if repo is None or (repo.private and not signed):
            raise missing("RepoNotFound", 404 if signed else 401)
        return view(hub, request, repo, **more)

    return answer


_SLUG, _AT = "/api/collections/(?P<slug>[^/]+/[^/]+)", "/(?P<revision>[^/]+)"
_API = "/api/(?P<kind>model|dataset|space)s/(?P<owner>[^/]+)/(?P<name>[^/]+)"
_PAGE = "/(?:(?P<kind>dataset|space)s/)?(?P<owner>[^/]+)/(?P<name>[^/]+)"
_OF_REPOSITORIES = [
    ("GET", _API, HubServer.about),
    ("GET", f"{_API}/revision{_AT}", HubServer.about),
    ("GET", f"{_API}/refs", HubServer.refs),
    ("POST", f"{_API}/tag{_AT}", HubServer.tag),
    ("POST", f"{_API}/preupload{_AT}", HubServer.preupload),
    ("POST", f"{_API}/commit{_AT}", HubServer.commit),
    ("GET", f"{_API}/tree{_AT}(?P<path>/.*)?", HubServer.tree),
    ("POST", rf"{_PAGE}\.git/info/lfs/objects/batch", HubServer.batch),
    ("GET", f"{_PAGE}/resolve{_AT}/(?P<path>.+)", HubServer.resolve),
]
ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    ("GET", "/api/whoami-v2", HubServer.whoami),
    ("POST", "/api/validate-yaml", lambda hub, request: {"errors": [], "warnings": []}),
    ("POST", "/api/repos/create", HubServer.create),
    ("POST", "/api/collections", HubServer.collect),
    ("GET", _SLUG, HubServer.collected),
    ("POST", f"{_SLUG}/items", HubServer.add_item),
    ("PUT", "/lfs/(?P<oid>[^/]+)", HubServer.put),
    ("POST", "/lfs-verify", lambda hub, request: {}),
    *((method, pattern, of_repository(view)) for method, pattern, view in _OF_REPOSITORIES),
]
