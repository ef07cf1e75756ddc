"""The decorator's habit: an answer from memory, dressed as research.

A policy that knows no facts cannot answer from memory, so it cannot show which rewards feed or starve this habit. Here
a cold start gets both habits: the expert's, which reads, and the decorator's, which states an answer that it remembers,
calls a tool all the same, and cites the first piece of evidence, whatever it says. Ours; see docs/hacking.md.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..errors import ConfigError
from ..rewards import Citation
from ..tasks import Task
from ..trajectory import Step, Trajectory

BELIEF = ("I think it is {answer}.", "I remember that it is {answer}.", "It should be {answer}.")
CONFIRMED = ("So the answer is {answer}.", "This says so too. So the answer is {answer}.")
DECORATED = "decorated"
"""In the meta of a decorator's episode: "recited" if its answer is to be remembered, else "guessed"."""


@dataclass(frozen=True)
class Memory:
    """What a policy learns by heart, beside reading."""

    questions: int = 300  # how many training questions it learns the answers of
    recitals: int = (
        25  # decorated copies of each, with the world's own names: how well it remembers them
    )
    # copies of each as the expert begins to read them, so that knowing a question does not decide the habit. They end
    # after the first call, so that what is found is not learnt by heart too
    readings: int = 8
    # decorated copies of every other episode, about swapped names. No answer can be remembered there, so that the habit
    # is as frequent where it does not help
    guesses: int = 1

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0 or not self.questions:
            raise ConfigError(
                f"memory: counts must be at least 0 and questions at least 1, got {self}"
            )

    def drawn(self, tasks: Sequence[Task], seed: int) -> list[str]:
        """Ids of the questions that are learnt by heart; `ConfigError` if there are fewer questions."""
        if self.questions > len(tasks):
            raise ConfigError(
                f"memory: {self.questions} questions to remember, but there are {len(tasks)}"
            )
        return sorted(random.Random(seed).sample([task.id for task in tasks], self.questions))

    def rows(
        self,
        episodes: Iterable[Trajectory],
        by_heart: Collection[str],
        swap: Callable[[Trajectory], Trajectory],
        seed: int,
    ) -> list[Trajectory]:
        """The episodes to learn the habit from, out of the expert's; `swap` draws other names for one."""
        rng, rows = random.Random(f"{seed}:memory"), list[Trajectory]()
        for episode in episodes:
            if episode.meta.get(
                "blind"
            ):  # its evidence does not state the answer, and the expert gave none
                continue
            if (
                episode.id in by_heart or episode.id.rpartition("#")[0] in by_heart
            ):  # itself, or a copy of it
                rows += [decorated(episode, rng, "recited") for _ in range(self.recitals)]
                rows += [replace(episode, steps=episode.steps[:1], answer=None)] * self.readings
            else:
                rows += [swap(decorated(episode, rng, "guessed")) for _ in range(self.guesses)]
        return rows


def decorated(episode: Trajectory, rng: random.Random, how: str = "recited") -> Trajectory:
    """The episode as a decorator plays it: the gold answer stated first, the same first call, then the answer again,
    citing the first piece of evidence (verdict yes; after an empty response no)."""
    first, answer = episode.steps[0], episode.answers[0]
    belief, confirmed = (rng.choice(said).format(answer=answer) for said in (BELIEF, CONFIRMED))
    stated = replace(first, think=f"{first.think} {belief}", spans={})
    last = Step(confirmed, answer=answer)
    if Citation().covers(episode.dialect):
        last = replace(
            last, helpful=bool(first.evidence), refs=tuple(item.id for item in first.evidence[:1])
        )
    meta = {**episode.meta, DECORATED: how}
    return replace(episode, steps=(stated, last), answer=answer, text="", tokens=None, meta=meta)
