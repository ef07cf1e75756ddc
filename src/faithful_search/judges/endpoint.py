"""The judge behind an OpenAI-compatible endpoint: a served model reads a prompt and answers 1 or
0.
"""

import asyncio
import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from ..dialects.fence import Fence
from ..errors import ConfigError, DataError, JudgeError
from ..text import sentences
from ..wire.background import Background, map_concurrently
from ..wire.cache import Cache, key_of
from ..wire.llm import LLM, ChatReply, Endpoint, Stats, Unanswered, Unreadable, with_key
from . import control_tokens
from .base import Judge, Pair, Request, Verdict, Writer
from .labels import JudgeAnswer, Ladder, Question, ReplyForm, read
from .prompting import OURS, Prompt, fields_of, load, named

_log = logging.getLogger(__name__)
MANY_CLAIMS_PROMPT = "support_many"
"""The prompt about several claims on the same evidence."""
MOST_CLAIMS = 20
"""The most claims of one request: the more there are, the easier a model loses count."""
_TOKENS_PER_CLAIM = 8
"""A line with a claim's number and its label has no more tokens."""
_SHARED = (
    "url",
    "model",
    "timeout",
    "patience",
    "retries",
    "backoff",
    "concurrency",
    "give_up_after",
)
"""The settings that the judge hands to its `Endpoint`."""


