"""Measure how often the printed 95 % intervals hold the true value, in simulations where it is
known.

```
python scripts/interval_coverage.py --out outputs/coverage    # the table of docs/statistics.md
python scripts/interval_coverage.py --repeats 300 --only "mean over seeds"
```

In the simulation a value depends on its seed (how good the policy is), on its question (how
difficult it is for all policies) and on chance. Coverage is the share of the repeats whose interval
holds the mean over all possible seeds and questions. With 2,000 repeats it is exact to ± 0.01.
"""

import argparse
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
from tqdm.auto import tqdm

from faithful_search.measure.behaviour import POOLED_ENTROPY, normalized_entropy
from faithful_search.measure.evaluation import ENTROPY, Evaluation
from faithful_search.measure.seeds import (
    UNBOUNDED,
    Crossed,
    crossed,
    difference_of_tables,
    mean_of_sets,
)
from faithful_search.measure.sets import macro_mean
from faithful_search.measure.stats import (
    DRAWS,
    Estimate,
    Floats,
    difference_ci,
    mean_ci,
    percentile_interval,
    pooled_difference,
    pooled_estimate,
    resampled,
)
from faithful_search.measure.verdicts import AUROC, GAP, POOLED_VERDICTS, Seen, verdict_columns
from faithful_search.measure.writing import write_metrics

SHARED = 0.5
"""The part of the variance within a seed that comes from the questions."""
CONTINUOUS_DEVIATION = 0.3
"""The standard deviation of continuous values within a seed."""
LOWEST, HIGHEST = 0.001, 0.999
"""The lowest and the highest level that a seed can have."""
SETS = 4
"""The number of sets in a macro mean, each with as many questions."""
STRATA = ("local_search", "web_search")
MANY = 200_000
"""The number of questions of the sample from which a true value is computed."""
# The distribution function of the standard normal, at these quantiles
_QUANTILES = np.linspace(-6, 6, 2401)
_SHARES_BELOW = np.array([NormalDist().cdf(quantile) for quantile in _QUANTILES])

Rng = np.random.Generator
Verdicts = list[list[Seen]]


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        interval: the name of the interval, a key of `INTERVALS`.
        questions: the number of questions.
        level: the mean of the first side over all seeds and questions.
        later: the mean of the second side.
        deviation: the standard deviation of the seeds' levels.
        seeds: the number of runs of each side.
        binary: whether values are 0 or 1; else they are continuous.
    """

    interval: str
    questions: int
    level: float = 0.6
    later: float = 0.6
    deviation: float = 0.0
    seeds: int = 1
    binary: bool = True

    def __str__(self) -> str:
        values = "0 and 1" if self.binary else "continuous"
        return (
            f"{self.interval} | {self.seeds} | {self.deviation:g} | {values} | "
            f"{self.level:g} | {self.later:g} | {self.questions}"
        )


def levels(rng: Rng, level: float, deviation: float, seeds: int) -> Floats:
    """The level of each seed: the mean of its values; of shape (seeds,)."""
    return np.clip(rng.normal(level, deviation, seeds), LOWEST, HIGHEST)


@cache
def mean_level(level: float, deviation: float) -> float:
    """The mean of `levels` over all seeds. It is not `level`, since levels are cut at both ends."""
    if not deviation:
        return level
    return float(levels(np.random.default_rng(0), level, deviation, 2_000_000).mean())


def answers(rng: Rng, setting: Setting, later: bool, difficulty: Floats) -> Floats:
    """The values of one side on questions of these difficulties; of shape (seeds, questions)."""
    level = setting.later if later else setting.level
    level_of_seeds = levels(rng, level, setting.deviation, setting.seeds)
    chance = rng.normal(size=(setting.seeds, len(difficulty)))
    # Standard normal: how hard the question was for this run
    hardness = np.sqrt(SHARED) * difficulty + np.sqrt(1 - SHARED) * chance
    if setting.binary:
        # The quantile below which a share `level` of the hardnesses lies
        limits = np.interp(level_of_seeds, _SHARES_BELOW, _QUANTILES)
        return (hardness < limits[:, None]).astype(np.float64)
    return level_of_seeds[:, None] - CONTINUOUS_DEVIATION * hardness


def both_sides(rng: Rng, setting: Setting) -> tuple[Floats, Floats]:
    """The values of both sides on the same questions, each of shape (seeds, questions)."""
    sets = SETS if "macro" in setting.interval else 1
    difficulty = rng.normal(size=sets * setting.questions)
    first = answers(rng, setting, False, difficulty)
    second = answers(rng, setting, True, difficulty)
    return first, second


def table(values: Floats, binary: bool) -> Crossed:
    """Values of shape (seeds, questions) as `measure.seeds` takes them."""
    bounds = (0.0, 1.0) if binary else UNBOUNDED
    return Crossed(values, n=values.shape[1], shares=binary, bounds=bounds)


def mean_over_questions(rng: Rng, setting: Setting) -> Estimate:
    return mean_ci(both_sides(rng, setting)[0][0])


def paired_difference(rng: Rng, setting: Setting) -> Estimate:
    first, second = both_sides(rng, setting)
    return difference_ci(second[0] - first[0])


def mean_over_sets(rng: Rng, setting: Setting) -> Estimate:
    values = both_sides(rng, setting)[0][0]
    return over_sets([mean_ci(part) for part in np.array_split(values, SETS)])


def difference_over_sets(rng: Rng, setting: Setting) -> Estimate:
    first, second = both_sides(rng, setting)
    differences = second[0] - first[0]
    return over_sets([difference_ci(part) for part in np.array_split(differences, SETS)])


def over_sets(estimates: list[Estimate]) -> Estimate:
    """The macro mean of the sets' estimates."""
    return macro_mean({str(place): estimate for place, estimate in enumerate(estimates)})


