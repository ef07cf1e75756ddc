"""What agents did in their episodes: which tools they called, how they reacted to blanked
responses, and why they failed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from ..rewards.citation_returned import is_report
from ..trajectory import Step, Trajectory
from .stats import Floats, Pooled

# Why episodes fail (trajectory-level self-evaluation, table 2)
WRONG_ANSWER = "wrong answer"
WRONG_FORMATTING = "wrong formatting"
LIMITS = "limits"
NOT_JUDGED = "not judged"
"""Episodes of which nobody knows whether they failed."""


class ErrorCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many episodes failed, and why (trajectory-level self-evaluation, table 2).

    Attributes:
        judged_by: the metric that says whether an answer is right, such as `exact_match` or
            `lm_accuracy`.
        wrong_answer: answers that it finds wrong.
        wrong_formatting: episodes that ended without an answer, though within their limits.
        limits: episodes that were cut off by a limit.
        not_judged: answers that it gave no verdict on: no gold answer, or the judge failed.
        episodes: all episodes.
    """

    judged_by: str
    wrong_answer: int = 0
    wrong_formatting: int = 0
    limits: int = 0
    not_judged: int = 0
    episodes: int = 0

    @property
    def total(self) -> int:
        """The number of episodes that failed."""
        return self.wrong_answer + self.wrong_formatting + self.limits


def tool_counts(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """The number of calls by the tools' names, as the policy wrote them. A report without a trace
    has none: nobody called for what it cites.
    """
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        if not is_report(trajectory):
            counts.update(step.call.name for step in trajectory.steps if step.call is not None)
    return counts


def tool_ratios(counts: Mapping[str, int], tools: Sequence[str]) -> dict[str, float]:
    """The share of the calls of `tools` that went to each of them; all 0.0 without a call."""
    total = sum(counts.get(tool, 0) for tool in tools)
    if not total:
        return dict.fromkeys(tools, 0.0)
    return {tool: counts.get(tool, 0) / total for tool in tools}


def tool_entropy(counts: Mapping[str, int], tools: Sequence[str]) -> float | None:
    """Normalised entropy `−Σ p_i log p_i / log K` over the K available tools, in [0, 1]
    (Proof-of-Use, figure 1).

    `None` without any call, or with fewer than two tools.
    """
    if len(tools) < 2 or not any(counts.get(tool) for tool in tools):
        return None
    calls = {tool: np.array([counts.get(tool, 0.0)]) for tool in tools}
    [entropy] = normalized_entropy(calls)
    return float(entropy)


def normalized_entropy(calls: Mapping[Any, Floats]) -> Floats:
    """The entropy of calls by tool, (n,) each; NaN without a call or with one tool."""
    counts = np.array(list(calls.values()))
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=0)
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)  # 0 log 0 counts as 0
        entropy = np.abs((shares * logs).sum(axis=0))
        return entropy / np.log(len(counts))


def _one_tool_each(means: Mapping[Any, float]) -> list[dict[Any, float]]:
    """For each tool a question with as many calls as the mean one, all of this tool."""
    calls = sum(means.values())
    return [{tool: calls} for tool in means]


POOLED_ENTROPY = Pooled(normalized_entropy, _one_tool_each, (0.0, 1.0))


def no_share(trajectory: Trajectory) -> float | None:
    """The share of the verdicts on responses with evidence that are `no`; `None` without such
    verdicts.
    """
    verdicts = [step.helpful for _, step in _judged(trajectory)]
    if not verdicts:
        return None
    return verdicts.count(False) / len(verdicts)


def retry_share(trajectory: Trajectory, tools: Sequence[str]) -> float | None:
    """The share of these `no` after which the same turn calls another one of the tools; `None`
    without a `no`.
    """
    refused = [(before, step) for before, step in _judged(trajectory) if not step.helpful]
    if not refused:
        return None
    retried = 0
    for before, step in refused:
        if before.call is None or step.call is None:
            continue
        if step.call.name in tools and step.call.name != before.call.name:
            retried += 1
    return retried / len(refused)


def _judged(trajectory: Trajectory) -> list[tuple[Step, Step]]:
    """The steps with a verdict on evidence, each after the step that had received the evidence."""
    return [
        (before, step)
        for before, step in pairwise(trajectory.steps)
        if before.evidence and step.helpful is not None
    ]


def error_of(trajectory: Trajectory, right: float | None) -> str | None:
    """Why the episode failed, one of the four words above; `None` if its answer is right.

    `right` is 1.0 for a right answer, and `None` where nothing says whether it is right. An episode
    that was cut off failed by its limits, whatever it answered.

    Example:
        >>> error_of(Trajectory(answer="Oslo", stop_reason="answered"), 0.0)
        'wrong answer'
        >>> error_of(Trajectory(stop_reason="token_limit"), 0.0)
        'limits'
    """
    if right == 1.0:
        return None
    stop_reason = trajectory.stop_reason or ""
    if stop_reason.endswith("_limit"):  # turn_limit, token_limit, turn_token_limit
        return LIMITS
    answer = trajectory.answer or ""
    if not answer.strip():
        return WRONG_FORMATTING
    return NOT_JUDGED if right is None else WRONG_ANSWER


def error_counts(
    trajectories: Sequence[Trajectory], rights: Sequence[float | None], judged_by: str
) -> ErrorCounts:
    """The number of episodes that failed for each reason. `rights` are the values of the metric
    `judged_by`, one for each trajectory.
    """
    errors = Counter(map(error_of, trajectories, rights))
    return ErrorCounts(
        judged_by=judged_by,
        wrong_answer=errors[WRONG_ANSWER],
        wrong_formatting=errors[WRONG_FORMATTING],
        limits=errors[LIMITS],
        not_judged=errors[NOT_JUDGED],
        episodes=len(trajectories),
    )


def error_rows(counts: Mapping[str, ErrorCounts]) -> list[list[str]]:
    """The cells of a table, header first: for each name the number of episodes that failed for each
    reason, with its share of those that failed.
    """
    metrics = dict.fromkeys(errors.judged_by for errors in counts.values())
    header = [
        "why episodes failed",
        f"{WRONG_ANSWER} (by {', '.join(metrics)})",
        WRONG_FORMATTING,
        LIMITS,
        NOT_JUDGED,
        "of episodes",
    ]
    rows = [header]
    for name, errors in counts.items():
        cells = [
            name,
            _with_share(errors.wrong_answer, errors.total),
            _with_share(errors.wrong_formatting, errors.total),
            _with_share(errors.limits, errors.total),
            str(errors.not_judged),
            f"{errors.total} of {errors.episodes}",
        ]
        rows.append(cells)
    return rows


def _with_share(number: int, total: int) -> str:
    return f"{number} ({number / total:.0%})" if number else "0"
