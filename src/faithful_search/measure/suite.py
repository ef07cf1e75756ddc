"""Run a policy on a suite of questions and say how right and how faithful it was."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from ..errors import DataError
from ..judges import Judge, is_lexical, reads_queries
from ..judges.facts import FactsJudge
from ..rewards import (
    AnswerSupport,
    Citation,
    CitationStatesFact,
    Correctness,
    EvidenceSensitivity,
    Format,
    Reward,
)
from ..rollout import Engine
from ..tasks import Task
from ..trajectory import Trajectory
from ..world import chains_of
from . import metrics
from .behaviour import no_share, normalized_entropy, retry_share, tool_counts
from .controls import EM_UNREMEMBERED, QUESTIONS, control_tasks, control_values, unremembered
from .evaluation import ENTROPY, Evaluation, run_episodes
from .origins import Decorated
from .probes import UNSEEN_SNIPPETS, blank_engine
from .stats import left_out, mean_ci, pooled_estimate
from .verdicts import GAP, Verdicts, verdict_rows

NO, RETRY = "no_on_blank", "retry_on_blank"


def default_rewards(
    dialect: str = "pou", judge: Judge | None = None, facts: bool = False
) -> dict[str, Reward]:
    """The suite's metrics that are rewards, by the name of their row.

    Answer and form always; Proof-of-Use's metrics where the dialect has the verdicts that they check; VERITAS's where
    it has not, and wherever a judge is given. `facts` says that the questions are the bundled world's. Without a judge
    words are compared. A row's name says what made it, such as `answer_support_facts` (the world's facts),
    `answer_support` (a judge that reads) and `answer_support_lexical`; recipes/README.md describes the rows.

    Example:
        >>> list(default_rewards("search_r1"))[5:]
        ['info_think_lexical', 'think_search_lexical', 'think_answer_sub_em']
    """
    reads = judge is not None and not is_lexical(judge)
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
        if facts:
            rewards["answer_support_facts"] = AnswerSupport(FactsJudge())
        if judge is not None and (reads or not facts):
            rewards["answer_support" if reads else "answer_support_lexical"] = AnswerSupport(judge)
        elif not facts:
            rewards["answer_support_lexical"] = AnswerSupport()
        states = FactsJudge() if facts else judge
        if states is not None and reads_queries(states):
            rewards |= {"citation_states_fact": CitationStatesFact(states), GAP: Verdicts(states)}
    if judge is not None or not cites:
        for name in (
            "info_think_faithfulness",
            "think_search_faithfulness",
            "think_answer_faithfulness",
        ):
            rewards |= metrics.load(name, judge)
    return rewards


def evaluate_policy(
    engine: Engine,
    tasks: Sequence[Task],
    rewards: Mapping[str, Reward] | None = None,
    controls: int = QUESTIONS,
    folder: Path | None = None,
) -> Evaluation:
    """One rollout per task, scored; a task may be given several times, intervals are then over questions.

    Where the dialect has verdicts each task is asked once more, with tools whose responses are blanked and for at most
    three turns (`probes.blank_engine`). The first `controls` questions are asked again with their gold evidence
    blocked and in changed worlds, where they are the bundled world's: see `controls`.

    The rows are described in recipes/README.md, under `evaluate.py`. Where a paper's zero means "does not apply", the
    rollout is left out of the mean and counted in `not_applicable`. `rewards` are by row name, by default
    `default_rewards()` of the engine's dialect, with facts when all questions are the bundled world's. `folder` keeps
    rollouts as they end; what it holds of the same evaluation is not run again. Raises `DataError` without a task.
    """
    if not tasks:
        raise DataError("no questions to evaluate on")
    asked = control_tasks(tasks, controls)
    rollouts, blind, controlled = run_suite(engine, tasks, asked, folder)
    if rewards is None:  # what the world's facts say is known of its own questions only
        facts = all(task.question in chains_of() for task in tasks)
        rewards = default_rewards(engine.dialect.name, facts=facts)
    bound = {name: reward.bind(policy=engine.generator) for name, reward in rewards.items()}
    questions = [task.id for task in tasks]
    forced, names = engine.limits.force_answer, engine.toolbox.names
    return evaluate_rollouts(
        rollouts, questions, bound, names, forced, blind, controlled, unremembered(tasks)
    )


def run_suite(
    engine: Engine, tasks: Sequence[Task], controls: Sequence[Task], folder: Path | None = None
) -> tuple[list[Trajectory], list[Trajectory], list[Trajectory]]:
    """Rollouts of the tasks; of the same with blanked tools, where the dialect has verdicts to see in them; of the
    control tasks. With a folder as `run_episodes` with a file.
    """
    seen = tasks if Citation().covers(engine.dialect.name) else ()
    asked = {
        "evaluating": (engine, tasks),
        "blanked": (blank_engine(engine), seen),
        "controls": (engine, controls),
    }
    rollouts, blanked, controlled = (
        run_episodes(agent, own, what, folder and folder / f"{what}.jsonl")
        for what, (agent, own) in asked.items()
    )
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
    """Score rollouts that exist already: `evaluate_policy` without the running.

    `questions` are the question's id of each, `rewards` by row name (those that need the policy have it bound), `tools`
    the names of those available. `forced` says that agents were made to answer. `blind` are rollouts of the same
    questions with blanked tools, in the same order, `controls` those of `control_tasks`; `unremembered` the questions
    that `exact_match_unremembered` is of, `None` leaves that row out.
    """
    if len(questions) != len(trajectories):
        raise DataError(
            f"{len(trajectories)} trajectories for {len(questions)} question ids: give one for each"
        )
    scores = {name: reward.score_batch(trajectories) for name, reward in rewards.items()}
    # `Verdicts` has no value for a rollout: its rows are computed from all rollouts together
    seen = scores.pop(GAP, [])
    values = {
        name: [rewards[name].measure(score) for score in column] for name, column in scores.items()
    }
    calls = [tool_counts([item]) for item in trajectories]
    # a rollout of others may not say how it ended
    ended = [
        item.stop_reason or ("answered" if item.answer is not None else "unknown")
        for item in trajectories
    ]
    for reason in ("answered", "answered_forced") if forced else ("answered",):
        values[reason] = [float(reason == own) for own in ended]
    values["calls"] = [float(own.total()) for own in calls]
    values |= control_values(trajectories, questions, controls)
    if unremembered is not None and "exact_match" in values:
        paired = zip(values["exact_match"], questions, strict=True)
        values[EM_UNREMEMBERED] = [
            value if question in unremembered else None for value, question in paired
        ]
    scored = []
    for number, item in enumerate(trajectories):
        own = {name: column[number] for name, column in values.items()}
        reasons = {
            name: column[number].why for name, column in scores.items() if column[number].why
        }
        scored.append(
            msgspec.structs.replace(item, meta={**item.meta, "scores": own, "reasons": reasons})
        )
    # below, what other episodes than these were measured by
    if blind:
        values[NO] = [no_share(item) for item in blind]
        if len(tools) > 1:
            values[RETRY] = [retry_share(item, tools) for item in blind]
    bounds = {name: reward.bounds for name, reward in rewards.items()} | {"calls": (0.0, math.inf)}
    rows = {}
    for name, column in values.items():
        kept = [
            (value, question)
            for value, question in zip(column, questions, strict=True)
            if value is not None
        ]
        estimate = mean_ci(
            [value for value, _ in kept], [name for _, name in kept], bounds.get(name, (0.0, 1.0))
        )
        abstained = sum(bool(score.parts.get("abstained")) for score in scores.get(name, []))
        rows[name] = left_out(estimate, len(kept), len(column) - len(kept) - abstained, abstained)
    rows |= verdict_rows(seen, questions) if GAP in rewards else {}
    tool_calls = {tool: [own[tool] for own in calls] for tool in tools}
    if len(tools) > 1:
        rows[ENTROPY] = pooled_estimate(tool_calls, normalized_entropy, questions)
    return Evaluation(
        rows=rows,
        questions=list(questions),
        values=values,
        tool_calls=tool_calls,
        verdicts=[score.parts["verdicts"] for score in seen],
        made_by={name: repr(reward) for name, reward in rewards.items()},
        trajectories=scored,
    )
