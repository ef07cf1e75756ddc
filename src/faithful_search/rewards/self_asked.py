"""What rewards share that ask the policy itself: a chat of its own about a finished trajectory, and
a reply to read.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .. import dialects
from ..dialects.fence import Fence, tags
from ..inference.base import Generator, Sampling
from ..inference.chat import ChatFormat
from ..inference.fencing import guarded
from ..trajectory import Trajectory
from .base import PolicyReward, Score

NO_REFERENCE = Score(None, "no reference answer to compare with")
_AGENTS_TAG = re.compile(r"</?[a-z_]+>")


@dataclass(frozen=True)
class SelfAsked(PolicyReward):
    """The policy is asked about each trajectory that `settled` leaves open, and `read` makes a
    score of its reply.

    A batch is one call of the policy's `generate`, with the weights as they stand. A reply that
    cannot be read gives no verdict: the score has no value, and `parts["abstained"]` is True.
    `parts["reply"]` is the reply.

    Args:
        temperature: sampling temperature of the policy when it judges itself; 0 is greedy. The
            paper judges at 0.1.
        reply_tokens: how many tokens a reply may have.

    Raises:
        ConfigError: by `score_batch`, where a question does not fit into the policy's context.
    """

    temperature: float = 0.1
    reply_tokens: int = 256

    samples_policy: ClassVar[bool] = True
    instructions: ClassVar[str]  # the system message: how to judge, and how to reply
    opening: ClassVar[str]  # the user message's first line
    block: ClassVar[str]  # the tag around what the agent wrote, which nothing in there can close

    def bind(self, **resources: Any) -> Self:
        # A trainer that samples its policy elsewhere (vLLM) gives that as `sampler`.
        if "sampler" in resources:
            resources["policy"] = resources["sampler"]
        return super().bind(**resources)

    def settled(self, trajectory: Trajectory) -> Score | None:
        """The score where there is nothing to ask."""
        return None if trajectory.answers else NO_REFERENCE

    @abstractmethod
    def shown(self, trajectory: Trajectory, fence: Fence) -> str:
        """The block with what is judged; all that the agent wrote goes through the fence."""

    @abstractmethod
    def read(self, reply: str) -> float | None:
        """The value that a reply gives; `None` when it gives none."""

    def question(self, trajectory: Trajectory, fence: Fence) -> str:
        """The user message."""
        question = fence.escape(trajectory.question or "")
        reference = fence.escape(" | ".join(trajectory.answers))
        opening = f"{self.opening}\nQuestion: {question}\nReference answer: {reference}"
        return f"{opening}\n{self.shown(trajectory, fence)}"

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        policy = self.bound_policy  # refused without one, also when there is nothing to ask
        scores: dict[int, Score] = {}  # by row
        to_ask: dict[int, Trajectory] = {}  # by row
        for row, trajectory in enumerate(trajectories):
            settled = self.settled(trajectory)
            if settled is None:
                to_ask[row] = trajectory
            else:
                scores[row] = settled
        if to_ask:
            replies = self._replies(policy, list(to_ask.values()))
            for row, reply in zip(to_ask, replies, strict=True):
                scores[row] = self._score_of(reply)
        return [scores[row] for row in range(len(trajectories))]

    def _replies(self, policy: Generator, trajectories: Sequence[Trajectory]) -> list[str]:
        """What the policy says of each trajectory."""
        askers = {}
        stop: set[str] = set()
        for name in {trajectory.dialect for trajectory in trajectories}:
            chat = ChatFormat.of(policy.tokenizer, dialects.load(name or "self_eval"))
            askers[name] = self.asker(chat)
            stop.update(chat.stop)
        sampling = Sampling(self.temperature, max_new_tokens=self.reply_tokens, stop=tuple(stop))
        prompts = [askers[trajectory.dialect](trajectory) for trajectory in trajectories]
        completions = policy.generate(prompts, sampling)
        decode = policy.tokenizer.decode
        return [decode(completion.ids, skip_special_tokens=True) for completion in completions]

    def _score_of(self, reply: str) -> Score:
        """The score that a reply gives."""
        value = self.read(reply)
        if value is None:
            parts = {"abstained": True, "reply": reply}
            return Score(None, f"no verdict in the reply {reply[:200]!r}", parts)
        return Score(value, reply.strip(), {"reply": reply})

    def asker(self, chat: ChatFormat) -> Callable[[Trajectory], list[int]]:
        """A function from a trajectory to the prompt's ids, which the policy continues with its
        reply.
        """
        guard = guarded(Fence(tags(self.block)), chat.tokenizer)
        added_tokens = chat.tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added_tokens if token.special}
        # The agent's own tags stay as they are, also where a tokenizer has them as tokens.
        control_tokens = []
        for token in guard.tokens:
            if token in special or not _AGENTS_TAG.fullmatch(token):
                control_tokens.append(token)
        fence = Fence(guard.pattern, tuple(control_tokens), guard.fold)

        def ask(trajectory: Trajectory) -> list[int]:
            system = {"role": "system", "content": self.instructions}
            user = {"role": "user", "content": self.question(trajectory, fence)}
            return chat.messages_ids([system, user])

        return ask
