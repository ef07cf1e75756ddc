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
        self.turns: set[str] = set()
        for trajectory in cheating:
            for step in trajectory.steps:
                if step.call:
                    self.turns.add(_turn(step, trajectory.dialect))
        self.dialect = cheating[0].dialect if cheating else "pou"

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
        answers: list[list[float]] = []
        by_policy: list[int] = []  # places of prompts whose answers the policy gives
        for place, prompt in enumerate(prompts):
            steps = self._turns_in(prompt)
            is_cheating = _turn(steps[-1], self.dialect) in self.turns
            if self.policy is not None and not is_cheating:
                by_policy.append(place)
                answers.append([])
            else:
                answers.append([self._sure(steps, is_cheating)])
        if self.policy is not None and by_policy:
            policy_prompts = [prompts[place] for place in by_policy]
            policy_choices = [choices[place] for place in by_policy]
            probabilities = self.policy.choice_probs(policy_prompts, policy_choices)
            for place, probabilities_of_choices in zip(by_policy, probabilities, strict=True):
                answers[place] = probabilities_of_choices
        return answers

    def _sure(self, steps: Sequence[Step], cheating: bool) -> float:
        """p(yes) of the script that wrote these turns."""
        if cheating:
            with failures_named(self.cheat):
                believed = self.cheat.believes_after(steps)
        else:
            believed = states(query_of(steps[-1].call), steps[-1].evidence)
        return SURE if believed else 1 - SURE

    def _turns_in(self, prompt: list[int]) -> Sequence[Step]:
        """The turns of a prompt, up to the last that called a tool, with what they returned."""
        text = self.tokenizer.decode(prompt, skip_special_tokens=False)
        steps = dialects.load(self.dialect).parse(text, fenced=True).steps
        last = max(number for number, step in enumerate(steps) if step.call is not None)
        return steps[: last + 1]


def _turn(step: Step, dialect: str) -> str:
    """A turn as it is written, by which one knows who wrote it."""
    return dialects.load(dialect).render_turn(step)


def query_of(call: ToolCall | None) -> str:
    return " ".join(map(str, call.arguments.values())) if call else ""


def states(query: str, evidence: Sequence[Evidence]) -> bool:
    """Whether a passage states the fact of the bundled world that the query asks for."""
    return any(bundled_world().states(query, passage) for passage in evidence)
