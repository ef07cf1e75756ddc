"""The judge behind an OpenAI-compatible endpoint: a served model reads a prompt and answers 1 or 0."""

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from ..dialects.fence import Fence
from ..errors import ConfigError, DataError, JudgeError
from ..text import sentences
from ..wire.background import Background, map_concurrently
from ..wire.cache import Cache, key_of
from ..wire.llm import LLM, Endpoint, Reply, Stats, Unanswered, Unreadable, with_key
from .base import Pair, Request, Verdict
from .labels import Answer, Form, Ladder, Question, read
from .prompting import Prompt, fields_of, load

_log = logging.getLogger(__name__)
# servers read a spelled control token as the token itself, and which ones the served model has is not known here
_CONTROL = Fence(
    r"<[|\uff5c]|</?s>|<(?:bos|eos|pad|unk)>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"
)
TOGETHER = "support_many"  # the prompt about several claims on the same evidence
MOST = 20  # claims of one request: the more there are, the easier a model loses count
_LINE = 8  # tokens of a line with a claim's number and label


@dataclass(frozen=True)
class EndpointJudge:
    """Asks a served model; judges pairs and writes texts.

    p is p₁ / (p₁ + p₀) of the label's token where the server gives log-probs, else 1 or 0. Which of log-probs and
    constrained output (a choice of the two labels) the server accepts is found out with the first question. A pair
    without an answer gets a verdict that abstains and says why, and is asked about again next time. Answers go to the
    cache as they come; an interruption waits for those under way, a second one leaves them. Identical pairs are asked
    once. Callable from threads and inside a running event loop, which it blocks. A pickle carries the settings.

    The key is read from the environment when it is needed and kept nowhere else: `FAITHFUL_SEARCH_API_KEY`, else the
    Hub's token for Hugging Face hosts alone, else `OPENAI_API_KEY`.

    Args:
        model: the served model's name.
        url: the server's base URL, usually ending in `/v1`; without one, Hugging Face Inference Providers.
        concurrency, timeout, patience, retries, backoff, give_up_after: of asking, see `wire.llm.Endpoint`.
        cache: a file; "auto" is `judgements.sqlite` in the Hub's assets folder, None keeps nothing. Answers are found
            again by model, prompt and parameters, wherever the model is served.
        together: ask about several claims on the same evidence (`Pair.task` "support"; 20 claims at most) in one
            request, by a prompt of its own, which `Verdict.judge` names. Their p is 1 or 0, no probability, and what is
            said of one claim may depend on the others. Where a reply is not one label for each claim, each is asked by
            itself.
        temperature, seed: of the sampling; None leaves them out.
        max_tokens: of a label, several of which get 8 more each; a model that reasons first needs more than the
            default. None leaves it out.
        write_tokens: of a text that is written; where `max_tokens` is more, or None, that.
        extra_body: further parameters of the request.
        prices: of a million prompt and completion tokens, for `stats.cost`.
        max_cost: in their currency; what is not answered when so much was spent abstains. What is under way is paid.
        dry: ask nothing: `stats` count what would be asked, about as many tokens, and every verdict is a yes.
        on_progress: called with the number of pairs finished since its last call, on another thread; not pickled.

    Raises:
        ConfigError: for settings that cannot work.
        JudgeError: by `judge_batch` and `write_batch`, when asking is pointless: a wrong key, an unknown model.
        DataError: by both, when the cache's file cannot be used.

    How it can be gamed: text that argues with the judge. Untrusted text is fenced (see `Prompt.fill`) and the usual
    control tokens in it are escaped, which stops it from ending its block or our turn, not from being persuasive.
    """

    model: str
    url: str | None = None
    concurrency: int = 16
    timeout: float = 60.0
    patience: float = 180.0
    retries: int = 4
    backoff: float = 0.5
    give_up_after: int = 8
    cache: str | os.PathLike[str] | None = "auto"
    together: bool = True
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int | None = 16
    write_tokens: int | None = 512
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False)
    prices: tuple[float, float] | None = None
    max_cost: float | None = None
    dry: bool = False
    on_progress: Callable[[int], object] | None = field(default=None, repr=False, compare=False)
    # what is open, or known of the server, is no setting: it is neither shown, compared, copied nor pickled
    _endpoint: Endpoint = field(init=False, repr=False, compare=False)
    _counts: Stats = field(default_factory=Stats, init=False, repr=False, compare=False)
    _ladder: Ladder = field(default_factory=Ladder, init=False, repr=False, compare=False)
    _made_up: dict[str, Answer] = field(default_factory=dict, init=False, repr=False, compare=False)
    # few threads: the only blocking calls on its loop read and write the cache, which one at a time may do anyway
    _background: Background = field(
        default_factory=lambda: Background(4), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.prices is None:
            raise ConfigError(
                "max_cost needs prices: without them it is not known what the answers cost"
            )
        if not all(
            0 <= price < math.inf for price in self.prices or ()
        ):  # else no cost would ever reach the most
            raise ConfigError(f"prices must be numbers of at least 0, got {self.prices}")
        shared = (
            "url",
            "model",
            "timeout",
            "patience",
            "retries",
            "backoff",
            "concurrency",
            "give_up_after",
        )
        object.__setattr__(
            self, "_endpoint", Endpoint(**{name: getattr(self, name) for name in shared})
        )

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {own.name: getattr(self, own.name) for own in fields(self) if own.init}
        return partial(type(self), **settings | {"on_progress": None}), ()

    @property
    def name(self) -> str:
        return f"endpoint:{self.model}"

    @property
    def stats(self) -> Stats:
        """What this judge has asked so far; a copy."""
        return replace(self._counts, notes=dict(self._counts.notes))

    @cached_property
    def _cache(self) -> Cache | None:
        if self.cache != "auto":
            return None if self.cache is None else Cache(self.cache)
        from huggingface_hub import cached_assets_path

        return Cache(
            cached_assets_path("faithful_search", namespace="judges") / "judgements.sqlite"
        )

    @cached_property
    def _llm(self) -> LLM:
        # made for the first question that is not cached: only then is a key needed
        return LLM(with_key(self._endpoint), self._counts)

    @contextmanager
    def keeping(self, path: Path) -> Iterator[None]:
        """Keep answers in this file where there is no cache; it is removed when all questions were answered."""
        if self._cache is not None or self.dry:
            yield
            return
        failures, self.__dict__["_cache"] = self._counts.failures, Cache(path)
        try:
            yield
        finally:
            self.__dict__.pop("_cache").close()
        if self._counts.failures == failures:
            for ending in ("", "-wal", "-shm"):
                path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the connections, the background thread and the cache's file; the next batch opens them again."""
        self._background.stop()
        self.__dict__.pop("_llm", None)
        if self._cache is not None:
            self._cache.close()

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        asked = {pair: self._question(load(pair.task), fields_of(pair)) for pair in pairs}
        answers = self._answers(
            [asked[pair] for pair in pairs], self._groups(asked) if self.together else []
        )
        verdicts = []
        for pair, answer in zip(pairs, answers, strict=True):
            prompt = load(TOGETHER if answer.together else pair.task)
            verdicts.append(
                Verdict(answer.p, answer.label, answer.missing, f"{self.name} {prompt.id}")
            )
        return verdicts

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        asked = [
            self._question(load(request.prompt), request.fields, writes=True)
            for request in requests
        ]
        answers = self._answers(asked)
        if self.dry:  # as many claims as an answer has sentences
            return [
                "\n".join(sentences(request.fields.get("answer", ""))) or None
                for request in requests
            ]
        return [answer.text for answer in answers]

    def _groups(self, asked: Mapping[Pair, Question]) -> list[Question]:
        """Questions about several claims on the same evidence; more than `MOST` claims are cut into equal parts."""
        by_evidence: dict[tuple[str, str], list[Pair]] = {}
        for pair in asked:
            if pair.task == "support":
                by_evidence.setdefault((pair.premise, pair.question), []).append(pair)
        groups = []
        for (premise, question), pairs in by_evidence.items():
            size = math.ceil(len(pairs) / math.ceil(len(pairs) / MOST))
            for part in (
                pairs[at : at + size] for at in range(0, len(pairs), size) if len(pairs) > 1
            ):
                # a claim is one line: its own line breaks could pose as the next claim
                claims = (
                    f"{number}. {' '.join(pair.hypothesis.split())}"
                    for number, pair in enumerate(part, 1)
                )
                texts = {"premise": premise, "question": question, "claims": "\n".join(claims)}
                groups.append(
                    self._question(
                        load(TOGETHER), texts, members=tuple(asked[pair] for pair in part)
                    )
                )
        return groups

    def _question(
        self,
        prompt: Prompt,
        texts: Mapping[str, str],
        writes: bool = False,
        members: tuple[Question, ...] = (),
    ) -> Question:
        messages = prompt.fill({name: _CONTROL.escape(text) for name, text in texts.items()})
        limit = self.max_tokens and self.max_tokens + _LINE * len(members)
        if writes and limit is not None:
            # a model that reasons before a label reasons before a text, too
            limit = None if self.write_tokens is None else max(self.write_tokens, limit)
        own = {"temperature": self.temperature, "seed": self.seed, "max_tokens": limit}
        body = {name: value for name, value in own.items() if value is not None} | dict(
            self.extra_body
        )
        prompted = [prompt.id, prompt.digest]
        constrained = "none" if writes or members else "auto"
        key = key_of(
            model=self.model,
            prompt=prompted,
            messages=messages,
            parameters=body,
            constrained=constrained,
        )
        return Question(key, messages, body, writes, members)

    def _answers(
        self, questions: Sequence[Question], groups: Sequence[Question] = ()
    ) -> list[Answer]:
        """The answers in order. A group is asked in place of its members, which are among the questions; where that
        gives no answer, because of its length or its reply, each member is asked by itself."""
        batch = _Batch(self, questions, groups)
        try:
            if batch.open:
                self._background.run(batch.ask())
        except KeyboardInterrupt:
            self._background.run(batch.finish())
            raise
        except TimeoutError as error:
            raise JudgeError(f"the judge's background thread hangs: {error}") from error
        if batch.pointless and all(answer.missing for answer in batch.found.values()):
            raise batch.pointless
        return [batch.found[question.key] for question in questions]

    def _decode(self, value: bytes) -> Answer:
        try:
            return msgspec.json.decode(value, type=Answer)
        except msgspec.MsgspecError as error:
            told = f"{self._cache} holds an entry that is not an answer; name another file for the cache"
            raise DataError(told) from error

    def _make_up(self, question: Question) -> Answer:
        """An answer without asking, with what a real one would take added to the counters."""
        prompt, completion = question.tokens
        self._counts.calls += 1
        self._counts.prompt_tokens += prompt
        self._counts.completion_tokens += completion
        self._bill(prompt, completion)
        return self._made_up.setdefault(
            question.key, Answer(1.0, True, "", (True,) * len(question.members))
        )

    async def _answer(self, question: Question, on_retry: Callable[[], object]) -> Answer:
        """The answer, which the cache keeps. Raises `Unanswered` without one, `JudgeError` when asking is pointless."""
        ask = partial(self._ask, question, on_retry)
        if self._cache is None:
            return await ask()
        answer, was_there = await self._cache.get_or_compute(question.key, ask, self._decode)
        self._counts.hits += was_there
        return answer

    async def _ask(self, question: Question, on_retry: Callable[[], object]) -> Answer:
        if self.max_cost is not None and self._counts.cost >= self.max_cost:
            raise JudgeError(
                f"not asked: the answers have cost {self._counts.cost:.4f} of at most {self.max_cost:g}"
            )
        try:
            return read(question, await self._reply(question, question.body, on_retry))
        except Unreadable:
            if question.members:
                raise
        # a second time with another seed: with temperature 0, the same one would give the same unreadable reply
        seed = question.body.get("seed")
        again = question.body if seed is None else {**question.body, "seed": seed + 1}
        return read(question, await self._reply(question, again, on_retry))

    async def _reply(
        self, question: Question, body: dict[str, Any], on_retry: Callable[[], object]
    ) -> Reply:
        """The reply in the strictest form that the server takes."""
        while True:
            form = self._ladder.current if question.one_label else Form()
            asked = {**body, **form.body}
            try:
                reply = await self._llm.chat(question.messages, asked, on_retry=on_retry)
            except Unanswered as fault:
                if not (question.one_label and self._ladder.step_down(form, fault)):
                    raise
            else:
                self._ladder.settled |= question.one_label and form == self._ladder.current
                self._bill(reply.prompt_tokens, reply.completion_tokens)
                return reply

    def _bill(self, prompt: int, completion: int) -> None:
        prices = self.prices or (0.0, 0.0)
        self._counts.cost += (prompt * prices[0] + completion * prices[1]) / 1e6


class _Batch:
    """One call's questions and the answers found so far, by key.

    `open` are to be asked, those for one label first; `pointless` is why the remaining ones are not asked.
    """

    def __init__(
        self, judge: EndpointJudge, questions: Sequence[Question], groups: Sequence[Question]
    ) -> None:
        self._judge, self._pairs = judge, Counter(question.key for question in questions)
        self.found: dict[str, Answer] = {}
        self.open: list[Question] = []
        self.pointless: JudgeError | None = None
        wanted = {question.key: question for question in questions}
        kept = (
            judge._cache.get_many([*wanted, *(group.key for group in groups)])
            if judge._cache
            else {}
        )
        known = judge._made_up | {key: judge._decode(value) for key, value in kept.items()}
        for group in groups:
            # a group whose members were all answered one by one, by an earlier run, is not asked again
            members = {member.key for member in group.members}
            if group.key in known or not members <= known.keys():
                wanted[group.key] = group
                for key in members:
                    wanted.pop(key, None)
        for question in wanted.values():
            if question.key in known:
                self._settle(question, known[question.key])
                judge._counts.hits += 1
            elif judge.dry:
                self._settle(question, judge._make_up(question))
            else:
                self.open.append(question)

    async def ask(self) -> None:
        """Ask what is open. An interruption ends the waiting, not the requests: what is paid for is kept."""
        try:
            self._judge._llm.new_batch()
        except JudgeError as error:
            self.pointless = error
        self._work = asyncio.ensure_future(self._ask_each(self.open))
        try:
            await asyncio.shield(self._work)
        except asyncio.CancelledError:
            self.pointless = JudgeError("interrupted")
            raise

    async def finish(self) -> None:
        """After an interruption: wait for the answers that are under way."""
        if not self._work.done():
            _log.warning("waiting for the answers that are under way; Ctrl-C again leaves them")
            await asyncio.wait([self._work], timeout=self._judge.timeout)

    async def _ask_each(self, questions: Sequence[Question]) -> None:
        """The first question finds out what the server accepts; the others wait for it unless it has to be retried."""
        judge, first, learnt = self._judge, questions[0], asyncio.Event()
        if self.pointless or (
            judge._ladder.settled if first.one_label else judge._llm.has_answered
        ):
            learnt.set()

        async def ask(question: Question) -> None:
            if question is not first:
                await learnt.wait()
            try:
                await self._ask_one(question, learnt.set)
            finally:
                learnt.set()

        await map_concurrently(ask, questions, judge.concurrency)

    async def _ask_one(self, question: Question, on_retry: Callable[[], object]) -> None:
        try:
            if self.pointless is None:
                return self._settle(question, await self._judge._answer(question, on_retry))
            failure: Exception = self.pointless
        except Unanswered as fault:
            # several claims at once may be too long, or too much for a small model to keep apart
            if question.members and not fault.passing:
                return await self._ask_each(question.members)
            failure = fault
        except JudgeError as error:
            failure = self.pointless = error
        self._judge._counts.failures += 1
        self._settle(question, Answer(missing=str(failure)))

    def _settle(self, question: Question, answer: Answer) -> None:
        """Note an answer, of a group for each of its members."""
        if question.members:
            labels = [Answer(float(label), label, together=True) for label in answer.labels or ()]
            for member, own in zip(
                question.members, labels or [answer] * len(question.members), strict=True
            ):
                self._settle(member, own)
            return
        self.found[question.key] = answer
        if self._judge.on_progress is not None:
            self._judge.on_progress(self._pairs[question.key])
