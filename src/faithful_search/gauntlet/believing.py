"""What the honest reader and a cheat would say of evidence, where a reward asks the policy."""

from collections.abc import Sequence

from .. import dialects
from ..errors import ConfigError
from ..inference.base import Completion, Generator, Sampling
from ..trajectory import Evidence, Step, ToolCall, Trajectory
from ..world import bundled_world
from .characters import Characters
from .cheat import Cheat, failures_named

SURE = 0.98
"""p(yes) of a script that believes; of one that does not it is 1 - SURE."""


class Believers(Generator):
    """Answers the probes of rewards: what `cheat` believes about its own rollouts, and of others
    what `policy` says, or without one the facts of the bundled world.

    `choice_probs` takes prompts that end before a verdict, as `EvidenceSensitivity` asks.
    """

    def __init__(
        self,
        cheat: Cheat,
        cheating: Sequence[Trajectory],
        policy: Generator | None = None,
    ) -> None:
        self.cheat, self.policy = cheat, policy
        self.tokenizer = policy.tokenizer if policy else Characters()
        self.turns = {
            _turn(step, trajectory.dialect)
            for trajectory in cheating
            for step in trajectory.steps
            if step.call
        }
        self.dialect = next((trajectory.dialect for trajectory in cheating), "pou")

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        if self.policy is None:
            raise ConfigError("this reward lets the policy write: give one, --policy tiny")
        return self.policy.generate(prompts, sampling, max_new_tokens)

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        steps = [self._last(prompt) for prompt in prompts]
        cheats = [_turn(step, self.dialect) in self.turns for step in steps]
        answers: dict[int, list[float]] = {}
        honest = [number for number, cheating in enumerate(cheats) if not cheating]
        if self.policy is not None and honest:
            probabilities = self.policy.choice_probs(
                [prompts[number] for number in honest], [choices[number] for number in honest]
            )
            answers = dict(zip(honest, probabilities, strict=True))
        return [
            answers[number] if number in answers else [self._sure(step, cheats[number])]
            for number, step in enumerate(steps)
        ]

    def _sure(self, step: Step, cheating: bool) -> float:
        query = query_of(step.call)
        if cheating:
            with failures_named(self.cheat):
                believed = self.cheat.believes(query, step.evidence)
        else:
            believed = states(query, step.evidence)
        return SURE if believed else 1 - SURE

    def _last(self, prompt: list[int]) -> Step:
        """The last turn of a prompt that called a tool, with what it returned."""
        text = self.tokenizer.decode(prompt, skip_special_tokens=False)
        steps = dialects.load(self.dialect).parse(text, fenced=True).steps
        return next(step for step in reversed(steps) if step.call is not None)


def _turn(step: Step, dialect: str) -> str:
    """A turn as it is written, by which one knows who wrote it."""
    return dialects.load(dialect).render_turn(step)


def query_of(call: ToolCall | None) -> str:
    return " ".join(map(str, call.arguments.values())) if call else ""


def states(query: str, evidence: Sequence[Evidence]) -> bool:
    """Whether a passage states the fact of the bundled world that the query asks for."""
    return any(bundled_world().states(query, passage) for passage in evidence)
