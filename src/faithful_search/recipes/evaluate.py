"""Measure a policy on held-out questions: answers, format, citations, evidence sensitivity, tools.

Two policies can be measured on the same questions and compared, and one on all question sets of a
suite. While an evaluation runs, its rollouts are kept in `OUT/unfinished`, so that it can be
resumed; each set of a suite is an evaluation in a folder of its own, `OUT/SET`.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from .. import suites
from ..errors import ConfigError, DataError, UnreachableError
from ..escape import as_line, printable
from ..hub.models import weights_of
from ..inference.base import Sampling
from ..judges import Judge
from ..judges.arguments import JudgeArguments
from ..measure import report
from ..measure.behaviour import error_rows, tool_counts
from ..measure.evaluation import Evaluation, differences
from ..measure.ledger import answers_kept, same_settings
from ..measure.probes import Blanked
from ..measure.sets import SuiteResults
from ..measure.suite import default_rewards, evaluate_agent, evaluate_policy
from ..measure.writing import results_folder, write_metrics
from ..rollout import Engine
from ..suites import QuestionSet, Suite
from ..tasks import Task, load_tasks
from ..tools.toolbox import Toolbox
from ..training.refusing import check_files, check_folder, check_model, checked
from ..training.starting import owned, parse_recipe, run_recipe
from ..trajectory import write_jsonl
from ..wire.cache import key_of
from .evaluation_estimate import estimate
from .evaluation_models import Models
from .evaluation_record import record_of, used_line
from .evaluation_settings import (
    EvaluationArguments,
    as_trained,
    check_script,
    for_agent,
    of_set,
    within_the_same_bounds,
)

UNFINISHED = "unfinished"
"""The folder within --out for the rollouts of an evaluation that has not ended yet."""
SETTINGS, RESULTS = "settings.json", "metrics.json"
FEW_VALID = 0.5
"""Below this share of rollouts with a valid format, the policy was probably trained in another
dialect.
"""


def main(argv: Sequence[str] | None = None, recipe: str = "") -> dict[str, Any]:
    """Run the recipe with these arguments, by default those of the command line. Returns the
    evaluations as JSON types, by policy, or those of a suite by set.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    check(arguments)  # before torch is imported
    from ..inference.loading import choose_threads

    script = parse(arguments)
    if script.estimate:
        print(estimate(*sets_of(script)))
        return {}
    out = Path(script.out)
    with owned(out, resume=may_go_on(script), overwrite=script.overwrite):
        script.threads = choose_threads(script.threads)
        if script.suite is not None:
            return measure_suite(script, load_suite(script))
        prepare(script)
        models = Models()
        results = measure(script, script.load_judge(), models)
        print(table_of(script, results))
        if models.chat is not None:
            print(f"\n{used_line(script, models)}")
        refuse_failed(results.values())
        return {name: evaluation.to_dict() for name, evaluation in results.items()}


