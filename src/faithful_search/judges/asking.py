"""Batches of questions to an endpoint: what is cached is not asked, what is answered is kept at once."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ..errors import DataError, JudgeError
from ..wire.background import BackgroundLoop
from ..wire.cache import Cache
from .chat import Chat, Fault, Line, Stats, Unreadable
from .prompting import Messages
from .replies import Constrained, Ladder, Reply, after_thought, label_of
from .together import labels_of

_SILENCE = 60.0
"""Seconds for which the background loop may show no sign of life before it counts as hanging."""


class Question(msgspec.Struct, frozen=True):
    """`body` are the request's parameters; `writes` asks for a text, otherwise for a label.

    One with `members` asks for the labels of these questions at once.
    """

    key: str
    messages: Messages
    body: dict[str, Any]
    writes: bool = False
    members: tuple[Question, ...] = ()

    @property
    def one_label(self) -> bool:
        """Whether the reply is a single label, which log-probs and constrained output are asked for."""
        return not (self.writes or self.members)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of an answer: a label with its p, a text, or the labels of the members.

    `together` marks the answer of a question that was asked as one of several members.
    """

    p: float | None = None
    label: bool | None = None
    text: str | None = None
    labels: tuple[bool, ...] | None = None
    together: bool = False


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Answer)


class Asker:
    """What a judge has besides its settings: a background loop, the connection on it, the open cache, the counters.

    Several threads may ask at once; they share the connection and its limit.
    """

    def __init__(
        self,
        line: Callable[[], Line],
        cache: Callable[[], Cache | None],
        constrained: Constrained,
        prices: tuple[float, float] | None,
        on_progress: Callable[[int], object] | None,
    ) -> None:
        self._make_line, self._make_cache = line, cache
        self._constrained, self._prices, self._on_progress = constrained, prices, on_progress
        self._stats = Stats()
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: BackgroundLoop | None = None
        self._chats: list[Chat] = []
        self._cache: Cache | None = None
        self._ladder = Ladder(self._constrained)

    @property
    def stats(self) -> Stats:
        """A copy of the counters."""
        return replace(self._stats)

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
        if self._pid != os.getpid():  # a forked child has neither the thread nor the connection
            self._start_fresh()
        batch = _Batch(questions, groups, self._open_cache(), self._on_progress)
        self._stats.hits += batch.hits
        if batch.open:
            self._run(self._settle(batch))
        if batch.pointless and all(isinstance(answer, str) for answer in batch.found.values()):
            raise batch.pointless
        return [batch.found[question.key] for question in questions]

    def close(self) -> None:
        """Close connections, thread and file; the next batch opens them again."""
        with self._lock:
            loop, chats, cache = self._loop, self._chats, self._cache
            self._loop, self._chats, self._cache = None, [], None
        if loop is not None and loop.usable:
            loop.run(_hang_up(chats), patience=_SILENCE)
            loop.stop()
        if cache is not None:
            cache.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._background().run(work, patience=_SILENCE)
        except TimeoutError as error:
            raise JudgeError(f"the judge's background thread hangs: {error}") from error

    def _background(self) -> BackgroundLoop:
        with self._lock:
            if self._loop is None or not self._loop.usable:
                self._loop, self._chats = BackgroundLoop(threads=4), []
                weakref.finalize(self, _retire, self._loop, self._chats)
            return self._loop

    def _open_cache(self) -> Cache | None:
        with self._lock:
            if self._cache is None:
                self._cache = self._make_cache()
            return self._cache

    async def _settle(self, batch: _Batch) -> None:
        try:
            chat = self._connect()
        except JudgeError as error:
            batch.pointless = error
            return self._skip(batch, batch.open)
        try:
            await self._ask_all(chat, batch, batch.open)
            await self._ask_all(chat, batch, batch.apart)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ask_all(self, chat: Chat, batch: _Batch, questions: Sequence[Question]) -> None:
        rest = iter(questions)
        async with asyncio.TaskGroup() as group:
            if questions and not self._knows(chat, questions[0]):
                await self._sound(group, chat, batch, rest)
            for _ in range(min(chat.line.concurrency, len(questions))):
                group.create_task(self._work(chat, batch, rest))

    def _knows(self, chat: Chat, question: Question) -> bool:
        """Whether a question of this kind has been answered before."""
        return self._ladder.settled if question.one_label else chat.has_answered

    def _connect(self) -> Chat:
        if not self._chats:
            self._chats.append(Chat(self._make_line(), self._stats))
        self._chats[0].new_batch()
        return self._chats[0]

    async def _sound(self, group: asyncio.TaskGroup, chat: Chat, batch: _Batch, rest: Iterator[Question]) -> None:
        """One question finds out what the server accepts and the others profit, unless it turns out to take long."""
        chat.trouble.clear()
        first = group.create_task(self._work(chat, batch, iter([next(rest)])))
        trouble = group.create_task(chat.trouble.wait())
        await asyncio.wait((first, trouble), return_when=asyncio.FIRST_COMPLETED)
        trouble.cancel()

    async def _work(self, chat: Chat, batch: _Batch, rest: Iterator[Question]) -> None:
        for question in rest:
            if batch.pointless:
                self._skip(batch, [question])
                continue
            try:
                batch.settle(question, await self._answer(chat, batch, question))
            except Fault as fault:
                if question.members and not fault.passing:
                    batch.apart.extend(question.members)
                    continue
                self._stats.failures += 1
                batch.settle(question, str(fault))
            except JudgeError as error:
                batch.pointless = error
                self._skip(batch, [question])

    def _skip(self, batch: _Batch, rest: Iterable[Question]) -> None:
        for question in rest:
            self._stats.failures += 1
            batch.settle(question, str(batch.pointless))

    async def _answer(self, chat: Chat, batch: _Batch, question: Question) -> Answer:
        async def compute() -> bytes:
            return _ENCODER.encode(await self._ask(chat, question))

        if batch.cache is None:
            return await self._ask(chat, question)
        value, was_there = await batch.cache.get_or_compute(question.key, compute)
        self._stats.hits += was_there
        return _decode(value, batch.cache)

    async def _ask(self, chat: Chat, question: Question) -> Answer:
        """Ask; once more, with another seed, when the reply is not what was asked for (but see `answers`)."""
        try:
            return self._read(question, await self._reply(chat, question, question.body))
        except Unreadable:
            if question.members:
                raise
            seed = question.body.get("seed")
            again = question.body if seed is None else {**question.body, "seed": seed + 1}
            return self._read(question, await self._reply(chat, question, again))

    async def _reply(self, chat: Chat, question: Question, body: dict[str, Any]) -> Reply:
        if not question.one_label:
            return await chat.ask(question.messages, body, _never)
        while True:
            form = self._ladder.current
            try:
                reply = await chat.ask(question.messages, {**body, **form.body}, form.refused)
            except Fault as fault:
                if not self._ladder.step_down(form, fault):
                    raise
            else:
                self._ladder.settle(form)
                return reply

    def _read(self, question: Question, reply: Reply) -> Answer:
        self._stats.cost += self._cost(reply)
        shown = f"{' '.join(reply.text.split())[:80]!r}{', cut off at max_tokens' if reply.cut else ''}"
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

    def _cost(self, reply: Reply) -> float:
        prompt, completion = self._prices or (0.0, 0.0)
        return (reply.prompt_tokens * prompt + reply.completion_tokens * completion) / 1e6


