"""What rewards of the literature pay a policy's own rollouts that answer first, beside those that
read: the gradient that training begins with.

    python scripts/own_rollouts.py                  # a table in Markdown, some minutes on one core
    python scripts/own_rollouts.py --questions 10

The policy is `tiny_memory`, whose two habits occur in most groups. Its rollouts are sampled as
`recipes/pou.py` samples them, on questions that it remembers. A rollout answers first where it
states its answer before any evidence that holds it (`answer_first`); one without a call does
neither. The last column is the mean advantage, by GRPO, of the rollouts that answer first: above 0
training begins by strengthening them.
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
LIMITS = Limits(turns=8, turn_tokens=96, total_tokens=1024)
ASKS_POLICY = {"proof_of_use": {"alpha": 0.5}, "proof_of_use_paper": {"alpha": 0.5}}
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
    every = [task for task in tasks for _ in range(GROUP)]
    with EnvironmentArguments(search_top_k=3).toolbox() as toolbox:
        engine = Engine(generator, toolbox, "pou", LIMITS, Sampling(), concurrency=128)
        return engine.run(every)


def values_of(mix: Mix, rollouts: Sequence[Trajectory]) -> np.ndarray:
    """What the mix pays, NaN where it has no value."""
    scores = mix.score_batch(rollouts)
    return np.array([np.nan if score.value is None else score.value for score in scores])


def row_of(values: np.ndarray, first: np.ndarray) -> list[float]:
    """The figures of a mix; `first` is 1 where a rollout answers first, 0 where it reads."""
    advantages = group_relative(torch.tensor(values), GROUP).numpy()
    differences: list[float] = []
    for start in range(0, len(values), GROUP):
        group = slice(start, start + GROUP)
        answering = values[group][first[group] == 1]
        reading = values[group][first[group] == 0]
        differences += [paid - paid_reader for paid, paid_reader in product(answering, reading)]
    return [
        float(np.nanmean(values[first == 1])),
        float(np.nanmean(values[first == 0])),
        float(np.mean(np.array(differences) > ROUNDING)),
        float(np.mean(np.abs(differences) <= ROUNDING)),
        float(advantages[first == 1].mean()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=40)
    options = parser.parse_args()
    seed_sampling(0)
    generator = open_generator(str(tiny_policy("memory")))
    rollouts = sampled(generator, options.questions)
    habit = [Decorated("answer_first").score(rollout).value for rollout in rollouts]
    first = np.array([np.nan if value is None else value for value in habit])
    print("|", " | ".join(HEADER), "|")
    print("|" + "---|" * len(HEADER))
    for name in published.names():
        mix = published.load(name)(**ASKS_POLICY.get(name, {})).bind(policy=generator)
        figures = row_of(values_of(mix, rollouts), first)
        cells = [f"{figure:.2f}" for figure in figures[:-1]]
        print(f"| `{name}` |", " | ".join(cells), f"| {figures[-1]:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
