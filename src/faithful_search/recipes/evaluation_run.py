"""One evaluation: a policy, two, or an agent on one set of questions, with its results in `--out`.

While it runs, its rollouts are kept in `OUT/unfinished`, so that it can be resumed.
"""

import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import msgspec

from .. import suites
from ..errors import ConfigError, UnreachableError
from ..hub.models import weights_of
from ..inference.base import Sampling
from ..judges import Judge
from ..judges.arguments import JudgeArguments
from ..measure.evaluating import default_rewards, evaluate_agent, evaluate_policy
from ..measure.evaluation import Evaluation, differences
from ..measure.ledger import answers_kept, same_settings
from ..measure.probes import Blanked
from ..measure.writing import make_folder, write_metrics
from ..rollout import Engine
from ..tasks import Task, load_tasks
from ..tools.toolbox import Toolbox
from ..trajectory import write_jsonl
from ..wire.cache import key_of
from .evaluation_models import Models
from .evaluation_record import record_of
from .evaluation_settings import (
    EvaluationArguments,
    as_trained,
    for_agent,
    within_the_same_bounds,
)

UNFINISHED = "unfinished"
"""The folder within --out for the rollouts of an evaluation that has not ended yet."""
SETTINGS, RESULTS = "settings.json", "metrics.json"
"""The files that a finished evaluation leaves: what it was made with, and its results."""
FEW_VALID = 0.5
"""Below this share of rollouts with a valid format, the policy was probably trained in another
dialect.
"""


def prepare(script: EvaluationArguments) -> None:
    """Make `OUT/unfinished` ready: empty, or with the rollouts of the evaluation that is resumed.

    Raises `ConfigError` when it holds rollouts, but the evaluation is not resumed, or they were
    made with other settings.
    """
    out = Path(script.out)
    folder = out / UNFINISHED
    if script.overwrite or not has_rollouts(out):
        shutil.rmtree(folder, ignore_errors=True)
    elif not script.resume:
        raise ConfigError(
            f"{out} holds an evaluation that ended before its time: --resume goes on with it, "
            "--overwrite starts anew"
        )
    settings = settings_of_evaluation(script)
    same_settings(folder / SETTINGS, settings["rollouts"], "--overwrite starts anew", "rollouts")
    write_metrics(folder / SETTINGS, settings)


def has_rollouts(out: Path) -> bool:
    """Whether an evaluation in this folder has begun and not ended. One that failed before its
    first rollout leaves empty files.
    """
    return any(path.stat().st_size for path in (out / UNFINISHED).glob("*/*.jsonl"))


def settings_of_evaluation(script: EvaluationArguments) -> dict[str, dict[str, Any]]:
    """The settings that an evaluation depends on: those of its `rollouts`, and of its `judge`, who
    is asked after them. Another judge can score those of a run whose judge failed.
    """
    of_the_judge = {field.name for field in fields(JudgeArguments)}
    may_change = {
        "out",
        "resume",
        "overwrite",
        "threads",
        "concurrency",
        "prices",
        "estimate",
        "generation_batch",
        "trust_remote_code",
        *of_the_judge,
    }
    questions = [[task.id, task.question, task.answers] for task in tasks_of(script)]
    policies = [name for name in (script.model, script.compare_with) if name is not None]
    values = asdict(script)
    rollouts = {name: value for name, value in values.items() if name not in may_change}
    rollouts["questions"] = key_of(tasks=questions)[:16]
    rollouts["weights"] = [weights_of(name) for name in policies]
    return {
        "rollouts": rollouts,
        "judge": {name: values[name] for name in ("judge", "judge_model", "judge_url")},
    }


def tasks_of(script: EvaluationArguments) -> list[Task]:
    """The questions, each repeated for its samples."""
    tasks = load_tasks(script.questions, script.split, script.limit, seed=script.sample_seed)
    return [task for task in tasks for _ in range(script.samples)]


