"""TRL: a reward of this package as a reward function of TRL's trainers.

Nothing that a policy wrote is evidence. In a rollout with a `SearchEnvironment` the evidence is
what the environment returned; in any other it is what TRL's messages of role `tool` hold.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from .. import dialects
from ..columns import answers as gold_answers
from ..dialects.base import Dialect
from ..errors import ConfigError, DataError
from ..formats.blocks import parts
from ..rewards import Mix, Reward, Score
from ..rewards.mix import INVALID
from ..rollout.environment import SearchEnvironment, inner_text, returned_observations
from ..scoring import Scoring, numeric_parts
from ..trajectory import Trajectory

FORGED = "response_forged"
_FAILED = "{'error': "
"""The beginning of TRL's tool message for a call that it could not run. The message repeats words
of the policy, so that it is no evidence.
"""
_log = logging.getLogger(__name__)
Message = Mapping[str, Any]


def trl_reward(
    reward: Reward | str = "pou", *, dialect: str = "pou", answers: str = "answers"
) -> "TRLReward":
    """A reward function for TRL's `GRPOTrainer`.

    Args:
        reward: "pou", "veritas", "pokee", "answer_only", or any reward or mix that does not ask the
            policy itself. "pou" is half citations, a quarter the answer and a quarter its support;
            it rewards only right answers that the cited evidence supports, and is -1 for an invalid
            format. It is not all of Proof-of-Use, see `Scoring`.
        dialect: how the policy writes. The prompt must ask for it, as `Dialect.prompt` does.
        answers: the column of the dataset that holds the gold answers.

    Raises:
        ConfigError: for an unknown name, and for what a reward function of TRL cannot give: the
            policy, or an alpha that adapts to the batch.
        DialectError: for an unknown dialect.

    Example:
        >>> chat = [{"role": "assistant", "content": "<think>I know.</think><answer>Rome</answer>"}]
        >>> # right, but it cites nothing
        >>> trl_reward("pou")(completions=[chat], answers=[["Rome"]])
        [0.0]
    """
    return TRLReward(Scoring(reward, dialect), answers)


def trl_reward_parts(
    reward: Mix | str = "pou", *, dialect: str = "pou", answers: str = "answers"
) -> "list[TRLRewardPart]":
    """As `trl_reward`, but with a function for each part of a mix, for
    `multi_objective_aggregation="normalize_then_sum"`.

    Each function returns what its part adds to the mix's value, weight and gate included: their sum
    is the value of `trl_reward`. The rollouts are scored once for all of them. If one part has no
    value, none has. Arguments and errors are those of `trl_reward`.

    Example:
        >>> [part.__name__ for part in trl_reward_parts("veritas")]
        ['veritas/exact_match', 'veritas/info_think', 'veritas/think_answer']
    """
    whole = trl_reward(reward, dialect=dialect, answers=answers)
    rule = whole.scoring.rule
    if not isinstance(rule, Mix):
        raise ConfigError(f"trl_reward_parts: {rule.name} has no parts; use trl_reward")
    return [TRLRewardPart(whole, name) for name in rule.parts]


@dataclass
class TRLReward:
    """What `trl_reward` returns: a callable that can be pickled.

    A completion is a list of messages, or a text. `None` and an empty one are rollouts without a
    turn. A text was written by the policy from end to end, so that nothing in it is evidence. The
    value is `None` where a judge abstained or the reward does not apply; TRL leaves such rows out.

    TRL's `log_metric` gets the mean of each part, and the share of completions in which the policy
    wrote a tool response itself; `log_extra` gets the reason of each value. After the first batch,
    warnings say what in its completions keeps the policy from learning, and what to do.
    """

    scoring: Scoring
    answers: str
    batches: int = field(default=0, init=False)
    _last: tuple[Any, list[Score]] | None = field(default=None, init=False, repr=False)

    @property
    def __name__(self) -> str:
        return self.scoring.name  # what TRL calls it in its logs

    @property
    def dialect(self) -> str:
        """The dialect that completions are read in."""
        return self.scoring.written_in or "pou"

    def __call__(self, completions: Sequence[Any], **batch: Any) -> list[float | None]:
        """The value of each completion. Raises `ConfigError` without the column of answers."""
        return [score.value for score in self.scores(completions, **batch)]

    def scores(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None = None,
        environments: Sequence[Any] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[Score]:
        """The score of each completion, with reason and parts. Raises `ConfigError` without the
        column of answers.
        """
        if self.answers not in columns:
            raise ConfigError(
                f"trl_reward: the dataset has no column {self.answers!r} with the gold answers; "
                f"it has: {', '.join(columns) or 'no other'}. Name it: trl_reward(…, answers=…)"
            )
        nothing = [None] * len(completions)
        rows = zip(
            completions,
            columns[self.answers],
            columns.get("question") or nothing,
            prompts or nothing,
            environments or nothing,
            strict=True,
        )
        dialect = self.dialect
        trajectories = []
        for completion, gold, question, prompt, environment in rows:
            question = question or asked_in(prompt, dialect)
            trajectory = read_completion(completion, dialect, question, environment)
            trajectories.append(msgspec.structs.replace(trajectory, answers=gold_answers(gold)))
        scores = self.scoring.score_trajectories(trajectories, _step_of(trainer_state))
        name = self.scoring.name
        if log_metric is not None:
            for part, value in _means(scores, trajectories).items():
                log_metric(f"{name}/{part}", value)
        if log_extra is not None:
            log_extra(f"{name}/why", [score.why for score in scores])
        if self.batches == 0:
            self._warn(completions, trajectories, scores)
        self.batches += 1
        return scores

    def scores_once(self, completions: Sequence[Any], **batch: Any) -> list[Score]:
        """`scores`, computed once for one list of completions: TRL gives the functions of all parts
        the same list.
        """
        if self._last is None or self._last[0] is not completions:
            self._last = completions, self.scores(completions, **batch)
        return self._last[1]

    def _warn(
        self,
        completions: Sequence[Any],
        trajectories: Sequence[Trajectory],
        scores: Sequence[Score],
    ) -> None:
        count = len(scores)
        texts = sum(isinstance(completion, str) and completion != "" for completion in completions)
        forged = sum(map(_forged, trajectories))
        if texts:
            _log.warning(
                "trl_reward: %d of %d completions of the first batch are texts. Whatever stands in "
                "a text the policy may have written itself, so that it holds no evidence. Let the "
                "prompts be chat messages, and give the trainer environment_factory or tools.",
                texts,
                count,
            )
        if forged:
            _log.warning(
                "trl_reward: in %d of %d completions of the first batch the policy wrote a tool "
                "response itself; it is no evidence.",
                forged,
                count,
            )
        if count and all(score.value == INVALID for score in scores):
            _log.warning(
                "trl_reward: all %d rewards of the first batch are -1 (the first: %s). Does the "
                "prompt ask for the format? faithful_search.dialects.load(%r).prompt(question, "
                "toolbox.schemas) writes one that does. A model that never keeps to it needs a "
                "cold start first, see recipes/sft.py.",
                count,
                scores[0].why,
                self.dialect,
            )


@dataclass
class TRLRewardPart:
    """The reward function of one part, as `trl_reward_parts` returns it. The functions of all parts
    share `whole`, also after they were pickled together.
    """

    whole: TRLReward
    part: str

    @property
    def __name__(self) -> str:
        return f"{self.whole.scoring.name}/{self.part}"

    def __call__(
        self, completions: Sequence[Any], trainer_state: Any = None, **batch: Any
    ) -> list[float | None]:
        """What the part adds to the value of each completion."""
        scores = self.whole.scores_once(completions, trainer_state=trainer_state, **batch)
        mix = cast(Mix, self.whole.scoring.rule)
        equal = dict.fromkeys(mix.parts, 1 / len(mix.parts))
        weight = (mix.weights or equal).get(self.part, 0.0)
        # The mix with the weight of this part alone: its value is the part's share of the sum
        alone = dataclasses.replace(mix, weights={self.part: weight})
        state = mix.state_at(_step_of(trainer_state))
        values: list[float | None] = []
        for score in scores:
            if score.value is None:
                values.append(None)
                continue
            if mix.gate is not None and score.parts[mix.gate.name] < 1.0:
                values.append(INVALID / len(mix.parts))  # all parts together pay it once
                continue
            components = {name: Score(score.parts[name]) for name in mix.component_names}
            values.append(alone.combine([components], state)[0].value)
        return values


def read_completion(
    completion: Any, dialect: str, question: str | None = None, environment: Any = None
) -> Trajectory:
    """The trajectory of one of TRL's completions, in which only the environment's responses are
    evidence.

    Args:
        completion: messages, a text, or nothing.
        dialect: how the policy writes.
        question: the question that the policy was asked.
        environment: that of the rollout, if it had one. Only a `SearchEnvironment` is used.

    Raises:
        DataError: when something in `completion` is not a message.
    """
    if not completion:
        return Trajectory(question=question, dialect=dialect)
    if isinstance(completion, str):
        return dialects.parse(completion, dialect, question, responses="messages")
    is_list = isinstance(completion, list | tuple)
    if not is_list or not all(isinstance(message, Mapping) for message in completion):
        raise DataError(
            "trl_reward: a completion is a text or a list of messages, such as "
            f'{{"role": "assistant", "content": "…"}}, not {str(completion)[:80]!r}'
        )
    if isinstance(environment, SearchEnvironment):
        messages = _as_returned(completion, environment, dialects.load(dialect))
        return dialects.parse(messages, dialect, question, fenced=True, responses="messages")
    messages = []
    for message in completion:
        messages.append({**message, "content": ""} if _is_failure(message) else message)
    return dialects.parse(messages, dialect, question, responses="messages")


def asked_in(prompt: Any, dialect: str) -> str | None:
    """The question in the last user message of a prompt; `None` where it has none."""
    messages = prompt if isinstance(prompt, list | tuple) else ()
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            # TRL gives a vision model's prompts as parts
            inner = parts(message.get("content"))
            content = "".join(part.value for part in inner if part.kind == "text")
            return dialects.load(dialect).question_in(content) if content else None
    return None


def _as_returned(
    completion: Sequence[Message], environment: SearchEnvironment, dialect: Dialect
) -> list[Message]:
    """The messages with the content of each tool message replaced by what the environment returned.
    Tool messages that TRL wrote itself, out of the policy's words, become empty.
    """
    tool_messages = [message for message in completion if message.get("role") == "tool"]
    contents = [str(message.get("content")) for message in tool_messages]
    observations = iter(returned_observations(environment, contents))
    messages: list[Message] = []
    for message in completion:
        if message.get("role") == "tool":
            observation = next(observations)
            content = ""
            if observation is not None:
                content = inner_text(observation, dialect, dialect.fence)
            message = {**message, "content": content}
        messages.append(message)
    return messages


def _step_of(trainer_state: Any) -> int:
    """The step of the optimizer that rollouts are for, which the warm-up of a mix goes by: counted
    from 1 in a training, and 0 outside of one.
    """
    finished_steps: int = getattr(trainer_state, "global_step", -1)
    return finished_steps + 1


def _is_failure(message: Message) -> bool:
    """Whether this is TRL's message about a call that it could not run."""
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, str):
        return False
    return content.startswith(_FAILED)


def _forged(trajectory: Trajectory) -> bool:
    """Whether the policy wrote a tool response itself."""
    return any(issue.kind == FORGED for issue in trajectory.all_issues())


def _means(scores: Sequence[Score], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each part over the rows that have it, and the share of rows with a forged
    response.
    """
    values: dict[str, list[float]] = {}
    for score in scores:
        for name, value in numeric_parts(score).items():
            values.setdefault(name, []).append(value)
    means = {name: sum(column) / len(column) for name, column in values.items()}
    if trajectories:
        means[FORGED] = sum(map(_forged, trajectories)) / len(trajectories)
    return means
