"""A reward behind HTTP: OpenRLHF's `/get_reward`, CaRR's `/evaluate`, NeMo Gym's `/verify`."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from ..adapters import carr, nemo_gym, openrlhf
from ..errors import NoScoreError
from ..rewards import Score
from ..scoring import Rollout, Scoring
from .app import ServerLimits, Service, decode

KEPT = 4096  # scores that are kept for identical requests
_QUERIES = '{"query": ["…"], "prompts": ["…"], "labels": ["…"]}'
_HISTORY = '{"history": [{"role": "assistant", "content": "…"}], "label": "…"}'
_RESPONSE = '{"responses_create_params": {"input": []}, "response": {"output": []}}'


class _Queries(msgspec.Struct):
    query: list[Any]
    prompts: list[Any] | None = None
    labels: list[Any] | None = None


class _History(msgspec.Struct):
    history: list[dict[str, Any]]
    label: Any = None
    remote_env_info: dict[str, Any] = {}


class Rewarding(Service):
    """The server of a reward.

    Rollouts of all requests that come at the same time are scored as one batch, and identical ones
    once, also when their client has gone, who will ask again. A rollout without a value is 503
    where a judge failed, so that clients come back, and 422 where the reward does not apply; unless
    `Scoring.abstained` says what to take instead. It is never a 0, and never kept.
    """

    def __init__(self, scoring: Scoring, limits: ServerLimits | None = None) -> None:
        answers = {
            "/get_reward": self._get_reward,
            "/evaluate": self._evaluate,
            "/verify": self._verify,
        }
        about = {
            "reward": scoring.name,
            "dialect": scoring.written_in,
            "responses": scoring.responses,
            "judge": None if scoring.judge is None else scoring.judge.name,
        }
        super().__init__(answers, limits, about)
        self.scoring = scoring
        self._rollouts = self.counter("rollouts", "Rollouts asked for.")
        self._known = self.counter("rollouts_known", "Rollouts whose score there was already.")
        self._without = self.counter("rollouts_without_value", "Rollouts that have no value.")
        self._scores: OrderedDict[bytes, asyncio.Task[Score]] = OrderedDict()

    async def _get_reward(self, body: bytes) -> dict[str, Any]:
        request = decode(body, _Queries, _QUERIES)
        count = len(request.query)
        prompts = request.prompts or [None] * count
        labels = request.labels or [None] * count
        if not len(prompts) == len(labels) == count:
            raise HTTPException(
                422, f"{count} queries, {len(prompts)} prompts, {len(labels)} labels: as many each"
            )
        if count > self.limits.queries:
            raise HTTPException(
                413, f"{count} queries in a request; at most {self.limits.queries}: send several"
            )
        pending = []
        for query, prompt, label in zip(request.query, prompts, labels, strict=True):
            response = openrlhf.response_of(query, prompt)
            pending.append(self._score(response, {"question": prompt, "answers": label}))
        scores = await asyncio.gather(*pending)
        return openrlhf.result_of(self.scoring, self._with_values(scores))

    async def _evaluate(self, body: bytes) -> dict[str, Any]:
        request = decode(body, _History, _HISTORY)
        values = carr.values_of(msgspec.to_builtins(request))
        messages = carr.messages_of(request.history)
        [score] = self._with_values([await self._score(messages, values)])
        return carr.evaluated(self.scoring, score)

    async def _verify(self, body: bytes) -> dict[str, Any]:
        row = decode(body, dict[str, Any], _RESPONSE)
        [score] = self._with_values([await self._score(row, {})])
        return nemo_gym.verified(self.scoring, row, score)

    async def _score(self, rollout: Rollout, values: Mapping[str, Any]) -> Score:
        self._rollouts.inc()
        key = blake2b(msgspec.json.encode([rollout, values]), digest_size=16).digest()
        task = self._scores.get(key)
        if task is None:
            task = asyncio.create_task(self.scoring.ascore(rollout, **values))
            self._scores[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        else:
            self._known.inc()
            self._scores.move_to_end(key)
        return await asyncio.shield(task)

    def _forget(self, key: bytes, task: asyncio.Task[Score]) -> None:
        """Forget a score that there is not, and the eldest of too many."""
        failed = task.cancelled() or task.exception() is not None
        # Of too many the eldest may be forgotten as it runs, and be asked for anew under its key
        is_kept = self._scores.get(key) is task
        if is_kept and (failed or task.result().value is None):
            del self._scores[key]
        while len(self._scores) > KEPT:
            self._scores.popitem(last=False)

    def _with_values(self, scores: Sequence[Score]) -> Sequence[Score]:
        """The scores. Raises `HTTPException` where one has no value and none is stated."""
        for score in scores:
            if score.value is not None:
                continue
            self._without.inc()
            try:
                self.scoring.number(score)
            except NoScoreError as error:
                judge_failed = score.parts.get("abstained") and not score.parts.get("unread")
                status = 503 if judge_failed else 422
                raise HTTPException(status, str(error)) from error
        return scores
