"""Run a policy on a suite of questions and say how right and how faithful it was."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ..errors import DataError
from ..inference.base import Generator
from ..judges import Judge
from ..rewards import AnswerSupport, Citation, Correctness, EvidenceSensitivity, Format, Reward, Score
from ..rollout import Engine
from ..tasks import Task
from ..trajectory import Trajectory
from . import metrics
from .stats import NOTHING, Estimate, Floats, bootstrap, left_out, mean_ci, paired_difference, question_means
from .tool_use import tool_counts

ENTROPY = "tool_entropy"


class Evaluation(msgspec.Struct, frozen=True):
    """What one policy did on one suite.

    Attributes:
        rows: each metric's estimate; see `evaluate_policy`.
        questions: the task's id of each rollout. All lists below are in this order.
        values: each metric's value for each rollout; `None` where it does not apply or the judge abstained.
        tool_calls: calls of each of the toolbox's tools.
        made_by: the reward behind each metric, with its knobs.
        endings: how many rollouts ended for which reason.
        trajectories: the rollouts, their `scores` and `reasons` in `meta`; empty when read back from a dictionary.
    """

    rows: dict[str, Estimate]
    questions: list[str]
    values: dict[str, list[float | None]]
    tool_calls: dict[str, list[int]]
    made_by: dict[str, str] = {}
    endings: dict[str, int] = {}
    trajectories: list[Trajectory] = []

    def to_dict(self) -> dict[str, Any]:
        """Everything but the trajectories, as plain JSON types; `from_dict` reads it back."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if name != "trajectories"}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Evaluation:
        """Read what `to_dict` gave. Raises `DataError` for anything else."""
        try:
            return msgspec.convert(dict(data), Evaluation)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise DataError(f"not an evaluation: {error}") from error


def default_rewards(dialect: str = "pou", judge: Judge | None = None) -> dict[str, Reward]:
    """The suite's metrics that are rewards, by the name of their row.

    Answer and form always; Proof-of-Use's metrics where the dialect has the verdicts that they check; VERITAS's where
    it has not, and wherever a judge is given. The rows of the latter say what made them: `info_think_lexical` compared
    words, `info_think_faithfulness` asked a judge.

    Example:
        >>> list(default_rewards("search_r1"))[3:]
        ['info_think_lexical', 'think_search_lexical', 'think_answer_sub_em']
    """
    rewards: dict[str, Reward] = {
        "exact_match": Correctness("em"),
        "f1": Correctness("f1"),
        "valid_format": Format(),
    }
    cites = Citation().covers(dialect)
    if cites:
        rewards |= {
            "citation_validity": Citation(),
            "evidence_sensitivity": EvidenceSensitivity(),
            "answer_support": AnswerSupport(),
        }
    if judge is not None or not cites:
        for name in ("info_think_faithfulness", "think_search_faithfulness", "think_answer_faithfulness"):
            rewards |= metrics.load(name, judge)
    return rewards


