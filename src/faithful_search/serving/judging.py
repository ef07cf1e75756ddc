"""A judge behind `POST /judge`: what many clients ask for is judged in batches, and identical pairs
once.
"""

import asyncio
import atexit
import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from ..errors import JudgeError
from ..judges import Judge, Pair, Verdict, prompting
from ..tools.batcher import Batcher
from ..wire.cache import Cache, key_of
from .app import SECONDS, SIZES, ServerLimits, Service, decode

_LOG = logging.getLogger(__name__)
_DECODER = msgspec.json.Decoder(Verdict)
_LIKE = (
    '{"pairs": [{"premise": "…", "hypothesis": "…", "question": "", "task": "support", "context": '
    '""}]}'
)


class _Asked(msgspec.Struct):
    pairs: list[Pair]


class Judging(Service):
    """The server of a judge.

    `POST /judge` `{"pairs": [{"premise": "…", "hypothesis": "…", "question": "", "task":
    "support", "context": ""}]}` is answered by `{"judge": name, "verdicts": [{"p": 0.9, "label":
    true, "why": "…", "judge": "…"}]}`, in the order of the pairs. The fields of a pair are those of
    `judges.Pair`, of which the last three may be left out; the judge is given all of them.

    A pair is judged once, whoever asks for it and however often, also when its client has gone, who
    will ask again. Where there is no verdict, `p` and `label` are null and `why` says what
    happened; the next request asks anew.

    Args:
        judge: who judges. Only one thread asks it.
        cache: of the verdicts; by default a file that is removed when the process ends.
        batch: pairs judged at once; those of all requests are collected while a batch is judged.
        about: what `/health` tells besides the judge's name, whether it only compares words, and
            whether it reads queries. A `task` there is what the judge was trained to be asked.
    """

    def __init__(
        self,
        judge: Judge,
        cache: Cache | None = None,
        limits: ServerLimits | None = None,
        batch: int = 256,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        health = {
            "judge": judge.name,
            "lexical": judge.lexical,
            "reads_queries": judge.reads_queries,
            **(about or {}),
        }
        super().__init__({"/judge": self._answer_pairs}, limits, health)
        if cache is None:
            folder = tempfile.mkdtemp(prefix="faithful-search-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            cache = Cache(f"{folder}/verdicts.sqlite")
        self.judge = judge
        self.cache = cache
        self._pairs = self.counter("pairs", "Pairs asked for.")
        self._judged = self.counter("pairs_judged", "Pairs that the judge was asked about.")
        # identical pairs of one request count as known but for the first
        self._known = self.counter(
            "pairs_known", "Pairs answered with a verdict there was already."
        )
        self._abstained = self.counter("pairs_abstained", "Pairs answered without a verdict.")
        self._batches = self.histogram("batch_pairs", "Different pairs judged at once.", SIZES)
        self._judging = self.histogram("judge_seconds", "Time to judge a batch.", SECONDS)
        self._identity = identity(judge)
        self._batcher: Batcher[Pair, Verdict] = Batcher(self._judge, batch)
        self._tasks: set[asyncio.Task[Verdict]] = set()

    async def _answer_pairs(self, body: bytes) -> dict[str, Any]:
        pairs = decode(body, _Asked, _LIKE).pairs
        if len(pairs) > self.limits.pairs:
            raise HTTPException(
                413, f"{len(pairs)} pairs in a request; at most {self.limits.pairs}: send several"
            )
        for place, pair in enumerate(pairs):
            if pair.characters > self.limits.pair_chars:
                raise HTTPException(
                    413,
                    f"pair {place} has {pair.characters} characters; at most "
                    f"{self.limits.pair_chars}",
                )
        self._pairs.inc(len(pairs))
        tasks: dict[Pair, asyncio.Task[Verdict]] = {}
        for pair in dict.fromkeys(pairs):
            task = asyncio.create_task(self._verdict(pair))
            tasks[pair] = task
            # Held and shielded: a verdict is worked for even when nobody waits for it any more.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._known.inc(len(pairs) - len(tasks))
        verdicts = await asyncio.gather(*map(asyncio.shield, tasks.values()))
        # As dictionaries, so that what is the default of a verdict is sent, too.
        verdict_of = dict(zip(tasks, map(msgspec.structs.asdict, verdicts), strict=True))
        return {"judge": self.judge.name, "verdicts": [verdict_of[pair] for pair in pairs]}

    async def _verdict(self, pair: Pair) -> Verdict:
        def encode(verdict: Verdict) -> bytes | None:
            return None if verdict.abstained else msgspec.json.encode(verdict)

        prompt = prompting.load(pair.task).digest
        key = key_of(judge=self._identity, prompt=prompt, pair=msgspec.structs.astuple(pair))
        verdict, cached = await self.cache.get_or_compute(
            key, partial(self._batcher.ask, pair), _DECODER.decode, encode
        )
        if verdict.abstained:
            self._abstained.inc()
        else:
            self._known.inc(cached)
        return verdict

    def _judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self._judged.inc(len(pairs))
        self._batches.observe(len(pairs))
        with self._judging.time():
            return self._judge_all(pairs)

    def _judge_all(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A pair that makes the judge fail abstains; the others of its batch do not."""
        name = self.judge.name
        try:
            verdicts = self.judge.judge_batch(pairs)
            if len(verdicts) != len(pairs):
                raise JudgeError(f"{name} gave {len(verdicts)} verdicts for {len(pairs)} pairs")
        except JudgeError as error:
            return [Verdict(None, None, str(error), name)] * len(pairs)
        except Exception as error:
            # Which of the pairs it was shows when each is asked about alone.
            if len(pairs) > 1:
                return list(chain.from_iterable(self._judge_all([pair]) for pair in pairs))
            _LOG.exception("a pair could not be judged")
            why = f"the served judge failed ({type(error).__name__}); its log says more"
            return [Verdict(None, None, why, name)]
        return list(map(_checked, verdicts))


def _checked(verdict: Verdict) -> Verdict:
    """The verdict, which abstains where p is no probability: JSON has no NaN, and it must not be
    kept.
    """
    if verdict.p is None or 0 <= verdict.p <= 1:
        return verdict
    return Verdict(None, None, f"the judge gave p = {verdict.p}", verdict.judge)


def identity(judge: Judge) -> list[Any]:
    """What a verdict depends on besides the pair: the judge's class, name and settings, and which
    weights its model has.
    """
    settings: dict[str, Any] = {}
    if dataclasses.is_dataclass(judge):
        names = [field.name for field in dataclasses.fields(judge) if field.repr]
        settings = {name: getattr(judge, name) for name in names}
    weights = judge.weights
    files = _files(weights.source)
    return [type(judge).__name__, judge.name, settings, weights.revision, files]


def _files(source: str) -> list[list[Any]]:
    """Name, size and time of the files in a model's directory; a Hub id has a revision instead."""
    if not source or not Path(source).is_dir():
        return []
    files: list[list[Any]] = []
    for path in sorted(Path(source).iterdir()):
        if path.is_file():
            facts = path.stat()
            files.append([path.name, facts.st_size, facts.st_mtime_ns])
    return files
