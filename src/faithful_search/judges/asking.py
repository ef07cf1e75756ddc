"""Batches of questions to an endpoint: what is cached is not asked, what is answered is kept at once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError, JudgeError
from ..wire.background import Background, map_concurrently
from ..wire.cache import Cache
from ..wire.endpoint import Endpoint
from ..wire.llm import LLM, Reply, Stats, Unanswered, Unreadable
from .labels import Constrained, Ladder, after_thought, label_of
from .questions import Answer, Question
from .together import labels_of

_log = logging.getLogger(__name__)


class Asker:
    """What a judge has besides its settings: the connection, the open cache, what the server accepts, the counters.

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

    @property
    def stats(self) -> Stats:
        """A copy of the counters."""
        return replace(self.counts, notes=dict(self.counts.notes))

    @cached_property
    def cache(self) -> Cache | None:
        return self._open_cache()

    @cached_property
    def llm(self) -> LLM:
        """Made with the first question that is not cached: only then a key is needed."""
        return LLM(self._endpoint(), self.counts)

    def answers(self, questions: Sequence[Question], groups: Sequence[Question] = ()) -> list[Answer | str]:
        """The answers in order; where there is none, why.

        Instead of the members of `groups`, which are among the questions, the groups are asked. The members of a group
        whose reply cannot be read, or which the server refuses, are then asked by themselves.

        Raises:
            JudgeError: when there is no answer at all because asking is pointless.
            DataError: when the cache's file cannot be used.
        """
        if not questions:
            return []
        batch = _Batch(self, questions, groups)
        if self._counted is not None:
            for question in batch.open:
                batch.settle(question, self._counting(question, self._counted))
        elif batch.open:
            try:
                self._background.run(batch.ask())
            except KeyboardInterrupt:
                self._background.run(batch.finish())
                raise
            except TimeoutError as error:
                raise JudgeError(f"the judge's background thread hangs: {error}") from error
        if batch.pointless and all(isinstance(answer, str) for answer in batch.found.values()):
            raise batch.pointless
        return [batch.found[question.key] for question in questions]

    @contextmanager
    def keeping(self, path: Path) -> Iterator[None]:
        """Keep answers in this file where there is no cache; it goes in the end when all were answered."""
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
        names = (path.name, f"{path.name}-wal", f"{path.name}-shm")
        for name in names if self.counts.failures == failures else ():
            path.with_name(name).unlink(missing_ok=True)

    def check_cost(self) -> None:
        """Raises `JudgeError` once what was asked has cost as much as it may."""
        if self._max_cost is not None and self.counts.cost >= self._max_cost:
            raise JudgeError(f"not asked: the answers have cost {self.counts.cost:.4f} of at most {self._max_cost:g}")

    def _counting(self, question: Question, counted: set[str]) -> Answer:
        """Some answer, and what it would have taken."""
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

    def close(self) -> None:
        """Close connections, thread and file; the next batch opens them again."""
        self._background.stop()
        self.__dict__.pop("llm", None)
        if self.cache is not None:
            self.cache.close()

    async def ask(self, question: Question, on_retry: Callable[[], object]) -> Answer:
        """Ask; once more, with another seed, when the reply is not what was asked for."""
        try:
            return self._read(question, await self._reply(question, question.body, on_retry))
        except Unreadable:
            if question.members:
                raise
            # with temperature 0, the same seed would give the same unreadable reply
            seed = question.body.get("seed")
            again = question.body if seed is None else {**question.body, "seed": seed + 1}
            return self._read(question, await self._reply(question, again, on_retry))

    async def _reply(self, question: Question, body: dict[str, Any], on_retry: Callable[[], object]) -> Reply:
        if not question.one_label:
            return await self.llm.chat(question.messages, body, on_retry=on_retry)
        while True:
            form = self.ladder.current
            try:
                reply = await self.llm.chat(
                    question.messages, {**body, **form.body}, final=form.refused, on_retry=on_retry
                )
            except Unanswered as fault:
                if not self.ladder.step_down(form, fault):
                    raise
            else:
                self.ladder.settle(form)
                return reply

    def _read(self, question: Question, reply: Reply) -> Answer:
        self._bill(reply.prompt_tokens, reply.completion_tokens)
        cut = ", cut off at max_tokens: more are needed where a model reasons first" if reply.cut else ""
        shown = f"{' '.join(reply.text.split())[:80]!r}{cut}"
        if question.writes:
            text = after_thought(reply.text)
            if reply.cut or not text:
                raise Unreadable(f"the text is empty or incomplete: {shown}")
            return Answer(text=text)
        if question.members:
            labels = labels_of(after_thought(reply.text), len(question.members))
            if labels is None:
                raise Unreadable(f"the reply is not one label for each claim: {shown}")
            return Answer(labels=labels)
        found = label_of(reply)
        if found is None:
            raise Unreadable(f"the reply is neither 1 nor 0: {shown}")
        return Answer(*found)


