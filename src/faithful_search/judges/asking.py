"""Batches of questions to an endpoint: what is cached is not asked, and each answer is kept as soon as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError, JudgeError
from ..wire.background import Background, map_concurrently
from ..wire.cache import Cache
from ..wire.endpoint import Endpoint
from ..wire.llm import LLM, Reply, Stats, Unanswered, Unreadable
from .labels import Answer, Constrained, Form, Ladder, Question, read

_log = logging.getLogger(__name__)


class Asker:
    """The connection, the open cache, the counters, and what the server is known to accept.

    Several threads may ask at once; they share the connection and its limit.
    """

    def __init__(
        self,
        endpoint: Callable[[], Endpoint],
        cache: Callable[[], Cache | None],
        constrained: Constrained,
        prices: tuple[float, float] | None,
        max_cost: float | None,
        dry: bool,
        on_progress: Callable[[int], object] | None,
    ) -> None:
        self._endpoint, self._open_cache, self.on_progress = endpoint, cache, on_progress
        self._prices, self._max_cost = prices or (0.0, 0.0), max_cost
        self._counted: set[str] | None = set() if dry else None
        # few threads: the only blocking calls on this loop read and write the cache, which one at a time may do anyway
        self._background = Background(threads=4)
        self.counts = Stats()
        self.ladder = Ladder(constrained)

    @cached_property
    def cache(self) -> Cache | None:
        return self._open_cache()

    @cached_property
    def llm(self) -> LLM:
        """Made for the first question that is not cached: only then is a key needed."""
        return LLM(self._endpoint(), self.counts)

    def answers(self, questions: Sequence[Question], groups: Sequence[Question] = ()) -> list[Answer]:
        """The answers in order.

        A group is asked in place of its members, which are among the questions. Where its reply cannot be read, or the
        server refuses it, each member is asked by itself.

        Raises:
            JudgeError: when there is no answer at all because asking is pointless.
            DataError: when the cache's file cannot be used.
        """
        if not questions:
            return []
        batch = _Batch(self, questions, groups)
        if self._counted is not None:
            for question in batch.open:
                batch.settle(question, self._count(question, self._counted))
        elif batch.open:
            try:
                self._background.run(batch.ask())
            except KeyboardInterrupt:
                self._background.run(batch.finish())
                raise
            except TimeoutError as error:
                raise JudgeError(f"the judge's background thread hangs: {error}") from error
        if batch.pointless and all(answer.missing for answer in batch.found.values()):
            raise batch.pointless
        return [batch.found[question.key] for question in questions]

    @contextmanager
    def keeping(self, path: Path) -> Iterator[None]:
        """Keep answers in this file where there is no cache; it is removed when all questions were answered."""
        if self.cache is not None or self._counted is not None:
            yield
            return
        kept, failures = Cache(path), self.counts.failures
        self.cache = kept
        try:
            yield
        finally:
            self.cache = None
            kept.close()
        if self.counts.failures == failures:
            for ending in ("", "-wal", "-shm"):
                path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Close connections, thread and file; the next batch opens them again."""
        self._background.stop()
        self.__dict__.pop("llm", None)
        if self.cache is not None:
            self.cache.close()

    async def ask(self, question: Question, on_retry: Callable[[], object]) -> Answer:
        """Ask, and a second time with another seed where the reply is not what was asked for."""
        if self._max_cost is not None and self.counts.cost >= self._max_cost:
            raise JudgeError(f"not asked: the answers have cost {self.counts.cost:.4f} of at most {self._max_cost:g}")
        try:
            return read(question, await self._reply(question, question.body, on_retry))
        except Unreadable:
            if question.members:
                raise
        # with temperature 0, the same seed would give the same unreadable reply
        seed = question.body.get("seed")
        again = question.body if seed is None else {**question.body, "seed": seed + 1}
        return read(question, await self._reply(question, again, on_retry))

    async def _reply(self, question: Question, body: dict[str, Any], on_retry: Callable[[], object]) -> Reply:
        while True:
            form = self.ladder.current if question.one_label else Form()
            asked = {**body, **form.body}
            try:
                reply = await self.llm.chat(question.messages, asked, final=form.refused, on_retry=on_retry)
            except Unanswered as fault:
                if not (question.one_label and self.ladder.step_down(form, fault)):
                    raise
            else:
                if question.one_label:
                    self.ladder.settle(form)
                self._bill(reply.prompt_tokens, reply.completion_tokens)
                return reply

    def _count(self, question: Question, counted: set[str]) -> Answer:
        """A made-up answer, with what a real one would take added to the counters."""
        if question.key in counted:
            self.counts.hits += 1
        else:
            counted.add(question.key)
            self.counts.calls += 1
            prompt, completion = question.tokens
            self.counts.prompt_tokens += prompt
            self.counts.completion_tokens += completion
            self._bill(prompt, completion)
        return Answer(1.0, True, "", (True,) * len(question.members))

    def _bill(self, prompt: int, completion: int) -> None:
        self.counts.cost += (prompt * self._prices[0] + completion * self._prices[1]) / 1e6