def evaluate_policy(
    engine: Engine,
    tasks: Sequence[Task],
    rewards: Mapping[str, Reward] | None = None,
    policy: Generator | None = None,
    on_progress: Callable[..., Any] | None = None,
) -> Evaluation:
    """One rollout per task, scored; a task may be given several times, intervals are then over questions.

    | row | what is averaged over questions |
    |---|---|
    | exact_match, f1 | agreement with the gold answers (SQuAD's normaliser); no gold answers: does not apply |
    | valid_format | 1 when the basic tags of every turn are right and the last turn answers |
    | citation_validity | share of the steps t ≥ 2 with R_cite = +1, in [0, 1]: (R_cite + 1) / 2; T = 1 does not apply |
    | evidence_sensitivity | R_pt in [-1, 1], where there was a step to perturb |
    | answer_support | R_ans, where there was a valid citation |
    | info_think_…, think_search_…, think_answer_… | VERITAS's, where there was such a pair; the name says who judged |
    | answered | 1 when the episode ended with an answer of the agent's own accord |
    | answered_forced | 1 when it ended with one that was opened for it; where the engine's limits say `force_answer` |
    | calls | tool calls of known and unknown tools |
    | tool_entropy | not a mean: normalised entropy of all calls over the toolbox's tools, bootstrapped over questions |

    Where a paper's zero means "does not apply", the rollout is left out of the mean and counted in `not_applicable`.
    With a single tool there is no entropy.

    Args:
        engine: the policy with its tools; greedy or sampled is its business.
        tasks: the suite.
        rewards: by row name; default `default_rewards()` of the engine's dialect.
        policy: whom the rewards that need the policy ask; default the engine's generator.
        on_progress: a `tqdm`-like class, called with `total`, `desc` and `unit`; default a progress bar on a terminal.

    Raises:
        DataError: without a task.

    Example:
        ```python
        evaluation = evaluate_policy(engine, load_tasks("world", "test", limit=64))
        print(evaluation.rows["f1"])
        ```
    """
    if not tasks:
        raise DataError("no questions to evaluate on")
    rollouts = run_episodes(engine, tasks, on_progress)
    chosen = default_rewards(engine.dialect.name) if rewards is None else rewards
    bound = {name: reward.bind(policy=policy or engine.generator) for name, reward in chosen.items()}
    questions = [task.id for task in tasks]
    return evaluate_rollouts(rollouts, questions, bound, engine.toolbox.names, engine.limits.force_answer)


def run_episodes(
    engine: Engine, tasks: Sequence[Task], on_progress: Callable[..., Any] | None = None
) -> list[Trajectory]:
    """The engine's rollouts of the tasks, with a progress bar (`on_progress` as in `evaluate_policy`)."""
    with (on_progress or progress_bar)(total=len(tasks), desc="evaluating", unit="rollout") as bar:
        return engine.run(tasks, on_end=lambda trajectory: bar.update(1))


def evaluate_rollouts(
    trajectories: Sequence[Trajectory],
    questions: Sequence[str],
    rewards: Mapping[str, Reward],
    tools: Sequence[str],
    forced: bool = False,
) -> Evaluation:
    """Score rollouts that exist already: `evaluate_policy` without the running.

    Args:
        trajectories: the rollouts.
        questions: the question's id of each.
        rewards: by row name; those that need the policy have it bound.
        tools: names of the tools that were available.
        forced: whether agents were made to answer, so that there is a row for it.
    """
    if len(questions) != len(trajectories):
        raise DataError(f"{len(trajectories)} trajectories for {len(questions)} question ids: give one for each")
    scores = {name: reward.score_batch(trajectories) for name, reward in rewards.items()}
    values = {name: [rewards[name].measure(score) for score in column] for name, column in scores.items()}
    values["answered"] = [float(item.stop_reason == "answered" or _ends_with_answer(item)) for item in trajectories]
    if forced:
        values["answered_forced"] = [float(item.stop_reason == "answered_forced") for item in trajectories]
    values["calls"] = [float(tool_counts([item]).total()) for item in trajectories]
    calls = {tool: [tool_counts([item])[tool] for item in trajectories] for tool in tools}
    bounds = {"answered": (0.0, 1.0), "answered_forced": (0.0, 1.0), "calls": (0.0, math.inf)}
    bounds |= {name: reward.bounds for name, reward in rewards.items()}
    rows = {name: mean_of(column, scores.get(name, []), questions, bounds[name]) for name, column in values.items()}
    if len(calls) > 1:
        rows[ENTROPY] = entropy_estimate(calls, questions)
    return Evaluation(
        rows=rows,
        questions=list(questions),
        values=values,
        tool_calls=calls,
        made_by={name: repr(reward) for name, reward in rewards.items()},
        endings=dict(Counter(item.stop_reason or "unknown" for item in trajectories)),
        trajectories=[_annotated(item, number, scores, values) for number, item in enumerate(trajectories)],
    )


