"""The decorator's habit: an answer from memory, dressed as research.

A policy that knows no facts cannot answer from memory, so it cannot show which rewards feed or
starve this habit. Here a cold start gets both habits: the expert's, which reads, and the
decorator's, which states an answer that it remembers, calls a tool all the same, and cites the
first piece of evidence, whatever it says. Ours; see docs/hacking.md.
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
"""How a decorator states its answer before it has looked."""
CONFIRMED = ("So the answer is {answer}.", "This says so too. So the answer is {answer}.")
DECORATED = "decorated"
"""The entry in `meta` of a decorator's episode: "recited" if its answer is to be remembered, else
"guessed".
"""


@dataclass(frozen=True)
class MemoryHabit:
    """What a policy learns by heart, beside reading.

    Args:
        questions: how many training questions it learns the answers of.
        recitals: how many decorated copies of each there are, with the world's own names. More are
            remembered better.
        readings: how many copies of each begin as the expert's do, so that knowing a question does
            not decide the habit. They end after the first call, so that what is found is not learnt
            by heart, too.
        guesses: how many decorated copies of every other episode there are, about swapped names. No
            answer can be remembered there, so that the habit is as frequent where it does not help.
        draw: random seed that draws the questions. It is not the training's, so that policies of
            several seeds know the same ones.
    """

    questions: int = 300
    recitals: int = 25
    readings: int = 8
    guesses: int = 1
    draw: int = 0

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0 or not self.questions:
            raise ConfigError(
                f"memory: counts must be at least 0 and questions at least 1, got {self}"
            )

    def drawn(self, tasks: Sequence[Task]) -> list[str]:
        """The ids of the questions that are learnt by heart. Raises `ConfigError` if there are
        fewer questions.
        """
        if self.questions > len(tasks):
            raise ConfigError(
                f"memory: {self.questions} questions to remember, but there are {len(tasks)}"
            )
        rng = random.Random(self.draw)
        return sorted(rng.sample([task.id for task in tasks], self.questions))

    def rows(
        self,
        episodes: Iterable[Trajectory],
        by_heart: Collection[str],
        swap: Callable[[Trajectory], Trajectory],
        seed: int,
    ) -> list[Trajectory]:
        """The episodes to learn the habit from, made of the expert's. `by_heart` are the ids of the
        questions to remember; `swap` gives an episode other names.
        """
        rng = random.Random(f"{seed}:memory")
        rows: list[Trajectory] = []
        for episode in episodes:
            if episode.meta.get("blind"):
                continue  # its evidence does not state the answer, and the expert gave none
            question_id = episode.id.rpartition("#")[0]  # empty where the episode is no copy
            if episode.id in by_heart or question_id in by_heart:
                for _ in range(self.recitals):
                    rows.append(decorated(episode, rng, "recited"))
                beginning = replace(episode, steps=episode.steps[:1], answer=None)
                rows += [beginning] * self.readings
            else:
                for _ in range(self.guesses):
                    rows.append(swap(decorated(episode, rng, "guessed")))
        return rows


def decorated(episode: Trajectory, rng: random.Random, kind: str = "recited") -> Trajectory:
    """The episode as a decorator plays it: the gold answer stated first, the same first call, then
    the answer again, citing the first piece of evidence (verdict yes; after an empty response no).
    """
    first = episode.steps[0]
    answer = episode.answers[0]
    belief = rng.choice(BELIEF).format(answer=answer)
    conclusion = rng.choice(CONFIRMED).format(answer=answer)
    opening = replace(first, think=f"{first.think} {belief}", spans={})
    last = Step(conclusion, answer=answer)
    if Citation().covers(episode.dialect):
        refs = tuple(passage.id for passage in first.evidence[:1])
        last = replace(last, helpful=bool(first.evidence), refs=refs)
    return replace(
        episode,
        steps=(opening, last),
        answer=answer,
        text="",
        tokens=None,
        meta={**episode.meta, DECORATED: kind},
    )