def mean_over_seeds(rng: Rng, setting: Setting) -> Estimate:
    return mean_of_sets([table(both_sides(rng, setting)[0], setting.binary)])


def mean_over_seeds_and_sets(rng: Rng, setting: Setting) -> Estimate:
    parts = np.array_split(both_sides(rng, setting)[0], SETS, axis=1)
    return mean_of_sets([table(part, setting.binary) for part in parts])


def difference_over_seeds(rng: Rng, setting: Setting) -> Estimate:
    first, second = both_sides(rng, setting)
    return difference_of_tables(table(first, setting.binary), table(second, setting.binary))


def bootstrap_over_seeds(rng: Rng, setting: Setting) -> Estimate:
    """An interval that is not printed: seeds and questions are resampled, each with replacement."""
    values, _ = both_sides(rng, setting)
    seed = int(rng.integers(2**31))
    weights = np.concatenate(list(resampled(setting.questions, seed=seed)))
    means = weights @ values.T / setting.questions
    picked = rng.integers(setting.seeds, size=(DRAWS, setting.seeds))
    draws = np.take_along_axis(means, picked, axis=1).mean(axis=1)
    return percentile_interval(float(values.mean()), [draws], setting.questions)


def needed(rng: Rng, level: float, questions: int) -> Floats:
    """The share of the first tool in the calls that each question needs; of shape (questions,)."""
    return np.clip(rng.normal(level, 0.2, questions), 0, 1)


def true_entropy(rng: Rng, level: float) -> float:
    """The entropy of the calls to both tools over all questions."""
    share = needed(rng, level, 20_000).mean(keepdims=True)
    return float(normalized_entropy({"local_search": share, "web_search": 1 - share})[0])


def tool_calls(rng: Rng, level: float, questions: int) -> dict[str, Floats]:
    """The calls of two tools by question; some questions need one of them more."""
    share = needed(rng, level, questions)
    return {
        "local_search": rng.poisson(3 * share).astype(np.float64),
        "web_search": rng.poisson(3 * (1 - share)).astype(np.float64),
    }


def entropy(rng: Rng, setting: Setting) -> Estimate:
    calls = tool_calls(rng, setting.level, setting.questions)
    return pooled_estimate(calls, POOLED_ENTROPY, np.arange(setting.questions))


def entropy_over_seeds(rng: Rng, setting: Setting) -> Estimate:
    runs = []
    questions = [f"q{number}" for number in range(setting.questions)]
    for level in levels(rng, setting.level, setting.deviation, setting.seeds):
        calls: dict[str, list[int]] = {}
        for tool, counts in tool_calls(rng, level, setting.questions).items():
            calls[tool] = counts.astype(int).tolist()
        runs.append(Evaluation({}, questions, {}, calls))
    entropies = crossed(runs, ENTROPY)
    assert entropies is not None
    return mean_of_sets([entropies])