class _Batch:
    """What has been found out about questions, by key. `open` are to be asked, those for one label first; `apart` are
    members of groups without a readable reply; `pointless` is why the others are not asked."""

    def __init__(
        self,
        questions: Sequence[Question],
        groups: Sequence[Question],
        cache: Cache | None,
        on_progress: Callable[[int], object] | None,
    ) -> None:
        self.cache, self._on_progress = cache, on_progress
        self._pairs = Counter(question.key for question in questions)
        self.found: dict[str, Answer | str] = {}
        self.hits = 0
        self.apart: list[Question] = []
        self.pointless: JudgeError | None = None
        alone = {question.key: question for question in questions}
        kept = cache.get_many([*alone, *(group.key for group in groups)]) if cache else {}
        grouped: list[Question] = []
        for group in groups:
            members = {member.key for member in group.members}
            if group.key in kept or not members <= kept.keys():
                grouped.append(group)
                alone = {key: question for key, question in alone.items() if key not in members}
        self.open = [question for question in (*alone.values(), *grouped) if not self._recall(question, kept)]

    def settle(self, question: Question, answer: Answer | str) -> None:
        if question.members:
            for member, own in zip(question.members, _shares(question, answer), strict=True):
                self.settle(member, own)
            return
        self.found[question.key] = answer
        if self._on_progress is not None:
            self._on_progress(self._pairs[question.key])

    def _recall(self, question: Question, kept: Mapping[str, bytes]) -> bool:
        if question.key not in kept:
            return False
        self.settle(question, _decode(kept[question.key], self.cache))
        self.hits += 1
        return True


def _shares(group: Question, answer: Answer | str) -> Sequence[Answer | str]:
    """What a group's answer says about each of its members."""
    if isinstance(answer, str):
        return [answer] * len(group.members)
    return [Answer(float(label), label, together=True) for label in answer.labels or ()]


async def _hang_up(chats: list[Chat]) -> None:
    for chat in chats:
        await chat.close()


def _retire(background: BackgroundLoop, chats: list[Chat]) -> None:
    """Nobody uses the judge any more. Garbage is collected on any thread, the loop's own included: do not wait."""

    async def end() -> None:
        await _hang_up(chats)
        background.stop(wait=0)

    if background.usable:
        asyncio.run_coroutine_threadsafe(end(), background.loop)


def _never(_: Fault) -> bool:
    return False


def _decode(value: bytes, cache: Cache | None) -> Answer:
    try:
        return _DECODER.decode(value)
    except msgspec.MsgspecError as error:
        raise DataError(f"{cache} holds something that is no answer; name another file for the cache") from error
