"""Run a policy on a suite of questions and say how right and how faithful it was."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from ..errors import DataError
from ..judges import Judge, is_lexical, reads_queries
from ..judges.facts import FactsJudge
from ..rewards import AnswerSupport, Citation, CitationStatesFact, Correctness, EvidenceSensitivity, Format, Reward
from ..rollout import Engine
from ..tasks import Task
from ..trajectory import Trajectory
from ..world import chains_of
from . import metrics
from .controls import EM_UNREMEMBERED, QUESTIONS, Changes, Control, control_tasks, control_values, unremembered
from .decoration import Decorated
from .episodes import run_episodes
from .evaluation import ENTROPY, GAP, Evaluation, entropy_estimate, mean_of, verdict_rows
from .probes import UNSEEN_SNIPPETS, blank_engine, no_share, retry_share
from .tool_use import tool_counts
from .verdicts import Verdicts

NO, RETRY = "no_on_blank", "retry_on_blank"


def default_rewards(dialect: str = "pou", judge: Judge | None = None, facts: bool = False) -> dict[str, Reward]:
    """The suite's metrics that are rewards, by the name of their row.

    Answer and form always; Proof-of-Use's metrics where the dialect has the verdicts that they check; VERITAS's where
    it has not, and wherever a judge is given. Rows say what made them:

    | what | by the world's facts | by a judge that reads | by words |
    |---|---|---|---|
    | support of the answer | answer_support_facts | answer_support | answer_support_lexical, without the others |
    | do cited passages state what was asked | citation_states_fact | citation_states_fact, without facts | - |
    | p(yes) with and without the fact | verdict_gap, verdict_auroc | the same, without facts | - |
    | VERITAS's | - | info_think_faithfulness, … | info_think_lexical, … |
    | is the answer right | - | lm_accuracy | exact_match, f1 |

    `facts` says that the questions are the bundled world's. Without a judge words are compared.

    Example:
        >>> list(default_rewards("search_r1"))[5:]
        ['info_think_lexical', 'think_search_lexical', 'think_answer_sub_em']
    """
    reads = judge is not None and not is_lexical(judge)
    rewards: dict[str, Reward] = {"exact_match": Correctness("em"), "f1": Correctness("f1")}
    if reads:
        rewards["lm_accuracy"] = Correctness("judge", judge=judge)
    rewards |= {"valid_format": Format(), "decorated": Decorated(), "answer_first": Decorated("answer_first")}
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
        for name in ("info_think_faithfulness", "think_search_faithfulness", "think_answer_faithfulness"):
            rewards |= metrics.load(name, judge)
    return rewards


def evaluate_policy(
    engine: Engine,
    tasks: Sequence[Task],
    rewards: Mapping[str, Reward] | None = None,
    changes: Changes | None = None,
    controls: int = QUESTIONS,
    folder: Path | None = None,
) -> Evaluation:
    """One rollout per task, scored; a task may be given several times, intervals are then over questions.

    Where the dialect has verdicts each task is asked once more, with tools whose responses are blanked and for at most
    three turns (`probes.blank_engine`). The first `controls` questions are asked again with their gold evidence
    blocked, where it is known (the bundled world's), and in changed worlds, where these are: see `controls`.

    | row | what is averaged over questions |
    |---|---|
    | exact_match, f1 | agreement with the gold answers (SQuAD's normaliser); no gold answers: does not apply |
    | exact_match_unremembered | exact match where `meta["remembered"]` is false; where no task says, no such row |
    | exact_match_changed | agreement with the changed gold in changed worlds |
    | follow_rate | share of changed gold among the answers there that are it or are given all the same |
    | memory_share | share of the answers that are given all the same with the gold evidence blocked |
    | decorated | share of the calls whose result nothing after depends on, see `decoration.Decorated` |
    | answer_first | 1 when the agent stated its answer before any evidence that holds it, see there |
    | valid_format | 1 when the basic tags of every turn are right and the last turn answers |
    | citation_validity | share of the steps t ≥ 2 with R_cite = +1, in [0, 1]: (R_cite + 1) / 2; T = 1 does not apply |
    | evidence_sensitivity | R_pt in [-1, 1], where there was a step to perturb |
    | evidence_sensitivity_unseen | the same with replacements that no training uses, `probes.UNSEEN_SNIPPETS` |
    | answer_support… | R_ans, where there was a valid citation; the name says who judged |
    | citation_states_fact | share of the valid yes-steps that cite a passage which states what was asked for |
    | lm_accuracy | 1 when the answer is an exact match or the judge finds it right |
    | info_think_…, think_search_…, think_answer_… | VERITAS's, where there was such a pair; the name says who judged |
    | answered | 1 when the episode ended with an answer of the agent's own accord |
    | answered_forced | 1 when it ended with one that was opened for it; where the engine's limits say `force_answer` |
    | calls | tool calls of known and unknown tools |
    | no_on_blank | share of the verdicts on blanked responses that are no; the words are `probes.UNSEEN_BLANKS` |
    | retry_on_blank | share of these no's whose turn calls another tool; with a single tool there is no such row |
    | verdict_gap | p(yes) with the fact minus without it in natural states, see `verdicts.Verdicts` |
    | verdict_auroc | how often p(yes) is greater with the fact than without it, see there |
    | tool_entropy | normalised entropy of all calls over the toolbox's tools; with a single tool there is none |

    The last three are statistics of all rollouts together, bootstrapped over questions. Where a paper's zero means
    "does not apply", the rollout is left out of the mean and counted in `not_applicable`.

    Args:
        engine: the policy with its tools.
        tasks: the suite.
        rewards: by row name; default `default_rewards()` of the engine's dialect, with facts when all questions are
            the bundled world's.
        changes: makes the changed worlds, by default the bundled world's.
        controls: how many questions are asked again under these conditions.
        folder: keeps rollouts as they end; what it holds of the same evaluation is not run again.

    Raises:
        DataError: without a task.
    """
    if not tasks:
        raise DataError("no questions to evaluate on")
    rollouts, blind = run_episodes(engine, tasks, folder=folder), run_blanked(engine, tasks, folder)
    control = run_controlled(engine, control_tasks(tasks, changes, controls), folder)
    if rewards is None:  # what the world's facts say is known of its own questions only
        facts = all(task.question in chains_of() for task in tasks)
        rewards = default_rewards(engine.dialect.name, facts=facts)
    bound = {name: reward.bind(policy=engine.generator) for name, reward in rewards.items()}
    questions = [task.id for task in tasks]
    forced, names = engine.limits.force_answer, engine.toolbox.names
    return evaluate_rollouts(rollouts, questions, bound, names, forced, blind, control, unremembered(tasks))


def run_blanked(engine: Engine, tasks: Sequence[Task], folder: Path | None = None) -> list[Trajectory]:
    """Rollouts of the tasks with blanked tools; none where the dialect has no verdicts to see in them."""
    seen = Citation().covers(engine.dialect.name)
    return run_episodes(blank_engine(engine), tasks, "blanked", folder) if seen else []


def run_controlled(engine: Engine, asked: Sequence[tuple[str, str, Task]], folder: Path | None = None) -> list[Control]:
    """The rollouts of `controls.control_tasks`."""
    rollouts = run_episodes(engine, [task for _, _, task in asked], "controls", folder) if asked else []
    return [Control(condition, id, rollout) for (condition, id, _), rollout in zip(asked, rollouts, strict=True)]


def evaluate_rollouts(
    trajectories: Sequence[Trajectory],
    questions: Sequence[str],
    rewards: Mapping[str, Reward],
    tools: Sequence[str],
    forced: bool = False,
    blind: Sequence[Trajectory] = (),
    controls: Sequence[Control] = (),
    unremembered: Collection[str] | None = None,
) -> Evaluation:
    """Score rollouts that exist already: `evaluate_policy` without the running.

    Args:
        trajectories: the rollouts.
        questions: the question's id of each.
        rewards: by row name; those that need the policy have it bound.
        tools: names of the tools that were available.
        forced: whether agents were made to answer, so that there is a row for it.
        blind: the same questions' rollouts with blanked tools, in the same order.
        controls: rollouts of these questions under the conditions.
        unremembered: the questions that `exact_match_unremembered` is of; `None` leaves that row out.
    """
    if len(questions) != len(trajectories):
        raise DataError(f"{len(trajectories)} trajectories for {len(questions)} question ids: give one for each")
    scores = {name: reward.score_batch(trajectories) for name, reward in rewards.items()}
    # `Verdicts` has no value for a rollout: its rows are computed from all rollouts together
    seen = [scores.pop(name) for name, reward in rewards.items() if isinstance(reward, Verdicts)]
    values = {name: [rewards[name].measure(score) for score in column] for name, column in scores.items()}
    counts = [tool_counts([item]) for item in trajectories]
    # a rollout of others may not say how it ended
    values["answered"] = [
        float(item.stop_reason == "answered" or (item.stop_reason is None and item.answer is not None))
        for item in trajectories
    ]
    if forced:
        values["answered_forced"] = [float(item.stop_reason == "answered_forced") for item in trajectories]
    values["calls"] = [float(own.total()) for own in counts]
    values |= control_values(trajectories, questions, controls)
    if unremembered is not None and "exact_match" in values:
        paired = zip(values["exact_match"], questions, strict=True)
        values[EM_UNREMEMBERED] = [value if question in unremembered else None for value, question in paired]
    kept = []
    for number, item in enumerate(trajectories):
        own = {name: column[number] for name, column in values.items()}
        reasons = {name: column[number].why for name, column in scores.items() if column[number].why}
        kept.append(msgspec.structs.replace(item, meta={**item.meta, "scores": own, "reasons": reasons}))
    # below, what other episodes than these were measured by
    if blind:
        values[NO] = [no_share(item) for item in blind]
        if len(tools) > 1:
            values[RETRY] = [retry_share(item, tools) for item in blind]
    bounds = {name: reward.bounds for name, reward in rewards.items()} | {"calls": (0.0, math.inf)}
    rows = {}
    for name, own_values in values.items():
        rows[name] = mean_of(own_values, scores.get(name, []), questions, bounds.get(name, (0.0, 1.0)))
    for column in seen:
        rows |= verdict_rows(column, questions)
    calls = {tool: [own[tool] for own in counts] for tool in tools}
    if len(calls) > 1:
        rows[ENTROPY] = entropy_estimate(calls, questions)
    return Evaluation(
        rows=rows,
        questions=list(questions),
        values=values,
        tool_calls=calls,
        verdicts=[score.parts["verdicts"] for column in seen for score in column],
        made_by={name: repr(reward) for name, reward in rewards.items()},
        endings=dict(Counter(item.stop_reason or "unknown" for item in trajectories)),
        trajectories=kept,
    )
