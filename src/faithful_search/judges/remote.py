"""The judge behind `faithful-search serve-judge`: its clients need neither model nor GPU."""

import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, JudgeError, ToolError
from ..tools.remote_search import TOKEN
from ..tools.untrusted import check_address
from ..wire.background import Background, map_concurrently
from ..wire.http import Http
from ..wire.retry import Patience
from .base import Judge, Pair, Verdict

T = TypeVar("T")

# At most so many pairs in a request, and characters of their texts: a server hangs up on larger
# bodies.
CHUNK = 64
CHARACTERS = 2_000_000
_PATH = "/judge"
_MOST_BYTES = 16_000_000
_IS_IT_RUNNING = "is `faithful-search serve-judge` running there?"
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


@dataclass(frozen=True)
class RemoteJudge(Judge):
    """Asks a judge that `faithful-search serve-judge` serves; its verdicts are those of the judge
    there, which is given whole pairs, with `task` and `context`.

    Pairs are asked for in requests of at most 64, identical ones once. A pair without an answer
    gets a verdict that abstains and says why and what to do. A server that keeps failing is left
    alone for a while. Callable from threads and inside a running event loop, which it blocks. A
    pickle carries the settings. A server that wants a token gets the one in the environment
    variable `FAITHFUL_SEARCH_SERVE_TOKEN`. It can be gamed as the judge that is served.

    `name`, `lexical`, `reads_queries` and `tasks` are those of the served judge: the first of them
    to be read asks the server.

    Args:
        url: of the server, as `http://127.0.0.1:8001`.
        timeout: seconds for one request, its repetitions included.
        concurrency: requests under way at once.
        patience: how often, and after which pauses, a request is made again after a failure that
            passes.

    Raises:
        ConfigError: for settings that cannot work.
        JudgeError: by `judge_batch`, when nothing can be judged: the token is wrong, or another
            server is there.
    """

    url: str
    timeout: float = 300.0
    concurrency: int = 16
    patience: Patience = field(default_factory=lambda: Patience(retries=5))
    _background: Background = field(
        default_factory=lambda: Background(threads=4), init=False, repr=False, compare=False
    )

    flags: ClassVar[tuple[str, ...]] = ("url", "concurrency", "timeout")

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        if not settings.get("url"):
            raise ConfigError("the judge 'remote' needs the URL of `faithful-search serve-judge`")
        return super().open(model, **settings)

    def __post_init__(self) -> None:
        check_address(self.url, "http://127.0.0.1:8001", TOKEN)
        if urlsplit(self.url).query or self.timeout <= 0 or self.concurrency < 1:
            raise ConfigError(
                f"timeout and concurrency must be positive, and the url without a query; got {self}"
            )

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix(_PATH)

    @property
    def name(self) -> str:
        try:
            return f"remote:{self._about.judge}"
        except JudgeError:  # the server is down
            return f"remote:{self.base}"

    @property
    def lexical(self) -> bool:
        return self._about.lexical

    @property
    def reads_queries(self) -> bool:
        return self._about.reads_queries

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the served judge was trained to be asked (`Pair.task`); empty where it was not
        distilled, or its server does not say. Raises `JudgeError` where the server is down.
        """
        task = self._about.task
        if task is None:
            return ()
        return (task,) if isinstance(task, str) else task

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if not pairs:
            return []
        distinct = list(dict.fromkeys(pairs))  # repeated pairs would only fill the requests
        answers = self._run(map_concurrently(self._ask, _chunks(distinct), self.concurrency))
        by_pair = dict(zip(distinct, chain.from_iterable(answers), strict=True))
        return [by_pair[pair] for pair in pairs]

    def close(self) -> None:
        """Close the connections and the thread; the next batch opens them again."""
        self._background.stop()

    @cached_property
    def _http(self) -> Http:
        return Http(self.timeout, self.patience, self.concurrency, max_bytes=_MOST_BYTES)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._background.run(work)
        except TimeoutError as error:
            raise JudgeError(f"the judge's background thread hangs: {error}") from error

    @cached_property
    def _about(self) -> "_Reply":
        async def ask() -> _Reply:
            # A client of its own that gives up soon: a name is also read where nothing is judged.
            impatient = Http(min(self.timeout, 5.0), Patience(retries=0))
            reply = await impatient.get(f"{self.base}/health")
            return msgspec.json.decode(reply.body, type=_Reply)

        try:
            return self._run(ask())
        except ToolError as error:
            raise JudgeError(
                f"cannot ask the judge at {self.base}: {error}; {_IS_IT_RUNNING}"
            ) from None
        except _UNREADABLE:
            raise JudgeError(f"{self.base} is not a judge server; {_IS_IT_RUNNING}") from None

    async def _ask(self, chunk: list[Pair]) -> list[Verdict]:
        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        body = {"pairs": msgspec.to_builtins(chunk)}
        try:
            reply = await self._http.post(f"{self.base}{_PATH}", json=body, headers=headers)
            verdicts = _verdicts_in(reply.body)
            if len(verdicts) == len(chunk):
                return verdicts
            why = f"its reply does not hold the verdicts; {_IS_IT_RUNNING}"
        except ToolError as error:
            if error.status in (401, 403):
                raise JudgeError(
                    f"the judge at {self.base} answers {error.status}: {TOKEN} must hold its token"
                ) from None
            if error.status in (404, 405):
                raise JudgeError(
                    f"{self.base} is not a judge server ({error}); {_IS_IT_RUNNING}"
                ) from None
            if error.status == 413 and len(chunk) > 1:  # this server takes less at once
                half = len(chunk) // 2
                return [*await self._ask(chunk[:half]), *await self._ask(chunk[half:])]
            hint = _IS_IT_RUNNING if error.transient else "its log says more"
            if error.status == 413:
                hint = f"the pair's {chunk[0].characters} characters are more than it takes"
            why = f"{error}; {hint}"
        abstention = Verdict(
            p=None,
            label=None,
            why=f"no verdict from the judge at {self.base}: {why}",
            judge=f"remote:{self.base}",
        )
        return [abstention] * len(chunk)


class _Reply(msgspec.Struct, frozen=True):
    """What `/health` tells of the judge, and `/judge` of the pairs."""

    judge: str
    lexical: bool = False
    reads_queries: bool = False
    task: str | tuple[str, ...] | None = None
    verdicts: list[Verdict] | None = None


def _verdicts_in(body: bytes) -> list[Verdict]:
    """The verdicts of a reply; none where it cannot be read or one of them is unsound."""
    try:
        verdicts = msgspec.json.decode(body, type=_Reply).verdicts or []
    except _UNREADABLE:
        return []
    return verdicts if all(map(_is_sound, verdicts)) else []


def _is_sound(verdict: Verdict) -> bool:
    """Whether it is an abstention, or a p from 0 to 1 with a label."""
    if verdict.p is None:
        return verdict.label is None
    return verdict.label is not None and 0 <= verdict.p <= 1


def _chunks(pairs: list[Pair]) -> list[list[Pair]]:
    """What each request asks for: halves of halves until they are small enough."""
    size = sum(pair.characters for pair in pairs)
    if len(pairs) == 1 or (len(pairs) <= CHUNK and size <= CHARACTERS):
        return [pairs]
    half = len(pairs) // 2
    return [*_chunks(pairs[:half]), *_chunks(pairs[half:])]