def verdicts(rng: Rng, level: float, questions: int) -> Verdicts:
    """Two verdicts a question, whose p(yes) is higher after a response that states the fact."""
    ease = rng.normal(0, 0.5, questions)
    states = rng.random((questions, len(STRATA))) < 0.6
    logits = ease[:, None] + rng.normal(0, 1, states.shape) + np.where(states, 4 * level - 2, -1)
    p_yes = 1 / (1 + np.exp(-logits))
    verdicts_of_questions = []
    for place in range(questions):
        verdicts_of_question = []
        for column, stratum in enumerate(STRATA):
            states_fact = bool(states[place, column])
            verdicts_of_question.append(Seen(stratum, states_fact, float(p_yes[place, column])))
        verdicts_of_questions.append(verdicts_of_question)
    return verdicts_of_questions


def verdict_gap(rng: Rng, setting: Setting) -> Estimate:
    columns = verdict_columns(verdicts(rng, setting.level, setting.questions))
    return pooled_estimate(columns, POOLED_VERDICTS[GAP], np.arange(setting.questions))


def verdict_auroc(rng: Rng, setting: Setting) -> Estimate:
    columns = verdict_columns(verdicts(rng, setting.level, setting.questions))
    return pooled_estimate(columns, POOLED_VERDICTS[AUROC], np.arange(setting.questions))


def gap_difference(rng: Rng, setting: Setting) -> Estimate:
    before = verdict_columns(verdicts(rng, setting.level, setting.questions))
    after = verdict_columns(verdicts(rng, setting.later, setting.questions))
    questions = list(range(setting.questions))
    return pooled_difference(before, after, POOLED_VERDICTS[GAP], (questions, questions))


def rare(rng: Rng, setting: Setting) -> Floats:
    """Whether each question is of a rare kind, whose share is the setting's level."""
    return rng.random(setting.questions) < setting.level


def nearly_one_tool(rng: Rng, setting: Setting) -> Estimate:
    """Three calls a question, of one tool; in rare questions of the other tool."""
    other = rare(rng, setting)
    calls = {"local_search": 3.0 * ~other, "web_search": 3.0 * other}
    return pooled_estimate(calls, POOLED_ENTROPY, np.arange(setting.questions))


def verdicts_nearly_alike(wrong: Floats) -> Verdicts:
    """Two verdicts a question, one with the fact and one without it. They follow the evidence, but
    in questions that are `wrong` they contradict it.
    """
    rows = []
    for is_wrong in wrong:
        row = []
        for states_fact in (True, False):
            row.append(Seen("local_search", states_fact, float(states_fact != is_wrong)))
        rows.append(row)
    return rows


def gap_nearly_alike(rng: Rng, setting: Setting) -> Estimate:
    columns = verdict_columns(verdicts_nearly_alike(rare(rng, setting)))
    return pooled_estimate(columns, POOLED_VERDICTS[GAP], np.arange(setting.questions))


def gap_difference_nearly_alike(rng: Rng, setting: Setting) -> Estimate:
    """Before, all verdicts follow the evidence; after, all but those of rare questions."""
    before = verdict_columns(verdicts_nearly_alike(np.zeros(setting.questions, dtype=bool)))
    after = verdict_columns(verdicts_nearly_alike(rare(rng, setting)))
    questions = list(range(setting.questions))
    return pooled_difference(before, after, POOLED_VERDICTS[GAP], (questions, questions))


INTERVALS: Mapping[str, Callable[[Rng, Setting], Estimate]] = {
    "mean over questions": mean_over_questions,
    "paired difference": paired_difference,
    "macro mean over sets": mean_over_sets,
    "macro mean of differences": difference_over_sets,
    "tool entropy": entropy,
    "verdict gap": verdict_gap,
    "verdict AUROC": verdict_auroc,
    "difference of verdict gaps": gap_difference,
    "tool entropy, nearly one tool": nearly_one_tool,
    "verdict gap, nearly all alike": gap_nearly_alike,
    "difference of gaps, nearly all alike": gap_difference_nearly_alike,
    "mean over seeds": mean_over_seeds,
    "difference over seeds": difference_over_seeds,
    "macro mean over seeds": mean_over_seeds_and_sets,
    "tool entropy over seeds": entropy_over_seeds,
    "bootstrap over seeds (not printed)": bootstrap_over_seeds,
}
RARE = (
    "tool entropy, nearly one tool",
    "verdict gap, nearly all alike",
    "difference of gaps, nearly all alike",
)
DIFFERENCES = ("paired difference", "macro mean of differences", "difference over seeds")