def measure(
    script: EvaluationArguments, judge: Judge | None, models: Models
) -> dict[str, Evaluation]:
    """Measure an agent, one policy or two on the questions, and write the results to --out.

    Returns the evaluations by name, that of `script.subject` last. Where episodes failed, nothing
    is written, since the evaluation has not ended.
    """
    out = Path(script.out)
    scripts = filled_in(script)
    evaluations = {}
    for name, settings in scripts.items():
        evaluations[name] = evaluate(name, settings, judge, models)
    measured = evaluations[script.subject]
    if measured.failed:
        return evaluations
    metrics: dict[str, Any] = {name: run.to_dict() for name, run in evaluations.items()}
    write_rollouts(out / "trajectories.jsonl", measured)
    if script.compare_with is not None:
        compared = evaluations[script.compare_with]
        write_rollouts(out / "trajectories_compared.jsonl", compared)
        metrics["differences"] = differences(compared, measured)
    metrics |= record_of(scripts[script.subject], judge, models)
    # The results come last: a folder that has them has all else, too
    shutil.move(out / UNFINISHED / SETTINGS, out / SETTINGS)
    write_metrics(out / RESULTS, metrics)
    shutil.rmtree(out / UNFINISHED)
    return evaluations


def filled_in(script: EvaluationArguments) -> dict[str, EvaluationArguments]:
    """The flags of each policy that is measured, or of the agent, with values for those that were
    left open.
    """
    if script.agent_name is not None:
        return {script.subject: for_agent(script)}
    policies = [name for name in (script.compare_with, script.model) if name is not None]
    scripts = {name: as_trained(script, name) for name in policies}
    return within_the_same_bounds(scripts)


def write_rollouts(path: Path, evaluation: Evaluation) -> None:
    """Write the rollouts without their token ids."""
    rollouts = (
        msgspec.structs.replace(rollout, tokens=None) for rollout in evaluation.trajectories
    )
    write_jsonl(path, rollouts)


def evaluate(
    name: str, script: EvaluationArguments, judge: Judge | None, models: Models
) -> Evaluation:
    """Measure one policy, or the agent, on the questions. `default_rewards` says what is measured.
    `script` has values for all flags that depend on who is measured.
    """
    from transformers import set_seed

    subfolder = "compared" if name == script.compare_with else "policy"
    folder = make_folder(Path(script.out) / UNFINISHED / subfolder)
    # Another seed after each interruption: the same draws must not come twice
    finished = 0
    for path in folder.glob("*.jsonl"):
        finished += len(path.read_bytes().splitlines())
    set_seed(script.seed + finished)
    dialect = cast(str, script.dialect)
    tasks = tasks_of(script)
    facts = suites.facts_are_known(script.questions)
    rewards = default_rewards(dialect, judge, facts=facts, tasks=tasks)
    with toolbox_of(script) as toolbox, answers_kept(judge, folder):
        tools = Blanked(toolbox, script.blank) if script.blank else toolbox
        if script.agent_name is not None:
            agent = models.agent(script, tools)
            evaluation = evaluate_agent(
                agent, tasks, rewards, tools.names, controls=script.controls, folder=folder
            )
        else:
            engine = Engine(
                models.generator(name, script),
                tools,
                dialect,
                script.limits(cast(int, script.total_tokens)),
                Sampling(temperature=script.temperature),
            )
            evaluation = evaluate_policy(
                engine, tasks, rewards, controls=script.controls, folder=folder
            )
        failed_calls = [
            f"{tool} {stats.errors} of {stats.calls}"
            for tool, stats in toolbox.stats().items()
            if stats.errors
        ]
    # Rollouts that ran out of turns say nothing about the format
    format_scores = [
        rollout.meta["scores"]["valid_format"]
        for rollout in evaluation.trajectories
        if rollout.stop_reason != "turn_limit"
    ]
    valid = sum(format_scores)
    if format_scores and valid < FEW_VALID * len(format_scores):
        print(
            f"{valid:g} of {len(format_scores)} rollouts of {name} that ended have a valid format "
            f"of dialect {dialect!r}: was it trained in another one? Its figures mean little then; "
            "see --dialect",
            file=sys.stderr,
        )
    if failed_calls:
        failures = ", ".join(failed_calls)
        print(f"calls of {name} that ended in an error: {failures}", file=sys.stderr)
    return evaluation


def toolbox_of(script: EvaluationArguments) -> Toolbox:
    """The tools of the policy or agent that is measured; none for an agent that needs none."""
    return script.toolbox() if script.needs_tools else Toolbox([])


def refuse_failed(evaluations: Iterable[Evaluation]) -> None:
    """Raise `UnreachableError` where the agent's endpoint did not finish episodes."""
    unfinished = [evaluation for evaluation in evaluations if evaluation.failed]
    if unfinished:
        failed = sum(evaluation.failed for evaluation in unfinished)
        raise UnreachableError(
            f"{failed} episodes got no answer from the endpoint and count nowhere "
            f"({unfinished[0].failed_because}): the same command with --resume asks for them again"
        )
