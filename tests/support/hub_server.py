"""The Hub on loopback: its HTTP interface as `huggingface_hub`, Datasets and Evaluate use it, with accounts and faults.

    with HubServer() as hub:
        subprocess.run([...], env={**os.environ, **hub.environment(cache)})
        hub.files("me/policy")               # what main holds, by path
        hub.fail("PUT", "/lfs/", 500, 1)     # the next such request gets a 500

`TOKEN` may write what `me` and `team` own; `READER` may only read; every other token has expired. Large files (weights,
parquet, images) go through the Git LFS protocol, to which clients keep with `HF_HUB_DISABLE_XET=1`.
"""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN, READER = "hf_planted-Secret9", "hf_reader-Secret9"
OWNERS = ("me", "team")
LARGE = (".safetensors", ".parquet", ".png", ".whl")
_DAY = "2026-01-01T00:00:00.000Z"


@dataclass
class Repo:
    """A repository: commits by id, each the whole of its files, and what names them."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str) -> str:
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        oid = self.branches.get(revision) or self.tags.get(revision) or revision
        return (oid, self.commits[oid]) if oid in self.commits else None


class HubServer:
    """Serves while the `with` block runs. `repos` are by (type, id), `collections` by slug."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.collections: dict[str, dict[str, Any]] = {}
        self.large: dict[str, bytes] = {}
        self.log: list[tuple[str, str]] = []
        self.faults: list[list[Any]] = []
        routes = [
            Route("/api/whoami-v2", self.whoami),
            Route("/api/validate-yaml", lambda _: JSONResponse({"errors": [], "warnings": []}), methods=["POST"]),
            Route("/api/repos/create", self.create, methods=["POST"]),
            Route("/api/collections", self.collect, methods=["POST"]),
            Route("/api/collections/{owner}/{name}", self.collected),
            Route("/api/collections/{owner}/{name}/items", self.add_item, methods=["POST"]),
            Route("/lfs/{oid}", self.put, methods=["PUT"]),
            Route("/lfs-verify", lambda _: JSONResponse({}), methods=["POST"]),
        ]
        for kind in ("model", "dataset", "space"):
            api, prefix = f"/api/{kind}s/{{owner}}/{{name}}", "" if kind == "model" else f"/{kind}s"
            for path, view, method in [
                (f"{api}", self.about, "GET"),
                (f"{api}/revision/{{revision}}", self.about, "GET"),
                (f"{api}/refs", self.refs, "GET"),
                (f"{api}/tag/{{revision}}", self.tag, "POST"),
                (f"{api}/preupload/{{revision}}", self.preupload, "POST"),
                (f"{api}/commit/{{revision}}", self.commit, "POST"),
                (f"{api}/tree/{{revision}}", self.tree, "GET"),
                (f"{api}/tree/{{revision}}/{{path:path}}", self.tree, "GET"),
                (f"{prefix}/{{owner}}/{{name}}.git/info/lfs/objects/batch", self.batch, "POST"),
                (f"{prefix}/{{owner}}/{{name}}/resolve/{{revision}}/{{path:path}}", self.resolve, "GET"),
            ]:
                routes.append(Route(path, _of(kind, view), methods=[method]))
        app = Starlette(routes=routes)
        app.add_middleware(_Faults, hub=self)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.run, daemon=True).start()
        while not self._server.started:
            pass
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True

    def environment(self, home: Any, token: str = TOKEN) -> dict[str, str]:
        """Variables with which a process takes this for the Hub, with a cache of its own."""
        own = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": token, "NO_PROXY": "*"}
        offline = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "HF_EVALUATE_OFFLINE": "0"}
        return {**own, **offline, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

    def files(self, name: str, kind: str = "model", revision: str = "main") -> dict[str, bytes]:
        """What a repository holds, by path; empty where there is no commit."""
        found = self.repos[kind, name].at(revision)
        return found[1] if found else {}

    def fail(self, method: str, part: str, status: int | None, times: int = 1) -> None:
        """Answer the next requests with `part` in their path by that status; `None` breaks the connection off."""
        self.faults.append([method, part, status, times])

    # what requests are answered with

    def whoami(self, request: Request) -> Response:
        return JSONResponse({"name": "me", "type": "user", "orgs": [{"name": "team"}], "auth": {"accessToken": {}}})

    async def create(self, request: Request) -> Response:
        asked = await request.json()
        owner, kind = asked.get("organization") or "me", asked.get("type") or "model"
        key = (kind, f"{owner}/{asked['name']}")
        if (refused := self._refused(request, owner)) is not None:
            return refused
        prefix = "" if kind == "model" else f"{kind}s/"
        told = {"url": f"{self.url}/{prefix}{key[1]}", "name": key[1], "id": "0"}
        if key in self.repos:
            return JSONResponse({"error": "You already created this repo", **told}, 409)
        repo = self.repos[key] = Repo(asked.get("visibility") == "private")
        repo.commit({".gitattributes": b""}, "main")
        return JSONResponse(told)

    def about(self, request: Request, repo: Repo) -> Response:
        if (found := repo.at(request.path_params.get("revision", "main"))) is None:
            return _missing("RevisionNotFound")
        siblings = [{"rfilename": path} for path in found[1]]
        own = {"id": _name(request), "sha": found[0], "siblings": siblings, "private": repo.private, "tags": []}
        card = found[1].get("README.md", b"").decode().split("---\n")
        told = {"cardData": yaml.safe_load(card[1])} if len(card) > 2 else {}
        return JSONResponse(
            {**own, **told, "lastModified": _DAY, "createdAt": _DAY, "downloads": 0, "likes": 0, "gated": False}
        )

    def refs(self, request: Request, repo: Repo) -> Response:
        def told(names: dict[str, str], kind: str) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid} for n, oid in names.items()]

        return JSONResponse({"branches": told(repo.branches, "heads"), "tags": told(repo.tags, "tags"), "converts": []})

    async def tag(self, request: Request, repo: Repo) -> Response:
        repo.tags[(await request.json())["tag"]] = request.path_params["revision"]
        return JSONResponse({})

    async def preupload(self, request: Request, repo: Repo) -> Response:
        modes = [
            {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular"}
            for one in (await request.json())["files"]
        ]
        return JSONResponse({"files": [{**mode, "shouldIgnore": False} for mode in modes]})

    async def batch(self, request: Request, repo: Repo) -> Response:
        def told(one: dict[str, Any]) -> dict[str, Any]:
            actions = {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}, "verify": {"href": f"{self.url}/lfs-verify"}}
            return one if one["oid"] in self.large else {**one, "actions": actions}

        asked = await request.json()
        return JSONResponse({"transfer": "basic", "objects": [told(one) for one in asked["objects"]]})

    async def put(self, request: Request) -> Response:
        content = await request.body()
        assert hashlib.sha256(content).hexdigest() == request.path_params["oid"]
        self.large[request.path_params["oid"]] = content
        return Response()

    async def commit(self, request: Request, repo: Repo) -> Response:
        branch = request.path_params["revision"]
        files = dict(repo.at(branch)[1])
        for line in (await request.body()).splitlines():
            told = json.loads(line)
            value = told["value"]
            match told["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        oid = repo.commit(files, branch)
        url = f"{self.url}/{_name(request)}/commit/{oid}"
        return JSONResponse({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    def tree(self, request: Request, repo: Repo) -> Response:
        if (found := repo.at(request.path_params["revision"])) is None:
            return _missing("RevisionNotFound")
        below = request.path_params.get("path", "").strip("/")
        start = f"{below}/" if below else ""
        under = {path: content for path, content in found[1].items() if path.startswith(start)}
        if below and not under:
            return _missing("EntryNotFound")
        deep = request.query_params.get("recursive", "").lower() in ("1", "true")
        entries: dict[str, Any] = {}
        for path, content in under.items():
            parts = path.removeprefix(start).split("/")
            for depth in range(1, len(parts)):
                folder = start + "/".join(parts[:depth])
                if deep or depth == 1:
                    entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
            if deep or len(parts) == 1:
                entries[path] = _entry(path, content)
        return JSONResponse(list(entries.values()))

    def resolve(self, request: Request, repo: Repo) -> Response:
        found = repo.at(request.path_params["revision"])
        if found is None:
            return _missing("RevisionNotFound")
        content = found[1].get(request.path_params["path"])
        if content is None:
            return _missing("EntryNotFound", {"X-Repo-Commit": found[0]})
        etag = hashlib.sha256(content).hexdigest()
        own = {"ETag": f'"{etag}"', "X-Repo-Commit": found[0], "X-Linked-Size": str(len(content))}
        return Response(content, headers=own, media_type="application/octet-stream")

    async def collect(self, request: Request) -> Response:
        asked = await request.json()
        slug = f"{asked['namespace']}/{asked['title'].lower().replace(' ', '-')}"
        if slug in self.collections:
            return JSONResponse({"error": "exists", "slug": slug}, 409)
        own = {"slug": slug, "title": asked["title"], "owner": {"name": asked["namespace"]}, "items": []}
        more = {"lastUpdated": _DAY, "position": 0, "private": asked["private"], "theme": "blue", "upvotes": 0}
        self.collections[slug] = {**own, **more}
        return JSONResponse(self.collections[slug])

    def collected(self, request: Request) -> Response:
        return JSONResponse(self.collections[_name(request)])

    async def add_item(self, request: Request) -> Response:
        asked, items = (await request.json())["item"], self.collections[_name(request)]["items"]
        items.append({"_id": str(len(items)), "position": 0, **asked})
        return JSONResponse(self.collections[_name(request)])

    def _refused(self, request: Request, owner: str | None = None) -> Response | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in ("", TOKEN, READER):
            return JSONResponse({"error": "User access token is expired"}, 401)
        if owner is not None and (token != TOKEN or owner not in OWNERS):
            said = f"You don't have the rights to create something under the namespace {owner!r}"
            return JSONResponse({"error": said}, 403)
        return None


class _Faults:
    """Notes every request, and answers some of them by what `HubServer.fail` said."""

    def __init__(self, app: Any, hub: HubServer) -> None:
        self.app, self.hub = app, hub

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        method, path = scope["method"], scope["path"]
        self.hub.log.append((method, path))
        for fault in self.hub.faults:
            if fault[0] == method and fault[1] in path and fault[3]:
                fault[3] -= 1
                if fault[2] is None:
                    raise ConnectionAbortedError
                said = JSONResponse({"error": f"fault {fault[2]}"}, fault[2])
                return await said(scope, receive, send)
        return await self.app(scope, receive, send)


def _of(kind: str, view: Any) -> Any:
    """The view for a request that names a repository which is there and may be seen."""

    async def answer(request: Request) -> Response:
        hub = view.__self__
        owner = request.path_params["owner"] if request.method == "POST" else None
        if (refused := hub._refused(request, owner)) is not None:
            return refused
        repo = hub.repos.get((kind, _name(request)))
        signed = "authorization" in request.headers
        if repo is None or (repo.private and not signed):
            return _missing("RepoNotFound", status=404 if signed else 401)
        found = view(request, repo)
        return found if isinstance(found, Response) else await found

    return answer


def _name(request: Request) -> str:
    return f"{request.path_params['owner']}/{request.path_params['name']}"


def _entry(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    own = {"type": "file", "path": path, "size": len(content), "oid": oid}
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {**own, "lfs": large} if path.endswith(LARGE) else own


def _missing(code: str, headers: dict[str, str] | None = None, status: int = 404) -> Response:
    return JSONResponse({"error": code}, status, headers={"X-Error-Code": code, **(headers or {})})