@dataclass(frozen=True)
class EndpointJudge(Judge, Writer):
    """Asks a served model; judges pairs and writes texts.

    p is p₁ / (p₁ + p₀) at the label's token where the server gives log-probs, else 1 or 0. The
    first question finds out whether the server accepts log-probs and constrained output (a choice
    of the two labels). A pair without an answer gets a verdict that abstains and says why; it is
    asked about again next time. Answers go to the cache as they come. Ctrl-C waits for the requests
    under way, a second one leaves them. Identical pairs are asked about once. The judge may be
    called from threads and inside a running event loop, which it blocks. A pickle carries the
    settings.

    The key is read from the environment when it is needed and kept nowhere else:
    `FAITHFUL_SEARCH_API_KEY`, else the Hub's token for Hugging Face hosts alone, else
    `OPENAI_API_KEY`.

    Args:
        model: the served model's name.
        url: the server's base URL, usually ending in `/v1`; without one, Hugging Face Inference
            Providers.
        concurrency: requests under way at once.
        timeout: seconds for one request, its whole answer included.
        patience: seconds for one question, its retries included.
        retries: further tries of a question after transient failures.
        backoff: seconds before the first retry, doubled each time.
        give_up_after: questions in a row without any answer, after which no more are asked.
        cache: the file that keeps answers; "auto" is `judgements.sqlite` in the Hub's assets
            folder, None keeps nothing. Answers are found again by model, prompt and parameters,
            wherever the model is served.
        together: ask about several claims on the same evidence (`Pair.task` "support"; 20 claims at
            most) in one request, by a prompt of its own, which `Verdict.judge` names. Their p is 1
            or 0, no probability, and what is said of one claim may depend on the others. Where a
            reply is not one label for each claim, each is asked by itself.
        temperature: the sampling temperature; None leaves it out of the request.
        seed: the seed of the sampling; None leaves it out of the request.
        max_tokens: the most tokens of a reply with one label; each further claim of a request adds
            8. A model that reasons first needs more than the default. None leaves the limit out.
        write_tokens: the most tokens of a text that is written; `max_tokens` counts instead where
            it is more, or None.
        extra_body: further parameters of the request.
        prompts: "ours", or "paper" for those that VERITAS prints, of "info_think" and
            "think_search".
        tokenizer: the tokenizer of the served model, a Hub id or a directory; its control tokens
            are escaped in texts. Without one the server is asked for them, and everything of their
            form is escaped.
        prices: the prices of a million prompt tokens and of a million completion tokens, for
            `stats.cost`.
        max_cost: the most to spend, in the currency of `prices`. Pairs without an answer by then
            abstain; requests under way are still paid.
        dry: ask nothing: `stats` count what would be asked and about as many tokens, and every
            verdict is a yes.
        on_progress: called with the number of pairs finished since its last call, on another
            thread; not pickled.

    Raises:
        ConfigError: for settings that cannot work.
        JudgeError: by `judge_batch` and `write_batch`, when asking is pointless: a wrong key, an
            unknown model.
        DataError: by both, when the cache's file cannot be used.

    How it can be gamed: text that argues with the judge. Untrusted text is fenced (see
    `Prompt.fill`) and control tokens in it are escaped (see `control_tokens`), which stops it from
    ending its block or our turn, not from being persuasive.
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
    prompts: str = OURS
    tokenizer: str | None = None
    prices: tuple[float, float] | None = None
    max_cost: float | None = None
    dry: bool = False
    on_progress: Callable[[int], object] | None = field(default=None, repr=False, compare=False)
    # Runtime state (connections, counters, what is known of the server) is no setting: it is
    # neither shown, compared, copied nor pickled.
    _endpoint: Endpoint = field(init=False, repr=False, compare=False)
    _counts: Stats = field(default_factory=Stats, init=False, repr=False, compare=False)
    _ladder: Ladder = field(default_factory=Ladder, init=False, repr=False, compare=False)
    # the answers of a dry run, by the question's key
    _made_up: dict[str, JudgeAnswer] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # 4 threads suffice: only the cache blocks this loop, and its accesses take turns.
    _background: Background = field(
        default_factory=lambda: Background(threads=4), init=False, repr=False, compare=False
    )

    needs_model: ClassVar[bool] = True
    # the settings that `--judge_…` flags set, see `Judge.flags`
    flags: ClassVar[tuple[str, ...]] = (
        "url",
        "concurrency",
        "timeout",
        "cache",
        "max_tokens",
        "together",
        "prompts",
        "prices",
        "max_cost",
        "tokenizer",
    )

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.prices is None:
            raise ConfigError(
                "max_cost needs prices: without them it is not known what the answers cost"
            )
        # A negative price or NaN would never let the cost reach `max_cost`.
        if not all(0 <= price < math.inf for price in self.prices or ()):
            raise ConfigError(f"prices must be numbers of at least 0, got {self.prices}")
        settings = {name: getattr(self, name) for name in _SHARED}
        object.__setattr__(self, "_endpoint", Endpoint(**settings))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings alone, without `on_progress` and runtime state."""
        names = [setting.name for setting in fields(self) if setting.init]
        settings = {name: getattr(self, name) for name in names}
        settings["on_progress"] = None
        return partial(type(self), **settings), ()

    @property
    def name(self) -> str:
        return f"endpoint:{self.model}"

    @property
    def stats(self) -> Stats:
        """What this judge has asked so far; a copy."""
        return replace(self._counts, notes=dict(self._counts.notes))

    @property
    def writing(self) -> Mapping[str, Any]:
        """The settings that a text depends on, see `Writer.writing`."""
        return {
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "write_tokens": self.write_tokens,
            "extra_body": self.extra_body,
        }

    def reporting(self, on_progress: Callable[[int], object]) -> Self:
        """A judge with these settings and counters of its own that reports its progress."""
        return replace(self, on_progress=on_progress)

    @cached_property
    def _cache(self) -> Cache | None:
        if self.cache is None:
            return None
        if self.cache != "auto":
            return Cache(self.cache)
        from huggingface_hub import cached_assets_path

        folder = cached_assets_path("faithful_search", namespace="judges")
        return Cache(folder / "judgements.sqlite")

    @cached_property
    def _fence(self) -> Fence:
        # The server is asked for its control tokens when a text first needs them, and never in a
        # dry run.
        if self.tokenizer is not None:
            return control_tokens.of_tokenizer(self.tokenizer)
        if self.url is None or self.dry:
            return control_tokens.GENERAL
        try:
            key = with_key(self._endpoint).key
        except JudgeError:  # a missing key is reported when the first question is asked
            key = None
        return control_tokens.of_server(self.url, key)

    def _fenced(self, text: str) -> str:
        """The text without anything that the served model reads as a control token."""
        escaped = control_tokens.GENERAL.escape(text)
        # Most texts hold nothing else, so that neither a tokenizer nor the server is needed.
        if self.tokenizer is None and not control_tokens.may_hold_other_control_tokens(escaped):
            return escaped
        return self._fence.escape(text)

    @cached_property
    def _llm(self) -> LLM:
        # made for the first question that is not cached: only then is a key needed
        return LLM(with_key(self._endpoint), self._counts)

    @contextmanager
    def keeping(self, path: Path) -> Iterator[None]:
        """Keep answers in this file where there is no cache; it is removed when all questions were
        answered.
        """
        if self._cache is not None or self.dry:
            yield
            return
        failures_before = self._counts.failures
        self.__dict__["_cache"] = Cache(path)
        try:
            yield
        finally:
            self.__dict__.pop("_cache").close()
        if self._counts.failures == failures_before:
            for ending in ("", "-wal", "-shm"):
                path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the connections, the background thread and the cache's file; the next batch opens
        them again.
        """
        self._background.stop()
        self.__dict__.pop("_llm", None)
        # An open cache is in `__dict__`: `self._cache` would open one in order to close it.
        cache = self.__dict__.get("_cache")
        if cache is not None:
            cache.close()

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        prompts: dict[Pair, Prompt] = {}
        questions: dict[Pair, Question] = {}
        for pair in dict.fromkeys(pairs):
            prompts[pair] = load(named(pair.task, self.prompts))
            questions[pair] = self._question(prompts[pair], fields_of(pair))
        groups = self._groups(questions) if self.together else []
        answers = self._answers([questions[pair] for pair in pairs], groups)
        verdicts = []
        for pair, answer in zip(pairs, answers, strict=True):
            prompt = load(MANY_CLAIMS_PROMPT) if answer.together else prompts[pair]
            judged_by = f"{self.name} {prompt.id}"
            verdicts.append(Verdict(answer.p, answer.label, answer.missing, judged_by))
        return verdicts

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        questions = [
            self._question(load(request.prompt), request.fields, writes=True)
            for request in requests
        ]
        answers = self._answers(questions)
        if not self.dry:
            return [answer.text for answer in answers]
        # An estimate goes on to judge claims: each sentence of the answer stands for one.
        texts: list[str | None] = []
        for request in requests:
            claims = sentences(request.fields.get("answer", ""))
            texts.append("\n".join(claims) or None)
        return texts

    def _groups(self, questions: Mapping[Pair, Question]) -> list[Question]:
        """Questions about several claims on the same evidence; more than `MOST_CLAIMS` are cut
        into equal parts.
        """
        by_evidence: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
        for pair in questions:
            if pair.task == "support":
                by_evidence[pair.premise, pair.question].append(pair)
        groups = []
        for pairs in by_evidence.values():
            if len(pairs) == 1:
                continue
            parts = math.ceil(len(pairs) / MOST_CLAIMS)
            size = math.ceil(len(pairs) / parts)
            for start in range(0, len(pairs), size):
                part = pairs[start : start + size]
                members = tuple(questions[pair] for pair in part)
                prompt = load(MANY_CLAIMS_PROMPT)
                groups.append(self._question(prompt, _claims_of(part), members=members))
        return groups

    def _question(
        self,
        prompt: Prompt,
        texts: Mapping[str, str],
        writes: bool = False,
        members: tuple[Question, ...] = (),
    ) -> Question:
        """The request for a label, a text (`writes`) or the labels of `members`, with the prompt
        filled with these texts.
        """
        messages = prompt.fill({name: self._fenced(text) for name, text in texts.items()})
        sampling = {
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self._most_tokens(writes, len(members)),
        }
        body = {name: value for name, value in sampling.items() if value is not None}
        body.update(self.extra_body)
        key = key_of(
            model=self.model,
            prompt=[prompt.id, prompt.digest],
            messages=messages,
            parameters=body,
            # "auto": a single label is asked for with constrained output where the server can
            constrained="none" if writes or members else "auto",
        )
        return Question(key=key, messages=messages, body=body, writes=writes, members=members)

    def _most_tokens(self, writes: bool, claims: int) -> int | None:
        """The largest number of tokens of a text, or of labels; `None` sets no limit."""
        if self.max_tokens is None:
            return None
        limit = self.max_tokens + _TOKENS_PER_CLAIM * claims
        if not writes:
            return limit
        # A model that reasons before a label reasons before a text, too.
        return None if self.write_tokens is None else max(self.write_tokens, limit)

    def _answers(
        self, questions: Sequence[Question], groups: Sequence[Question] = ()
    ) -> list[JudgeAnswer]:
        """The answers in order. A group is asked in place of its members, which are among the
        questions; where that gives no answer, because of its length or its reply, each member is
        asked by itself.
        """
        batch = _Batch(self, questions, groups)
        try:
            if batch.open:
                self._background.run(batch.ask())
        except KeyboardInterrupt:
            self._background.run(batch.finish())
            raise
        except TimeoutError as error:
            raise JudgeError(f"the judge's background thread hangs: {error}") from error
        if batch.stopped_by and all(answer.missing for answer in batch.answers.values()):
            raise batch.stopped_by
        return [batch.answers[question.key] for question in questions]

    def _decode(self, value: bytes) -> JudgeAnswer:
        try:
            return msgspec.json.decode(value, type=JudgeAnswer)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{self._cache} holds an entry that is not an answer; name another file for the "
                "cache"
            ) from error

    def _make_up(self, question: Question) -> JudgeAnswer:
        """A yes without asking; the counters get what a real answer would take."""
        prompt_tokens, completion_tokens = question.tokens
        self._counts.calls += 1
        self._counts.prompt_tokens += prompt_tokens
        self._counts.completion_tokens += completion_tokens
        self._bill(prompt_tokens, completion_tokens)
        answer = JudgeAnswer(p=1.0, label=True, text="", labels=(True,) * len(question.members))
        return self._made_up.setdefault(question.key, answer)

    async def _answer(self, question: Question, on_retry: Callable[[], object]) -> JudgeAnswer:
        """The answer, which the cache keeps. Raises `Unanswered` without one, `JudgeError` when
        asking is pointless.
        """
        ask = partial(self._ask, question, on_retry)
        if self._cache is None:
            return await ask()
        answer, was_cached = await self._cache.get_or_compute(question.key, ask, self._decode)
        self._counts.hits += was_cached
        return answer

    async def _ask(self, question: Question, on_retry: Callable[[], object]) -> JudgeAnswer:
        """The answer of the server; a label or text that cannot be read is asked for a second time,
        the labels of a group are not. Raises as `_answer`.
        """
        if self.max_cost is not None and self._counts.cost >= self.max_cost:
            raise JudgeError(
                f"not asked: the answers have cost {self._counts.cost:.4f} of at most "
                f"{self.max_cost:g}"
            )
        body = question.body
        try:
            reply = await self._reply(question, body, on_retry)
            return read(question, reply)
        except Unreadable:
            if question.members:
                raise  # `_Batch` asks about each member
        # With temperature 0 the same seed would give the same unreadable reply.
        if body.get("seed") is not None:
            body = {**body, "seed": body["seed"] + 1}
        reply = await self._reply(question, body, on_retry)
        return read(question, reply)

    async def _reply(
        self, question: Question, body: dict[str, Any], on_retry: Callable[[], object]
    ) -> ChatReply:
        """The reply in the strictest form that the server takes."""
        while True:
            form = self._ladder.current if question.one_label else ReplyForm()
            request = {**body, **form.body}
            try:
                reply = await self._llm.chat(question.messages, request, on_retry=on_retry)
            except Unanswered as fault:
                if not (question.one_label and self._ladder.step_down(form, fault)):
                    raise
            else:
                if question.one_label and form == self._ladder.current:
                    self._ladder.settled = True
                self._bill(reply.prompt_tokens, reply.completion_tokens)
                return reply

    def _bill(self, prompt_tokens: int, completion_tokens: int) -> None:
        prompt_price, completion_price = self.prices or (0.0, 0.0)
        cost = prompt_tokens * prompt_price + completion_tokens * completion_price
        self._counts.cost += cost / 1e6


def _claims_of(pairs: Sequence[Pair]) -> dict[str, str]:
    """The fields of `MANY_CLAIMS_PROMPT`, for pairs that share premise and question."""
    lines = []
    for number, pair in enumerate(pairs, start=1):
        # a claim is one line: its own line breaks could pose as the next claim
        claim = " ".join(pair.hypothesis.split())
        lines.append(f"{number}. {claim}")
    return {
        "premise": pairs[0].premise,
        "question": pairs[0].question,
        "claims": "\n".join(lines),
    }


class _Batch:
    """The questions of one call, and their answers as they come. A part of `EndpointJudge`, whose
    cache, counters and connections it uses.

    Attributes:
        answers: the answers there are, by their question's key.
        open: the questions to ask, those for one label first.
        stopped_by: the error after which no more questions are asked; `None` while there is none.
    """

    def __init__(
        self, judge: EndpointJudge, questions: Sequence[Question], groups: Sequence[Question]
    ) -> None:
        self._judge = judge
        # how many pairs wait for each question
        self._times_asked = Counter(question.key for question in questions)
        self.answers: dict[str, JudgeAnswer] = {}
        self.open: list[Question] = []
        self.stopped_by: JudgeError | None = None
        self._work: asyncio.Future[None] | None = None
        answered = self._answered_before([*questions, *groups])
        for question in _with_groups(questions, groups, answered):
            if question.key in answered:
                self._settle(question, answered[question.key])
                judge._counts.hits += 1
            elif judge.dry:
                self._settle(question, judge._make_up(question))
            else:
                self.open.append(question)

    def _answered_before(self, questions: Sequence[Question]) -> dict[str, JudgeAnswer]:
        """The answers that the cache holds, and those that were made up, by their question's
        key.
        """
        judge = self._judge
        answers = dict(judge._made_up)
        if judge._cache is not None:
            keys = list(dict.fromkeys(question.key for question in questions))
            for key, value in judge._cache.get_many(keys).items():
                answers[key] = judge._decode(value)
        return answers

    async def ask(self) -> None:
        """Ask what is open. An interruption ends the waiting, not the requests: answers that are
        paid for are kept.
        """
        try:
            self._judge._llm.new_batch()
        except JudgeError as error:
            self.stopped_by = error
        self._work = asyncio.ensure_future(self._ask_each(self.open))
        try:
            await asyncio.shield(self._work)
        except asyncio.CancelledError:
            self.stopped_by = JudgeError("interrupted")
            raise

    async def finish(self) -> None:
        """After an interruption: wait for the answers that are under way."""
        if self._work is not None and not self._work.done():
            _log.warning("waiting for the answers that are under way; Ctrl-C again leaves them")
            await asyncio.wait([self._work], timeout=self._judge.timeout)

    async def _ask_each(self, questions: Sequence[Question]) -> None:
        """Ask the questions, several at once. The first one finds out what the server accepts; the
        others wait for it, but not while it is retried.
        """
        judge = self._judge
        first = questions[0]
        server_is_known = asyncio.Event()
        is_known = judge._ladder.settled if first.one_label else judge._llm.has_answered
        if self.stopped_by is not None or is_known:
            server_is_known.set()

        async def ask(question: Question) -> None:
            if question is not first:
                await server_is_known.wait()
            try:
                await self._ask_one(question, server_is_known.set)
            finally:
                server_is_known.set()

        await map_concurrently(ask, questions, judge.concurrency)

    async def _ask_one(self, question: Question, on_retry: Callable[[], object]) -> None:
        if self.stopped_by is not None:
            self._fail(question, self.stopped_by)
            return
        try:
            answer = await self._judge._answer(question, on_retry)
        except Unanswered as fault:
            # several claims at once may be too long, or too much for a small model to keep apart
            if question.members and not fault.transient:
                # They wait for a first answer of their own; `LLM` limits the requests under way.
                await self._ask_each(question.members)
            else:
                self._fail(question, fault)
        except JudgeError as error:
            self.stopped_by = error
            self._fail(question, error)
        else:
            self._settle(question, answer)

    def _fail(self, question: Question, failure: Exception) -> None:
        self._judge._counts.failures += 1
        self._settle(question, JudgeAnswer(missing=str(failure)))

    def _settle(self, question: Question, answer: JudgeAnswer) -> None:
        """Note the answer to a question; that to a group goes to each of its members."""
        if not question.members:
            self.answers[question.key] = answer
            if self._judge.on_progress is not None:
                self._judge.on_progress(self._times_asked[question.key])
            return
        if not answer.labels:  # without an answer for all of them
            for member in question.members:
                self._settle(member, answer)
            return
        for member, label in zip(question.members, answer.labels, strict=True):
            self._settle(member, JudgeAnswer(p=float(label), label=label, together=True))


def _with_groups(
    questions: Sequence[Question], groups: Sequence[Question], answered: Collection[str]
) -> list[Question]:
    """The questions, each once, with groups in the place of their members.

    A group is left out when an earlier run has answered its members one by one.
    """
    by_key = {question.key: question for question in questions}
    for group in groups:
        members = {member.key for member in group.members}
        if group.key not in answered and all(key in answered for key in members):
            continue
        by_key[group.key] = group
        for key in members:
            by_key.pop(key, None)
    return list(by_key.values())
