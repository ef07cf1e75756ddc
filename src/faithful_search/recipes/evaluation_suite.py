"""A suite of question sets, measured one after the other; each is an evaluation in a folder of its
own, `OUT/SET`, and `OUT/metrics.json` has them all with their macro means.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from .. import suites
from ..errors import ConfigError, DataError
from ..escape import as_line, printable
from ..judges import Judge
from ..measure.evaluation import Evaluation
from ..measure.ledger import same_settings
from ..measure.sets import SuiteResults
from ..measure.writing import make_folder, write_metrics
from ..suites import AgentLimits, QuestionSet, Suite
from ..tasks import Task
from .evaluation_models import Models
from .evaluation_record import record_of, used_line
from .evaluation_run import (
    RESULTS,
    SETTINGS,
    UNFINISHED,
    filled_in,
    has_rollouts,
    measure,
    prepare,
    refuse_failed,
    settings_of_evaluation,
    tasks_of,
)
from .evaluation_settings import EvaluationArguments, of_set, of_suite


def load_suite(script: EvaluationArguments) -> Suite:
    """The suite that the flags name."""
    data = None if script.data is None else Path(script.data)
    return suites.load_suite(cast(str, script.suite), data)


def sets_of(
    script: EvaluationArguments,
) -> tuple[dict[str, EvaluationArguments], dict[str, Sequence[Task]]]:
    """The flags and the questions of each set of the suite, or of --questions alone; both by the
    names of the sets.
    """
    unfilled = {script.questions: script}
    if script.suite is not None:
        suite = load_suite(script)
        script = of_suite(script, suite)
        unfilled = {question_set.name: of_set(script, question_set) for question_set in suite.sets}
    scripts: dict[str, EvaluationArguments] = {}
    tasks: dict[str, Sequence[Task]] = {}
    for name, settings in unfilled.items():
        scripts[name] = filled_in(settings)[script.subject]
        tasks[name] = tasks_of(settings)
    return scripts, tasks


def measure_suite(script: EvaluationArguments, suite: Suite) -> dict[str, Any]:
    """Measure a policy on the question sets of a suite, one after the other. Write the results of
    each to its folder, and those of all to `OUT/metrics.json`; print them.

    Sets that are finished are read from their folders. A set whose questions cannot be read is left
    out, which is said.
    """
    script = of_suite(script, suite)
    out = Path(script.out)
    mark = out / UNFINISHED  # a folder that is there as long as not all sets are measured
    folders = [out / question_set.name for question_set in suite.sets]
    has_begun = any((folder / RESULTS).exists() or has_rollouts(folder) for folder in folders)
    if mark.exists() and has_begun and not (script.resume or script.overwrite):
        raise ConfigError(
            f"{out} holds the evaluation of a suite that ended before its time: --resume goes on "
            "with it, --overwrite starts anew"
        )
    if script.overwrite:
        shutil.rmtree(mark, ignore_errors=True)
        for folder in folders:
            if (folder / SETTINGS).exists():
                shutil.rmtree(folder)
    make_folder(mark)
    judge = script.load_judge()
    models = Models()
    evaluations: dict[str, Evaluation] = {}
    left_out = list(suite.left_out)
    for question_set in suite.sets:
        # What --overwrite deletes is deleted by now: each set goes on from what its folder holds
        settings = replace(of_set(script, question_set), overwrite=False, resume=True)
        try:
            tasks_of(settings)  # raises where the questions cannot be read
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
    if script.agent_name is not None and script.endpoint is None and str(suite.agents):
        limits = AgentLimits(script.turns, script.turn_tokens, script.controls)
        title = f"{title}; agents have {limits}"
    print(f"{printable(title)}\n\n{results}")
    if models.chat is not None:
        print(f"\n{used_line(script, models)}")
    # Where episodes failed, the mark stays and nothing is written: --resume asks for them again
    refuse_failed(evaluations.values())
    metrics = {"suite": suite.name, "about": suite.about, **results.to_dict()}
    write_metrics(out / RESULTS, {**metrics, **record_of(script, judge, models)})
    shutil.rmtree(mark)
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
        settings = settings_of_evaluation(script)
        for part in ("rollouts", "judge"):
            same_settings(out / SETTINGS, settings[part], "--overwrite starts anew", part)
        print(f"{question_set.name}: measured before, in {out}", flush=True)
        metrics = json.loads((out / RESULTS).read_text(encoding="utf-8"))
        return Evaluation.from_dict(metrics[script.subject])
    prepare(script)
    questions = len(tasks_of(script))
    print(f"{question_set.name}: {questions} questions, results in {out}", flush=True)
    return measure(script, judge, models)[script.subject]