class _Batch:
    """One call's questions and the answers found so far, by key.

    `open` are to be asked, those for one label first; `apart` are members of groups without a readable reply;
    `pointless` is why the remaining ones are not asked.
    """

    def __init__(self, asker: Asker, questions: Sequence[Question], groups: Sequence[Question]) -> None:
        self._asker, self._counts = asker, asker.counts
        self._pairs = Counter(question.key for question in questions)
        self._under_way: set[asyncio.Task[Answer]] = set()
        self.found: dict[str, Answer] = {}
        self.open: list[Question] = []
        self.apart: list[Question] = []
        self.pointless: JudgeError | None = None
        alone = {question.key: question for question in questions}
        kept = asker.cache.get_many([*alone, *(group.key for group in groups)]) if asker.cache else {}
        for group in groups:
            # a group whose members were all answered one by one, by an earlier run, is not asked again
            members = [member.key for member in group.members]
            if group.key in kept or not kept.keys() >= set(members):
                alone[group.key] = group
                for key in members:
                    alone.pop(key, None)
        for question in alone.values():
            if question.key in kept:
                self.settle(question, self._decode(kept[question.key]))
                self._counts.hits += 1
            else:
                self.open.append(question)

    async def ask(self) -> None:
        try:
            self._asker.llm.new_batch()
        except JudgeError as error:
            self.pointless = error
            for question in self.open:
                self._fail(question, error)
            return
        await self._ask_all(self.open)
        await self._ask_all(self.apart)

    async def finish(self) -> None:
        """After an interruption: wait for the answers that are under way, each of which is kept as it comes."""
        if self._under_way:
            _log.warning("waiting for %d answers that are under way; Ctrl-C again leaves them", len(self._under_way))
            await asyncio.wait(self._under_way, timeout=self._asker.llm.endpoint.timeout)

    async def _ask_all(self, questions: list[Question]) -> None:
        """The first question finds out what the server accepts; the others wait for it unless it has to be retried."""
        llm, rest, ahead = self._asker.llm, list(questions), []
        try:
            if rest and not (self._asker.ladder.settled if rest[0].one_label else llm.has_answered):
                known = asyncio.Event()
                first = asyncio.ensure_future(self._work(rest.pop(0), known.set))
                first.add_done_callback(lambda _: known.set())
                ahead.append(first)
                await known.wait()
            await map_concurrently(self._work, rest, llm.endpoint.concurrency)
            await asyncio.gather(*ahead)
        finally:
            for task in ahead:
                task.cancel()

    async def _work(self, question: Question, on_retry: Callable[[], object] = lambda: None) -> None:
        if self.pointless:
            return self._fail(question, self.pointless)
        try:
            task = asyncio.ensure_future(self._answer(question, on_retry))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            # what is paid for is kept: an interruption ends the waiting, not the request
            self.settle(question, await asyncio.shield(task))
        except Unanswered as fault:
            # several claims at once may be too long, or too much for a small model to keep apart
            if question.members and not fault.passing:
                self.apart.extend(question.members)
            else:
                self._fail(question, fault)
        except JudgeError as error:
            self.pointless = error
            self._fail(question, error)

    async def _answer(self, question: Question, on_retry: Callable[[], object]) -> Answer:
        ask = partial(self._asker.ask, question, on_retry)
        if self._asker.cache is None:
            return await ask()
        answer, was_there = await self._asker.cache.get_or_compute(question.key, ask, self._decode)
        self._counts.hits += was_there
        return answer

    def _decode(self, value: bytes) -> Answer:
        try:
            return msgspec.json.decode(value, type=Answer)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{self._asker.cache} holds an entry that is not an answer; name another file for the cache"
            ) from error

    def _fail(self, question: Question, why: Exception) -> None:
        self._counts.failures += 1
        self.settle(question, Answer(missing=str(why)))

    def settle(self, question: Question, answer: Answer) -> None:
        """Note an answer, of a group for each of its members."""
        if question.members:
            labels = [Answer(float(label), label, together=True) for label in answer.labels or ()]
            for member, own in zip(question.members, labels or [answer] * len(question.members), strict=True):
                self.settle(member, own)
            return
        self.found[question.key] = answer
        if self._asker.on_progress is not None:
            self._asker.on_progress(self._pairs[question.key])
