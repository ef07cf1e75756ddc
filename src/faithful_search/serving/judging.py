"""A judge behind `POST /judge`: what many clients ask for is judged in batches, and identical pairs once."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..errors import JudgeError
from ..judges import Judge, Pair, Verdict, is_lexical, prompting
from ..tools.batcher import Batcher
from ..wire.cache import Cache, key_of
from .app import Answer
from .metrics import JudgeMetrics
from .wire import Limits, read_judge

_LOG = logging.getLogger(__name__)
_DECODER = msgspec.json.Decoder(Verdict)


class Judging:
    """What a served judge answers: give `answers` to `application`.

    `POST /judge` `{"pairs": [{"premise": "…", "hypothesis": "…", "question": "", "task": "support"}]}` is answered by
    `{"judge": name, "verdicts": [{"p": 0.9, "label": true, "why": "…", "judge": "…"}]}`, in the order of the pairs.

    A pair is judged once, whoever asks for it and however often: concurrent requests share the verdict, and later ones
    find it in the cache. A pair whose client has gone is judged all the same, because the client will ask again. Where
    there is no verdict, `p` and `label` are null and `why` says what happened: such a pair is judged anew by the next
    request.

    Args:
        judge: who judges. Only one thread asks it.
        cache: of the verdicts. By default a file that is removed when the process ends. Verdicts are found again by the
            judge's name and settings, its model's files, the prompt of the task, and the pair.
        limits: of what a request may ask for.
        metrics: where to count.
        batch: pairs judged at once; those of all requests are collected while a batch is judged.
    """

    def __init__(
        self,
        judge: Judge,
        cache: Cache | None = None,
        limits: Limits | None = None,
        metrics: JudgeMetrics | None = None,
        batch: int = 256,
    ) -> None:
        self.judge, self.limits, self.metrics = judge, limits or Limits(), metrics or JudgeMetrics()
        if cache is None:
            folder = tempfile.mkdtemp(prefix="faithful-search-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            cache = Cache(f"{folder}/verdicts.sqlite")
        self.cache = cache
        self._identity = identity(judge)
        self._batcher: Batcher[Pair, Verdict] = Batcher(self._judge, batch)
        self._tasks: set[asyncio.Task[Verdict]] = set()

    @property
    def answers(self) -> dict[str, Answer]:
        """By path."""
        return {"/judge": self._answer}

    @property
    def about(self) -> dict[str, Any]:
        """What `/health` tells of the judge: its name, and whether it only compares words."""
        return {"judge": self.judge.name, "lexical": is_lexical(self.judge)}

    async def _answer(self, body: bytes) -> dict[str, Any]:
        pairs = read_judge(body, self.limits)
        self.metrics.pairs.add(len(pairs))
        tasks = {pair: asyncio.create_task(self._verdict(pair)) for pair in dict.fromkeys(pairs)}
        self.metrics.known.add(len(pairs) - len(tasks))
        for task in tasks.values():  # held here: a verdict is worked for even when nobody waits for it any more
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        found = dict(zip(tasks, await asyncio.gather(*map(asyncio.shield, tasks.values())), strict=True))
        written = {
            pair: {"p": verdict.p, "label": verdict.label, "why": verdict.why, "judge": verdict.judge}
            for pair, verdict in found.items()
        }
        return {"judge": self.judge.name, "verdicts": [written[pair] for pair in pairs]}

    async def _verdict(self, pair: Pair) -> Verdict:
        async def compute() -> bytes:
            verdict = await self._batcher.ask(pair)
            if verdict.abstained:
                raise _AbstainedError(verdict)
            return msgspec.json.encode(verdict)

        prompt = prompting.load(pair.task).digest
        key = key_of(judge=self._identity, prompt=prompt, pair=msgspec.structs.astuple(pair))
        try:
            value, known = await self.cache.get_or_compute(key, compute)
        except _AbstainedError as abstained:
            self.metrics.abstained.add()
            return abstained.verdict
        self.metrics.known.add(known)
        return _DECODER.decode(value)

    def _judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        start = time.perf_counter()
        found = self._judge_all(pairs)
        self.metrics.judged.add(len(pairs))
        self.metrics.batches.observe(len(pairs))
        self.metrics.judging.observe(time.perf_counter() - start)
        return found

    def _judge_all(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """A pair that makes the judge fail abstains; the others of its batch do not."""
        try:
            found = self.judge.judge_batch(pairs)
            if len(found) != len(pairs):
                raise JudgeError(f"{self.judge.name} gave {len(found)} verdicts for {len(pairs)} pairs")
            # JSON has no NaN, and a p that is no probability must not be kept
            return [
                verdict
                if verdict.p is None or 0 <= verdict.p <= 1
                else Verdict(None, None, f"the judge gave p = {verdict.p}", verdict.judge)
                for verdict in found
            ]
        except JudgeError as error:
            return [Verdict(None, None, str(error), self.judge.name)] * len(pairs)
        except Exception as error:
            # which of the pairs it was shows when each is asked about alone
            if len(pairs) > 1:
                return [verdict for pair in pairs for verdict in self._judge_all([pair])]
            _LOG.exception("a pair could not be judged")
            why = f"the served judge failed ({type(error).__name__}); its log says more"
            return [Verdict(None, None, why, self.judge.name)]


class _AbstainedError(Exception):
    """Carries a verdict that is not to be kept."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.why)
        self.verdict = verdict


def identity(judge: Judge) -> list[Any]:
    """What a verdict depends on besides the pair: the judge's kind, name and settings, and which weights it has."""
    known: Any = judge
    fields: Sequence[Any] = dataclasses.fields(known) if dataclasses.is_dataclass(judge) else ()
    settings = [[item.name, getattr(judge, item.name)] for item in fields if item.repr]
    plain = []
    for setting in settings:
        # what cannot be written into a key is left out: a model in memory is known by its weights below
        with suppress(TypeError, ValueError):
            json.dumps(setting, sort_keys=True)
            plain.append(setting)
    # the weights: the revision on the Hub, or size and time of every file in the model's directory
    held = next((getattr(judge, name) for name in ("generator", "encoder") if hasattr(judge, name)), known)
    config = getattr(getattr(held, "model", None), "config", None)
    weights: list[Any] = [commit] if (commit := getattr(config, "_commit_hash", None)) else []
    place = getattr(known, "source", None) or getattr(held, "source", None) or getattr(config, "name_or_path", "")
    if place and Path(place).is_dir():
        files = sorted(path for path in Path(place).iterdir() if path.is_file())
        weights += [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return [type(judge).__name__, judge.name, plain, weights]
