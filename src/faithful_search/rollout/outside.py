"""Episodes that another loop ran, such as TRL's, read from their token ids as our engine would have
read them.

The loop decided what was sampled, which calls ran and when the episode ended. Reading is the
engine's: turns are parsed by the dialect, and only what the environment returned is evidence.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.base import Completion
from ..inference.chat import ChatFormat
from ..inference.tool_template import check_calls
from ..tasks import Task
from ..tools.base import Observation
from ..trajectory import Evidence, Step, Tokens, Trajectory
from .episode import Episode, Limits

NOT_RUN = "Error: the call could not be run."
"""The note of a call that the loop refused itself: its own words repeat the policy's."""


def check_outside(dialect: Dialect, limits: Limits) -> None:
    """Raise `ConfigError` for a dialect whose calls TRL's loop cannot run, and for limits that it
    cannot keep: it neither takes something out of a context nor writes for the agent.
    """
    check_calls(dialect)
    for name in ("kept_responses", "force_answer", "verify"):
        if getattr(limits, name):
            raise ConfigError(
                f"{name}: only our engine can do this, and TRL's loop makes the rollouts; leave it "
                "off, or let the engine make them (rollouts: engine)"
            )


class OutsideEpisode(Episode):
    """An episode of another loop.

    Example:
        ```python
        episode = OutsideEpisode(task, chat, limits, toolbox.schemas, eos_ids=[tokenizer.eos_token_id])
        trajectory = episode.read(tokens, responses, called=False)
        ```
    """

    def __init__(
        self,
        task: Task,
        chat: ChatFormat,
        limits: Limits,
        tools: list[dict[str, Any]],
        eos_ids: Collection[int] = (),
    ) -> None:
        super().__init__(task, chat, limits, tools)
        self.eos_ids = {*eos_ids, *chat.end_ids[-1:]}

    def read(
        self, tokens: Tokens, responses: Sequence[Sequence[Observation | None]], called: bool
    ) -> Trajectory:
        """The episode's trajectory, with these tokens.

        Args:
            tokens: with the places of turns, see `turns_of`.
            responses: what each turn's calls returned, for the turns that have a response; `None`
                for a call that the loop did not run.
            called: whether the loop found a call in the last turn.
        """
        self.prompt_ids = tokens.prompt_ids
        self.ids = tokens.completion_ids
        self.mask = tokens.mask
        self.logprobs = tokens.logprobs
        self.turns = list(tokens.turns)
        waiting = iter(responses)
        for start, middle, end in tokens.turns:
            sampled = tokens.completion_ids[start:middle]
            finish = "eos" if sampled[-1] in self.eos_ids else "length"
            step = self._parse(Completion(sampled, finish))
            if end > middle:
                step = self._answered(step, next(waiting))
            # `_parse` asks how many steps there are already.
            self.steps.append(step)
        self.stop_reason = self._reason(called)
        return self.trajectory()

    def _answered(self, step: Step, observations: Sequence[Observation | None]) -> Step:
        """The step with the response that the policy read."""
        evidence: list[Evidence] = []
        notes = []
        text = ""
        for observation in observations:
            if observation is None:
                observation = Observation(note=NOT_RUN)
            evidence += observation.evidence
            notes.append(observation.note)
            text += self.chat.render_observation(observation.evidence, observation.note)
        self._text.write(text)
        note = "\n".join(filter(None, notes))
        step = msgspec.structs.replace(step, evidence=tuple(evidence), note=note)
        return self._with_response(step, text)

    def _repaired(self, step: Step, text: str) -> Step:
        return step  # what the loop could not read it did not run

    def _reason(self, called: bool) -> str:
        """Why the loop ended it, in the engine's words (`END_REASONS`)."""
        _, middle, end = self.turns[-1]
        if self.steps[-1].answer is not None:
            return "answered"
        if end > middle:  # nothing could be sampled behind the last response
            return "token_limit"
        if len(self.turns) >= self.limits.turns:
            return "turn_limit"
        is_cut = self.ids[middle - 1] not in self.eos_ids
        if is_cut and len(self.ids) < self.limits.total_tokens:
            return "turn_token_limit"
        # the response to a call that was run did not fit
        return "token_limit" if is_cut or called else "no_action"


def turns_of(mask: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """The places of turns in a completion: where each begins, where what was sampled ends, and
    where its response ends.

    Example:
        >>> turns_of([1, 1, 0, 0, 0, 1])
        ((0, 2, 5), (5, 6, 6))
    """
    turns: list[tuple[int, int, int]] = []
    start = 0
    while start < len(mask):
        middle = _run_end(mask, start, 1)
        end = _run_end(mask, middle, 0)
        turns.append((start, middle, end))
        start = end
    return tuple(turns)


def _run_end(mask: Sequence[int], start: int, value: int) -> int:
    """Where the run of this value ends that begins at `start`."""
    while start < len(mask) and mask[start] == value:
        start += 1
    return start