def progress_bar(**settings: Any) -> Any:
    """A progress bar, shown on a terminal only."""
    from tqdm.auto import tqdm

    return tqdm(disable=None, **settings)


def mean_of(
    column: Sequence[float | None], scores: Sequence[Score], questions: Sequence[str], bounds: tuple[float, float]
) -> Estimate:
    """The mean of a metric over questions with its interval, and how many rollouts were left out of it, and why.

    Args:
        column: its value for each rollout, `None` where there is none.
        scores: what the values were measured from; they tell abstentions from what does not apply.
        questions: the question of each rollout.
        bounds: what the values can be.
    """
    kept = [(value, question) for value, question in zip(column, questions, strict=True) if value is not None]
    abstained = sum(bool(score.parts.get("abstained")) for score in scores)
    estimate = mean_ci([value for value, _ in kept], [question for _, question in kept], bounds)
    return left_out(estimate, len(kept), len(column) - len(kept) - abstained, abstained)


def entropy_estimate(tool_calls: Mapping[str, Sequence[int]], questions: Sequence[Hashable]) -> Estimate:
    """Normalised tool entropy with its bootstrap interval over questions; no value without a call or with one tool."""
    table = np.array([*tool_calls.values()], dtype=np.float64).reshape(len(tool_calls), len(questions)).T
    idle = int((table.sum(axis=1) == 0).sum())
    return msgspec.structs.replace(bootstrap(table, _entropy, questions), not_applicable=idle)


def difference(before: Evaluation, after: Evaluation, metric: str) -> Estimate:
    """after - before over the questions that both answered: paired, or a paired bootstrap for the tool entropy."""
    if metric == ENTROPY:
        return _entropy_difference(before, after)
    if metric not in before.values or metric not in after.values:
        return NOTHING
    first, second = (question_means(run.questions, run.values[metric]) for run in (before, after))
    return paired_difference(first, second)


def _entropy_difference(before: Evaluation, after: Evaluation) -> Estimate:
    tools = list(before.tool_calls)
    first, second = (_calls_by_question(run, tools) for run in (before, after))
    both = [question for question in first if question in second]
    if set(tools) != set(after.tool_calls) or not both:
        return NOTHING
    table = np.array([[*first[question], *second[question]] for question in both])
    return bootstrap(table, lambda sums: _entropy(sums[:, len(tools) :]) - _entropy(sums[:, : len(tools)]))


def _calls_by_question(run: Evaluation, tools: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, question in enumerate(run.questions):
        own = found.setdefault(question, [0] * len(tools))
        for place, tool in enumerate(tools):
            own[place] += run.tool_calls.get(tool, [0] * len(run.questions))[number]
    return found


def _entropy(sums: Floats) -> Floats:
    """Normalised entropy of each row of counts, (draws, K) to (draws,); NaN without a call or with K < 2."""
    if sums.shape[1] < 2:
        return np.full(len(sums), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = sums / sums.sum(axis=1, keepdims=True)
        parts = np.where(shares > 0, shares * np.log(shares), np.where(np.isnan(shares), np.nan, 0.0))
        return np.abs(parts.sum(axis=1)) / np.log(sums.shape[1])


def _ends_with_answer(trajectory: Trajectory) -> bool:
    return trajectory.stop_reason is None and trajectory.answer is not None


def _annotated(
    trajectory: Trajectory,
    number: int,
    scores: Mapping[str, Sequence[Score]],
    values: Mapping[str, Sequence[float | None]],
) -> Trajectory:
    meta = {
        **trajectory.meta,
        "scores": {name: column[number] for name, column in values.items()},
        "reasons": {name: column[number].why for name, column in scores.items() if column[number].why},
    }
    return msgspec.structs.replace(trajectory, meta=meta)