def check(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for mistakes in the flags that can be seen without importing torch."""
    flags = checked(EvaluationArguments, argv, None, ())
    script: EvaluationArguments = flags.script
    check_script(script)
    check_files(questions=[script.questions], corpus=[script.corpus])
    if script.endpoint is None:
        check_model(script.model, script.dialect)
    check_model(script.compare_with, script.dialect, "compare_with")
    if script.suite is not None:
        for question_set in load_suite(script).sets:
            of_set(script, question_set)
    check_folder(script.out, may_go_on(script), script.overwrite)
    flags.announce()


def parse(argv: Sequence[str] | None = None) -> EvaluationArguments:
    """The values of the flags. Raises `ConfigError` for values that are not allowed."""
    [script] = parse_recipe((EvaluationArguments,), argv)
    check_script(script)
    return script


def load_suite(script: EvaluationArguments) -> Suite:
    """The suite that the flags name."""
    return suites.load_suite(
        cast(str, script.suite), None if script.data is None else Path(script.data)
    )


def may_go_on(script: EvaluationArguments) -> bool:
    """Whether the evaluation in --out, if there is one, may be gone on with: `prepare` says what
    that needs. One that has ended is only read again, and only a suite has sets that it may lack.
    """
    is_unfinished = (Path(script.out) / UNFINISHED).exists()
    return is_unfinished or (script.suite is not None and script.resume)


def prepare(script: EvaluationArguments) -> None:
    """Make `OUT/unfinished` ready: empty, or with the rollouts of the evaluation that is resumed.

    Raises `ConfigError` when it holds rollouts, but the evaluation is not resumed, or they were
    made with other settings.
    """
    out = Path(script.out)
    folder = out / UNFINISHED
    # A run that failed before its first rollout leaves empty files
    has_rollouts = any(path.stat().st_size for path in folder.glob("*/*.jsonl"))
    if script.overwrite or not has_rollouts:
        shutil.rmtree(folder, ignore_errors=True)
    elif not script.resume:
        raise ConfigError(
            f"{out} holds an evaluation that ended before its time: --resume goes on with it, "
            "--overwrite starts anew"
        )
    settings = settings_of(script)
    same_settings(folder / SETTINGS, settings["rollouts"], "--overwrite starts anew", "rollouts")
    write_metrics(folder / SETTINGS, settings)


def settings_of(script: EvaluationArguments) -> dict[str, dict[str, Any]]:
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


def sets_of(
    script: EvaluationArguments,
) -> tuple[dict[str, EvaluationArguments], dict[str, Sequence[Task]]]:
    """The flags and the questions of each set of the suite, or of --questions alone."""
    parts = {script.questions: script}
    if script.suite is not None:
        parts = {part.name: of_set(script, part) for part in load_suite(script).sets}
    scripts = {name: filled_in(part)[script.subject] for name, part in parts.items()}
    return scripts, {name: tasks_of(part) for name, part in parts.items()}


def measure_suite(script: EvaluationArguments, suite: Suite) -> dict[str, Any]:
    """Measure a policy on the question sets of a suite, one after the other. Write the results of
    each to its folder, and those of all to `OUT/metrics.json`; print them.

    Sets that are finished are read from their folders. A set whose questions cannot be read is left
    out, which is said.
    """
    out = Path(script.out)
    started = out / UNFINISHED  # says that not all sets are measured
    if started.exists() and not (script.resume or script.overwrite):
        raise ConfigError(
            f"{out} holds the evaluation of a suite that ended before its time: --resume goes on "
            "with it, --overwrite starts anew"
        )
    if script.overwrite:
        shutil.rmtree(started, ignore_errors=True)
        for question_set in suite.sets:
            if (out / question_set.name / SETTINGS).exists():
                shutil.rmtree(out / question_set.name)
    results_folder(started)
    judge = script.load_judge()
    models = Models()
    evaluations: dict[str, Evaluation] = {}
    left_out = list(suite.left_out)
    for question_set in suite.sets:
        settings = replace(of_set(script, question_set), overwrite=False, resume=True)
        try:
            tasks_of(settings)
        except DataError as error:
            left_out.append(f"{question_set.name}: {error}")
            print(f"left out: {as_line(left_out[-1])}", file=sys.stderr)
            continue
        evaluations[question_set.name] = measure_set(question_set, settings, judge, models)
    if not evaluations:
        raise DataError(f"none of the question sets can be read: {'; '.join(left_out)}")
    results = SuiteResults(evaluations, left_out, script.samples)
    title = f"{suite.name}: {script.subject}, seed {script.seed}"
    if judge is not None:
        title = f"{title}, judge {judge.name}"
    print(f"{printable(title)}\n\n{results}")
    if models.chat is not None:
        print(f"\n{used_line(script, models)}")
    refuse_failed(evaluations.values())
    metrics = {"suite": suite.name, "about": suite.about, **results.to_dict()}
    write_metrics(out / RESULTS, {**metrics, **record_of(script, judge, models)})
    shutil.rmtree(started)
    return metrics


def measure_set(
    question_set: QuestionSet,
    script: EvaluationArguments,
    judge: Judge | None,
    models: Models,
) -> Evaluation:
    """Measure a policy on one set of a suite, or read what was measured before."""
    out = Path(script.out)
    if (out / RESULTS).exists():
        settings = settings_of(script)
        for part in ("rollouts", "judge"):
            same_settings(out / SETTINGS, settings[part], "--overwrite starts anew", part)
        print(f"{question_set.name}: measured before, in {out}", flush=True)
        metrics = json.loads((out / RESULTS).read_text(encoding="utf-8"))
        return Evaluation.from_dict(metrics[script.subject])
    prepare(script)
    questions = len(tasks_of(script))
    print(f"{question_set.name}: {questions} questions, results in {out}", flush=True)
    return measure(script, judge, models)[script.subject]


def measure(
    script: EvaluationArguments, judge: Judge | None, models: Models
) -> dict[str, Evaluation]:
    """Measure an agent, one policy or two on the questions, and write the results to --out.

    Returns the evaluations by name, that of `script.subject` last. Where episodes failed, they are
    not written, since the evaluation has not ended.
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
    names = [name for name in (script.compare_with, script.model) if name is not None]
    return within_the_same_bounds({name: as_trained(script, name) for name in names})


def refuse_failed(evaluations: Iterable[Evaluation]) -> None:
    """Raise `UnreachableError` where the agent's endpoint did not finish episodes."""
    failed = sum(evaluation.failed for evaluation in evaluations)
    if failed:
        raise UnreachableError(
            f"the endpoint did not answer in {failed} episodes, which count nowhere: the same "
            "command with --resume asks for them again"
        )


def table_of(script: EvaluationArguments, evaluations: dict[str, Evaluation]) -> str:
    """What is printed of one policy or two: their results, their errors, and their calls."""
    measured = evaluations[script.subject]
    if script.compare_with is None:
        results = report.table(measured, None, (script.subject, ""))
    else:
        compared = evaluations[script.compare_with]
        results = report.table(compared, measured, (script.compare_with, script.model))
    parts = [results]
    errors = {name: run.errors for name, run in evaluations.items() if run.errors is not None}
    if errors:
        parts.append(report.aligned(error_rows(errors)))
    for name, evaluation in evaluations.items():
        parts.append(f"calls of {name}: {printable(_calls(evaluation))}")
    return "\n\n".join(parts)


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
    folder = results_folder(Path(script.out) / UNFINISHED / subfolder)
    # Another seed after each interruption: the same draws must not come twice
    finished = sum(len(path.read_bytes().splitlines()) for path in folder.glob("*.jsonl"))
    set_seed(script.seed + finished)
    dialect = cast(str, script.dialect)
    tasks = tasks_of(script)
    rewards = default_rewards(dialect, judge, facts=suites.facts_are_known(script.questions))
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
        failed = [
            f"{tool} {stats.errors} of {stats.calls}"
            for tool, stats in toolbox.stats().items()
            if stats.errors
        ]
    # Rollouts that ran out of turns say nothing about the format
    valid = [
        rollout.meta["scores"]["valid_format"]
        for rollout in evaluation.trajectories
        if rollout.stop_reason != "turn_limit"
    ]
    if valid and sum(valid) < FEW_VALID * len(valid):
        print(
            f"{sum(valid):g} of {len(valid)} rollouts of {name} that ended have a valid format of "
            f"dialect {dialect!r}: was it trained in another one? Its figures mean little then; "
            "see --dialect",
            file=sys.stderr,
        )
    if failed:
        print(f"calls of {name} that ended in an error: {', '.join(failed)}", file=sys.stderr)
    return evaluation


def toolbox_of(script: EvaluationArguments) -> Toolbox:
    """The tools of what is measured; none for an agent that works without."""
    return script.toolbox() if script.needs_tools else Toolbox([])


def _calls(evaluation: Evaluation) -> str:
    """The number of calls of each tool; names that the policy made up come last."""
    counts = {**dict.fromkeys(evaluation.tool_calls, 0), **tool_counts(evaluation.trajectories)}
    parts = []
    for tool, count in counts.items():
        note = "" if tool in evaluation.tool_calls else " (unknown)"
        parts.append(f"{tool} {count}{note}")
    return ", ".join(parts)


if __name__ == "__main__":
    run_recipe(main)