class _Batch:
    """What has been found out about questions, by key.

    `open` are to be asked, those for one label first; `apart` are members of groups without a readable reply;
    `pointless` is why the others are not asked.
    """

    def __init__(self, asker: Asker, questions: Sequence[Question], groups: Sequence[Question]) -> None:
        self._asker, self._counts = asker, asker.counts
        self._pairs = Counter(question.key for question in questions)
        self.found: dict[str, Answer | str] = {}
        self.apart: list[Question] = []
        self._under_way: set[asyncio.Task[Answer]] = set()
        self.pointless: JudgeError | None = None
        alone = {question.key: question for question in questions}
        kept = asker.cache.get_many([*alone, *(group.key for group in groups)]) if asker.cache else {}
        grouped: list[Question] = []
        for group in groups:
            # a group whose members were all answered one by one, by an earlier run, is not asked again
            members = {member.key for member in group.members}
            if group.key in kept or not members <= kept.keys():
                grouped.append(group)
                alone = {key: question for key, question in alone.items() if key not in members}
        self.open = [question for question in (*alone.values(), *grouped) if not self._recall(question, kept)]

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

    async def _ask_all(self, questions: Iterable[Question]) -> None:
        """One question finds out what the server accepts and the others profit, unless it turns out to take long."""
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
            self._asker.check_cost()
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
        async def compute() -> bytes:
            return msgspec.json.encode(await self._asker.ask(question, on_retry))

        if self._asker.cache is None:
            return await self._asker.ask(question, on_retry)
        value, was_there = await self._asker.cache.get_or_compute(question.key, compute)
        self._counts.hits += was_there
        return self._decode(value)

    def _fail(self, question: Question, why: Exception) -> None:
        self._counts.failures += 1
        self.settle(question, str(why))

    def _recall(self, question: Question, kept: Mapping[str, bytes]) -> bool:
        if question.key in kept:
            self.settle(question, self._decode(kept[question.key]))
            self._counts.hits += 1
        return question.key in kept

    def _decode(self, value: bytes) -> Answer:
        try:
            return msgspec.json.decode(value, type=Answer)
        except msgspec.MsgspecError as error:
            where = self._asker.cache
            raise DataError(f"{where} holds something that is no answer; name another file for the cache") from error

    def settle(self, question: Question, answer: Answer | str) -> None:
        """Note an answer, of a group's question for each of its members."""
        if question.members:
            labels = () if isinstance(answer, str) else answer.labels or ()
            told = [Answer(float(label), label, together=True) for label in labels]
            shares: Sequence[Answer | str] = told or [answer] * len(question.members)
            for member, own in zip(question.members, shares, strict=True):
                self.settle(member, own)
            return
        self.found[question.key] = answer
        if self._asker.on_progress is not None:
            self._asker.on_progress(self._pairs[question.key])
