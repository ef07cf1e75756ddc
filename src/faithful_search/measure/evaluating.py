"""Run a policy, or any other agent, on questions and say how right and how faithful it was."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path

import msgspec

from ..errors import DataError
from ..inference.once import AskedOnce
from ..judges import Judge
from ..rewards import (
    AnswerSupport,
    Citation,
    CitationStatesFact,
    Correctness,
    EvidenceSensitivity,
    Format,
    Reward,
    Score,
)
from ..rollout import Agent, Engine
from ..rollout.served import FAILED
from ..tasks import Task
from ..trajectory import Trajectory
from ..world import chains_of
from ..world.facts import FactsJudge
from . import metrics
from .behaviour import (
    POOLED_ENTROPY,
    ErrorCounts,
    error_counts,
    no_share,
    retry_share,
    tool_counts,
)
from .controls import EM_UNREMEMBERED, QUESTIONS, control_tasks, control_values, unremembered
from .evaluation import ENTROPY, Evaluation, run_episodes
from .gates import SHARE
from .gold_citations import CitesGold
from .origins import Decorated
from .probes import UNSEEN_SNIPPETS, blank_engine
from .stats import Estimate, left_out, mean_ci, pooled_estimate
from .verdicts import GAP, Verdicts, verdict_rows
from .workers import progress_bar

NO, RETRY = "no_on_blank", "retry_on_blank"
JUDGES_OF_ERRORS = ("lm_accuracy", "exact_match")
"""The metrics that may say whether an answer is right, where episodes that failed are counted. The
first one that was measured does.
"""


def default_rewards(
    dialect: str = "pou",
    judge: Judge | None = None,
    facts: bool = False,
    tasks: Iterable[Task] = (),
) -> dict[str, Reward]:
    """The rewards that an evaluation measures, by the names of their results.

    Rewards of the answer and the form are always among them. Proof-of-Use's are if the dialect has
    the verdicts that they check. VERITAS's are if the dialect has none, or a judge is given.
    docs/evaluating.md describes the results. A name says what made the result:
    `answer_support_facts` the world's facts, `answer_support` a judge that reads,
    `answer_support_containment` a search for the answer's words. Where the facts are known, thoughts
    are judged by them, too.

    Args:
        dialect: of the policy.
        judge: by default each reward compares words in its own way.
        facts: the questions are the bundled world's, whose facts are known.
        tasks: the questions. If the supporting titles of one are known, citations are compared with
            them (`cites_gold`).

    Example:
        >>> list(default_rewards("search_r1"))[5:]
        ['info_think_lexical', 'think_search_lexical', 'think_answer_sub_em']
    """
    reads = judge is not None and not judge.lexical
    rewards: dict[str, Reward] = {"exact_match": Correctness("em"), "f1": Correctness("f1")}
    if reads:
        rewards["lm_accuracy"] = Correctness("judge", judge=judge)
    rewards |= {
        "valid_format": Format(),
        "decorated": Decorated(),
        "answer_first": Decorated("answer_first"),
    }
    cites = Citation().covers(dialect)
    if cites:
        rewards |= {
            "citation_validity": Citation(),
            "evidence_sensitivity": EvidenceSensitivity(),
            "evidence_sensitivity_unseen": EvidenceSensitivity(snippets=UNSEEN_SNIPPETS),
        }
        cites_gold = CitesGold.of(tasks)
        if cites_gold.supporting_titles:
            rewards[cites_gold.name] = cites_gold
        if facts:
            rewards["answer_support_facts"] = AnswerSupport(FactsJudge())
        if reads or not facts:
            support = AnswerSupport() if judge is None else AnswerSupport(judge)
            rewards[metrics.support_row(support.judge)] = support
        states = FactsJudge() if facts else judge
        if states is not None and states.reads_queries:
            rewards |= {"citation_states_fact": CitationStatesFact(states), GAP: Verdicts(states)}
    if judge is not None or not cites:
        for name in (
            "info_think_faithfulness",
            "think_search_faithfulness",
            "think_answer_faithfulness",
        ):
            if facts:
                rewards |= metrics.load(name, FactsJudge())
            rewards |= metrics.load(name, judge)
    return rewards


def evaluate_policy(
    engine: Engine,
    tasks: Sequence[Task],
    rewards: Mapping[str, Reward] | None = None,
    controls: int = QUESTIONS,
    folder: Path | None = None,
) -> Evaluation:
    """Run a policy on the tasks and measure its rollouts.

    If the dialect has verdicts, each task is also run with tools whose responses are blanked, for
    at most three turns (`probes.blank_engine`). Where a paper's zero means "does not apply", the
    rollout is left out of the mean and counted in `not_applicable`. docs/evaluating.md describes the
    results.

    Args:
        engine: the policy with its tools and limits.
        tasks: one rollout for each. A task may be given several times: intervals are over
            questions.
        rewards: by the names of their results; by default `default_rewards` for the engine's
            dialect, with facts if all questions are the bundled world's.
        controls: the first so many questions are run again, with their gold evidence blocked and in
            changed worlds (`controls`), if they are the bundled world's.
        folder: keeps rollouts as they end. Those that it holds are not run again.

    Raises `DataError` without a task.
    """
    if not tasks:
        raise DataError("no questions to evaluate on")
    rollouts, blind, controlled = run_conditions(
        engine, tasks, control_tasks(tasks, controls), folder
    )
    if rewards is None:
        facts = all(task.question in chains_of() for task in tasks)
        rewards = default_rewards(engine.dialect.name, facts=facts, tasks=tasks)
    policy = AskedOnce(engine.generator)
    return evaluate_rollouts(
        rollouts,
        questions=[task.id for task in tasks],
        rewards={name: reward.bind(policy=policy) for name, reward in rewards.items()},
        tools=engine.toolbox.names,
        forced=engine.limits.force_answer,
        blind=blind,
        controls=controlled,
        unremembered=unremembered(tasks),
    )


def evaluate_agent(
    agent: Agent,
    tasks: Sequence[Task],
    rewards: Mapping[str, Reward],
    tools: Sequence[str] = (),
    controls: int = QUESTIONS,
    folder: Path | None = None,
) -> Evaluation:
    """Run any agent on the tasks and measure its rollouts, as `evaluate_policy` does with a policy.

    Nothing is known of an agent's probabilities, so that no reward may need the policy, and its
    tools are not blanked. Episodes that the agent's endpoint did not finish count nowhere but in
    `Evaluation.failed`.

    Args:
        agent: who answers.
        tasks: one rollout for each.
        rewards: by the names of their results, such as `default_rewards` gives.
        tools: the names of the agent's tools. Without one there are no controls: no evidence can be
            missing or changed.
        controls: see `evaluate_policy`.
        folder: keeps rollouts as they end. Those that it holds are not run again.

    Raises `DataError` without a task.
    """
    if not tasks:
        raise DataError("no questions to evaluate on")

    def run(tasks: Sequence[Task], condition: str) -> list[Trajectory]:
        file = None if folder is None else folder / f"{condition}.jsonl"
        return run_episodes(agent, tasks, condition, file)

    rollouts = run(tasks, "evaluating")
    controlled = run(control_tasks(tasks, controls) if tools else (), "controls")
    finished = []
    questions = []
    for task, rollout in zip(tasks, rollouts, strict=True):
        if rollout.stop_reason != FAILED:
            finished.append(rollout)
            questions.append(task.id)
    evaluation = evaluate_rollouts(
        finished,
        questions=questions,
        rewards=rewards,
        tools=tools,
        controls=[rollout for rollout in controlled if rollout.stop_reason != FAILED],
        unremembered=unremembered(tasks),
    )
    failed = [rollout for rollout in (*rollouts, *controlled) if rollout.stop_reason == FAILED]
    reasons = Counter(str(rollout.meta.get("why", "")) for rollout in failed)
    [(reason, _)] = reasons.most_common(1) or [("", 0)]
    return msgspec.structs.replace(evaluation, failed=len(failed), failed_because=reason)


def run_conditions(
    engine: Engine, tasks: Sequence[Task], controls: Sequence[Task], folder: Path | None = None
) -> tuple[list[Trajectory], list[Trajectory], list[Trajectory]]:
    """The rollouts of the tasks, those of the tasks with blanked tools, and those of the control
    tasks.

    Rollouts with blanked tools are made only if the dialect has verdicts, which say whether the
    policy notices. A `folder` keeps each of the three in a file, as `run_episodes` does.
    """
    engine = copy(engine)
    engine.generator = AskedOnce(engine.generator)
    has_verdicts = Citation().covers(engine.dialect.name)

    def run(agent: Engine, tasks: Sequence[Task], condition: str) -> list[Trajectory]:
        file = None if folder is None else folder / f"{condition}.jsonl"
        return run_episodes(agent, tasks, condition, file)

    rollouts = run(engine, tasks, "evaluating")
    blanked = run(blank_engine(engine), tasks if has_verdicts else (), "blanked")
    controlled = run(engine, controls, "controls")
    return rollouts, blanked, controlled


def evaluate_rollouts(
    trajectories: Sequence[Trajectory],
    questions: Sequence[str],
    rewards: Mapping[str, Reward],
    tools: Sequence[str],
    forced: bool = False,
    blind: Sequence[Trajectory] = (),
    controls: Sequence[Trajectory] = (),
    unremembered: Collection[str] | None = None,
) -> Evaluation:
    """Measure rollouts that exist already.

    Args:
        trajectories: the rollouts.
        questions: the id of each rollout's question.
        rewards: by the names of their results. Those that need the policy have it bound.
        tools: the names of the tools that could be called.
        forced: answers could be forced after the last turn.
        blind: rollouts of the same questions, in the same order, with blanked tools.
        controls: rollouts of `control_tasks`.
        unremembered: the questions that `exact_match_unremembered` is computed for; `None` leaves
            that result out.

    Raises `DataError` if there is not one question for each rollout.
    """
    if len(questions) != len(trajectories):
        raise DataError(
            f"{len(trajectories)} trajectories for {len(questions)} question ids: give one for each"
        )
    with progress_bar(total=len(rewards), desc="scoring", unit="metric") as bar:
        scores = {}
        for name, reward in rewards.items():
            scores[name] = reward.score_batch(trajectories)
            bar.update(1)
    # `Verdicts` has no value for a single rollout: its results come from all rollouts together
    seen = scores.pop(GAP, [])
    values: dict[str, list[float | None]] = {}
    for name, scores_of_metric in scores.items():
        values[name] = list(map(rewards[name].measure, scores_of_metric))
    calls = [tool_counts([rollout]) for rollout in trajectories]
    endings = [_ending(rollout) for rollout in trajectories]
    values["answered"] = [float(ending == "answered") for ending in endings]
    if forced:
        values["answered_forced"] = [float(ending == "answered_forced") for ending in endings]
    values["calls"] = [float(counts.total()) for counts in calls]
    values |= control_values(trajectories, questions, controls)
    if unremembered is not None and "exact_match" in values:
        values[EM_UNREMEMBERED] = []
        for value, question in zip(values["exact_match"], questions, strict=True):
            values[EM_UNREMEMBERED].append(value if question in unremembered else None)
    scored = _with_scores(trajectories, values, scores)
    # The values from here on are of other rollouts than these
    if blind:
        values[NO] = [no_share(rollout) for rollout in blind]
        if len(tools) > 1:
            values[RETRY] = [retry_share(rollout, tools) for rollout in blind]
    bounds = dict.fromkeys(values, SHARE)
    bounds |= {name: reward.bounds for name, reward in rewards.items()}
    bounds["calls"] = (0.0, math.inf)
    rows = {}
    finite_bounds = {}
    for name, column in values.items():
        abstained = sum(bool(score.parts.get("abstained")) for score in scores.get(name, []))
        rows[name] = _estimate(column, questions, bounds[name], abstained)
        if all(map(math.isfinite, bounds[name])):
            finite_bounds[name] = bounds[name]
    if GAP in rewards:
        rows |= verdict_rows(seen, questions)
    tool_calls: dict[str, list[int]] = {}
    for tool in tools:
        tool_calls[tool] = [counts[tool] for counts in calls]
    if len(tools) > 1:
        rows[ENTROPY] = pooled_estimate(tool_calls, POOLED_ENTROPY, questions)
    return Evaluation(
        rows=rows,
        questions=list(questions),
        values=values,
        tool_calls=tool_calls,
        verdicts=[score.parts["verdicts"] for score in seen],
        made_by={name: repr(reward) for name, reward in rewards.items()},
        errors=_errors(trajectories, values),
        trajectories=scored,
        bounds=finite_bounds,
    )


def _errors(
    trajectories: Sequence[Trajectory], values: Mapping[str, Sequence[float | None]]
) -> ErrorCounts | None:
    """Why episodes failed, by the first of `JUDGES_OF_ERRORS` that was measured."""
    for metric in JUDGES_OF_ERRORS:
        if metric in values:
            return error_counts(trajectories, values[metric], metric)
    return None


def _ending(rollout: Trajectory) -> str:
    """Why the rollout ended. One that another program made may not say it."""
    if rollout.stop_reason:
        return rollout.stop_reason
    return "unknown" if rollout.answer is None else "answered"


def _with_scores(
    trajectories: Sequence[Trajectory],
    values: Mapping[str, Sequence[float | None]],
    scores: Mapping[str, Sequence[Score]],
) -> list[Trajectory]:
    """The rollouts with their `scores` and `reasons` in `meta`."""
    scored = []
    for number, rollout in enumerate(trajectories):
        reasons = {name: column[number].why for name, column in scores.items()}
        meta = {
            **rollout.meta,
            "scores": {name: column[number] for name, column in values.items()},
            "reasons": {name: why for name, why in reasons.items() if why},
        }
        scored.append(msgspec.structs.replace(rollout, meta=meta))
    return scored


def _estimate(
    column: Sequence[float | None],
    questions: Sequence[str],
    bounds: tuple[float, float],
    abstained: int,
) -> Estimate:
    """The mean over questions of the rollouts that have a value. `abstained` of those without one
    have no verdict of a judge.
    """
    values = []
    questions_of_values = []
    for value, question in zip(column, questions, strict=True):
        if value is not None:
            values.append(value)
            questions_of_values.append(question)
    return left_out(
        mean_ci(values, questions_of_values, bounds),
        rows=len(values),
        not_applicable=len(column) - len(values) - abstained,
        abstained=abstained,
    )
