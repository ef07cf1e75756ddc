"""Compare what rewards of the literature pay two habits of one policy: answering before it has
read, and reading first. The habit that is paid more is the one that training begins by
strengthening.

    python scripts/own_rollouts.py                  # a table in Markdown, some minutes on one core
    python scripts/own_rollouts.py --questions 10

The policy is `tiny_memory`, whose two habits both occur in most groups of rollouts on a question.
Its rollouts are sampled as `recipes/pou.py` samples them, on questions that it remembers. A rollout
answers first if it states its answer before any evidence that holds it, or makes no call
(`answer_first`); otherwise it reads.

For each reward the table has the mean value of both habits; over all pairs of a rollout that
answers first and one of the same question that reads, the share in which the first is paid more,
and in which both are paid equally; and the mean advantage, by GRPO, of the rollouts that answer
first. Above 0, training strengthens them.
"""

import argparse
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch

from faithful_search.bundled import tiny_policy
from faithful_search.gauntlet import published
from faithful_search.inference.base import Generator, Sampling
from faithful_search.inference.loading import open_generator, seed_sampling
from faithful_search.measure.origins import Decorated
from faithful_search.rewards import Mix
from faithful_search.rollout import Engine
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.rollout.episode import Limits
from faithful_search.tasks import load_tasks
from faithful_search.training.advantages import group_relative
from faithful_search.trajectory import Trajectory

GROUP = 8  # rollouts of a question
ROUNDING = 1e-9
"""Values that differ by less are equal."""
LIMITS = Limits(turns=8, turn_tokens=96, total_tokens=1024)
KNOBS = {"proof_of_use": {"alpha": 0.5}, "proof_of_use_paper": {"alpha": 0.5}}
"""What a mix is made with, where it is not its defaults."""
HEADER = (
    "mix",
    "answering first",
    "reading",
    "first is paid more",
    "equally",
    "advantage of first",
)


def sampled(generator: Generator, questions: int) -> list[Trajectory]:
    """The policy's rollouts, those of a question next to each other."""
    tasks = load_tasks("world_remembered", "train", questions)
    samples = [task for task in tasks for _ in range(GROUP)]  # a task's next to each other
    with EnvironmentArguments(search_top_k=3).toolbox() as toolbox:
        engine = Engine(generator, toolbox, "pou", LIMITS, Sampling(), concurrency=128)
        return engine.run(samples)


def values_of(mix: Mix, rollouts: Sequence[Trajectory]) -> np.ndarray:
    """The mix's value of each rollout, NaN where it has none; of shape (rollouts,)."""
    scores = mix.score_batch(rollouts)
    return with_nan([score.value for score in scores])


def habits_of(rollouts: Sequence[Trajectory]) -> np.ndarray:
    """1 for a rollout that answers first, 0 for one that reads; NaN where that cannot be told."""
    reward = Decorated("answer_first")
    return with_nan([reward.score(rollout).value for rollout in rollouts])


def with_nan(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=np.float64)  # which makes NaN of `None`


def figures_of(values: np.ndarray, habits: np.ndarray) -> list[float]:
    """The row of a mix in the table, from its values and the habits of the same rollouts."""
    answers_first = habits == 1
    reads = habits == 0
    advantages = group_relative(torch.tensor(values), GROUP).numpy()
    differences: list[float] = []
    for start in range(0, len(values), GROUP):
        group = slice(start, start + GROUP)
        of_first = values[group][answers_first[group]]
        of_readers = values[group][reads[group]]
        differences += [first - reader for first, reader in product(of_first, of_readers)]
    return [
        float(np.nanmean(values[answers_first])),
        float(np.nanmean(values[reads])),
        float(np.mean(np.array(differences) > ROUNDING)),
        float(np.mean(np.abs(differences) <= ROUNDING)),
        float(advantages[answers_first].mean()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=40, help="number of questions")
    options = parser.parse_args()
    seed_sampling(0)
    generator = open_generator(str(tiny_policy("memory")))
    rollouts = sampled(generator, options.questions)
    habits = habits_of(rollouts)
    print("|", " | ".join(HEADER), "|")
    print("|" + "---|" * len(HEADER))
    for name in published.names():
        mix = published.load(name)(**KNOBS.get(name, {})).bind(policy=generator)
        *figures, advantage = figures_of(values_of(mix, rollouts), habits)
        cells = [f"{figure:.2f}" for figure in figures]
        print(f"| `{name}` |", " | ".join(cells), f"| {advantage:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
