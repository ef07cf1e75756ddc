"""A model writes expert episodes in bulk, with real tools: what Proof-of-Use (section 3.4) has a
strong model do for the cold start.

Episodes are kept as they end, each with the tools that its prompt described, so that
`filtering.read_written` reads the file as it is.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import dialects
from ..errors import ConfigError
from ..measure.evaluation import run_episodes
from ..rollout import Agent
from ..rollout.episode import OnEnd, OnStep, copies
from ..tasks import Task
from ..trajectory import Trajectory, read_jsonl
from .filtering import Schemas, fit_in, with_tools


@dataclass(frozen=True)
class Describing:
    """An agent whose episodes say which tools it had."""

    agent: Agent
    tools: Schemas

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """As `Agent.run`, with `meta["tools"]` in each episode."""

        def ended(episode: Trajectory) -> None:
            if on_end is not None:
                on_end(with_tools(episode, self.tools))

        episodes = self.agent.run(tasks, ended, on_step)
        return [with_tools(episode, self.tools) for episode in episodes]


def write_episodes(
    agent: Agent, tools: Schemas, tasks: Sequence[Task], file: Path
) -> list[Trajectory]:
    """The agent's episodes of the tasks. Those that the file holds are not run again.

    Args:
        agent: who writes.
        tools: the schemas of its tools.
        tasks: a task that is there n times gets n episodes.
        file: keeps the episodes as they end, but none that the agent's endpoint did not finish.

    Raises `DataError` where the file cannot be written or read.
    """
    return run_episodes(Describing(agent, tools), tasks, "writing", file, tokens=False)


def written_ids(tasks: Iterable[Task], file: Path) -> set[str]:
    """The ids of the tasks' episodes that the file holds already.

    Raises `ConfigError` for an episode with a task's id that is about another question.
    """
    if not file.exists():
        return set()
    questions = {id: task.question for task, id, _ in copies(tasks)}
    ids = set()
    # A line that cannot be read is reported by `write_episodes`, or is half of one, which it cuts
    for episode in read_jsonl(file, on_error=lambda number, error: None):
        if episode.id not in questions:
            continue
        if episode.question != questions[episode.id]:
            raise ConfigError(
                f"{file} holds an episode {episode.id!r} about another question "
                f"({episode.question!r}): give another --out, or --overwrite"
            )
        ids.add(episode.id)
    return ids


@dataclass(frozen=True)
class Fitness:
    """How many episodes are fit for the cold start, and why the others are not.

    Args:
        n: the number of episodes.
        reasons: the number of unfit episodes by reason; see `filtering`.
        examples: by reason, the id of the first such episode and what is wrong with it.
    """

    n: int
    reasons: Counter[str]
    examples: dict[str, str]

    @classmethod
    def of(
        cls, episodes: Iterable[Trajectory], dialect: str, min_steps: int, max_steps: int
    ) -> "Fitness":
        """Filter the episodes of `write_episodes` as the cold start will, except for their length
        in tokens.
        """
        n = 0
        reasons: Counter[str] = Counter()
        examples: dict[str, str] = {}
        loaded = dialects.load(dialect)
        for episode in episodes:
            n += 1
            tools = episode.meta["tools"]
            _, reason, why = fit_in(episode, tools, loaded, min_steps, max_steps)
            if reason is not None:
                reasons[reason] += 1
                examples.setdefault(reason, f"{episode.id}: {why}" if why else episode.id)
        return cls(n, reasons, examples)

    @property
    def fit(self) -> int:
        """The number of episodes that are fit."""
        return self.n - self.reasons.total()

    def lines(self) -> list[str]:
        """Lines to print."""
        lines = [f"{self.fit} of {self.n} episodes are fit for the cold start"]
        for reason, count in self.reasons.most_common():
            lines.append(f"  {count} {reason}, such as {self.examples[reason]}")
        return lines