@cache
def truth(setting: Setting) -> float:
    """The true value that the interval should hold, whatever the numbers of questions and seeds."""
    many = replace(setting, questions=MANY)
    rng = np.random.default_rng(1)
    if setting.interval == "tool entropy over seeds":
        level_of_seeds = levels(rng, setting.level, setting.deviation, 5_000)
        return float(np.mean([true_entropy(rng, level) for level in level_of_seeds]))
    if setting.interval == "tool entropy":
        return true_entropy(rng, setting.level)
    if setting.interval in ("verdict gap", "verdict AUROC"):
        return float(INTERVALS[setting.interval](rng, many).value or 0.0)
    if setting.interval == "tool entropy, nearly one tool":
        shares = {
            "local_search": np.array([1 - setting.level]),
            "web_search": np.array([setting.level]),
        }
        return float(normalized_entropy(shares)[0])
    if setting.interval == "verdict gap, nearly all alike":
        return 1 - 2 * setting.level
    if setting.interval == "difference of gaps, nearly all alike":
        return -2 * setting.level
    if setting.interval == "difference of verdict gaps":
        gap_after = verdict_gap(rng, replace(many, level=setting.later)).value or 0.0
        gap_before = verdict_gap(rng, many).value or 0.0
        return float(gap_after) - float(gap_before)
    before = mean_level(setting.level, setting.deviation)
    if setting.interval in DIFFERENCES:
        return mean_level(setting.later, setting.deviation) - before
    return before


def coverage(setting: Setting, repeats: int, seed: int = 0) -> tuple[float, float]:
    """The share of the repeats whose interval holds the true value, and the mean width of the
    intervals.
    """
    rng = np.random.default_rng([seed, zlib.crc32(str(setting).encode())])
    true_value = truth(setting)
    held = 0
    widths = []
    for _ in range(repeats):
        estimate = INTERVALS[setting.interval](rng, setting)
        if estimate.low is not None and estimate.high is not None:
            held += estimate.low <= true_value <= estimate.high
            widths.append(estimate.high - estimate.low)
    return held / repeats, float(np.mean(widths))


def settings() -> Iterator[Setting]:
    """The settings of the table in docs/statistics.md."""
    for questions in (60, 200, 600):
        for binary in (True, False):
            yield Setting("mean over questions", questions, binary=binary)
            yield Setting("paired difference", questions, 0.5, 0.6, binary=binary)
            yield Setting("macro mean over sets", questions, binary=binary)
            yield Setting("macro mean of differences", questions, 0.5, 0.6, binary=binary)
        yield Setting("mean over questions", questions, 0.07)
        yield Setting("mean over questions", questions, 0.97)
        yield Setting("paired difference", questions, 0.97, 0.97)
        yield Setting("tool entropy", questions, 0.7, binary=False)
        yield Setting("verdict gap", questions, 0.7, binary=False)
        yield Setting("verdict AUROC", questions, 0.7, binary=False)
        yield Setting("difference of verdict gaps", questions, 0.6, 0.8, binary=False)
        for share in (0.01, 0.05):
            for interval in RARE:
                yield Setting(interval, questions, share)
        for seeds in (3, 8):
            for level, deviation in ((0.37, 0.27), (0.6, 0.04), (0.6, 0.0)):
                yield from over_seeds(questions, level, deviation, seeds)


def over_seeds(questions: int, level: float, deviation: float, seeds: int) -> Iterator[Setting]:
    """The settings of intervals over seeds, for this number of seeds and this deviation."""
    for binary in (True, False):
        for interval in (
            "mean over seeds",
            "difference over seeds",
            "macro mean over seeds",
            "bootstrap over seeds (not printed)",
        ):
            yield Setting(interval, questions, level, level, deviation, seeds, binary)
    yield Setting("tool entropy over seeds", questions, 0.7, 0.7, deviation, seeds, binary=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(INTERVALS), nargs="*", default=list(INTERVALS))
    parser.add_argument("--out", type=Path, help="folder for coverage.json")
    args = parser.parse_args()
    chosen = [setting for setting in settings() if setting.interval in args.only]
    columns = "interval | seeds | they differ by | values | level | later | questions"
    print(f"| {columns} | coverage | width |\n{'|---' * 9}|")
    results = {}
    for setting in tqdm(chosen, disable=None):
        share, width = coverage(setting, args.repeats, args.seed)
        results[str(setting)] = {"coverage": share, "width": width}
        print(f"| {setting} | {share:.3f} | {width:.3f} |", flush=True)
    if args.out is not None:
        write_metrics(args.out / "coverage.json", {"repeats": args.repeats, "settings": results})


if __name__ == "__main__":
    main()
