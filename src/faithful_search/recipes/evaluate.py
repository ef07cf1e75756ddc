"""Measure a policy on held-out questions: answers, format, citations, evidence sensitivity, tools.

Two policies can be measured on the same questions and compared, and a policy or an agent that needs
no training on all question sets of a suite.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..escape import printable
from ..measure import report
from ..measure.behaviour import error_rows, tool_counts
from ..measure.evaluation import Evaluation
from ..training.refusing import check_files, check_folder, check_model, checked
from ..training.starting import owned, parse_recipe, run_recipe
from .evaluation_estimate import estimate
from .evaluation_models import Models
from .evaluation_record import used_line
from .evaluation_run import UNFINISHED, measure, prepare, refuse_failed
from .evaluation_settings import EvaluationArguments, check_script, of_set
from .evaluation_suite import load_suite, measure_suite, sets_of


def main(argv: Sequence[str] | None = None, recipe: str = "") -> dict[str, Any]:
    """Run the recipe with these arguments, by default those of the command line. Returns the
    evaluations as JSON types, by policy, or those of a suite by set.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    check(arguments)  # before torch is imported
    from ..inference.loading import choose_threads

    script = parse(arguments)
    if script.estimate:
        scripts, tasks = sets_of(script)
        left_out = () if script.suite is None else load_suite(script).left_out
        print(estimate(scripts, tasks, left_out))
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
        if models.chat is not None:  # an agent asked it; a policy is not a chat model
            print(f"\n{used_line(script, models)}")
        refuse_failed(results.values())
        return {name: evaluation.to_dict() for name, evaluation in results.items()}


def check(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for mistakes in the flags that can be seen without importing torch."""
    flags = checked(EvaluationArguments, argv)
    script: EvaluationArguments = flags.script
    check_script(script)
    check_files(questions=[script.questions], corpus=[script.corpus])
    if script.endpoint is None:
        check_model(script.model, script.dialect)
    check_model(script.compare_with, script.dialect, "compare_with")
    if script.suite is not None:
        for question_set in load_suite(script).sets:
            of_set(script, question_set)  # raises for a set that cannot be measured
    if not script.estimate:  # which writes nothing
        check_folder(script.out, may_go_on(script), script.overwrite)
    flags.announce()


def parse(argv: Sequence[str] | None = None) -> EvaluationArguments:
    """The values of the flags. Raises `ConfigError` for values that are not allowed."""
    [script] = parse_recipe((EvaluationArguments,), argv)
    check_script(script)
    return script


def may_go_on(script: EvaluationArguments) -> bool:
    """Whether an earlier evaluation in --out may be continued.

    One that was interrupted may, if `prepare` finds the same settings. One that has ended may only
    with --suite and --resume: the suite may have new sets, and the others are read again.
    """
    is_unfinished = (Path(script.out) / UNFINISHED).exists()
    is_resumed_suite = script.suite is not None and script.resume
    return is_unfinished or is_resumed_suite


def table_of(script: EvaluationArguments, evaluations: dict[str, Evaluation]) -> str:
    """What is printed of one policy or two: their results, their errors, and their calls."""
    measured = evaluations[script.subject]
    if script.compare_with is None:
        results = report.evaluation_table(measured, None, (script.subject, ""))
    else:
        compared = evaluations[script.compare_with]
        results = report.evaluation_table(compared, measured, (script.compare_with, script.model))
    parts = [results]
    errors = {name: run.errors for name, run in evaluations.items() if run.errors is not None}
    if errors:
        parts.append(report.aligned(error_rows(errors)))
    for name, evaluation in evaluations.items():
        parts.append(f"calls of {name}: {printable(_calls(evaluation))}")
    return "\n\n".join(parts)


def _calls(evaluation: Evaluation) -> str:
    """The number of calls of each tool; names that the policy made up come last."""
    counts = dict.fromkeys(evaluation.tool_calls, 0)  # tools that were never called are shown, too
    counts.update(tool_counts(evaluation.trajectories))
    parts = []
    for tool, count in counts.items():
        note = "" if tool in evaluation.tool_calls else " (unknown)"
        parts.append(f"{tool} {count}{note}")
    return ", ".join(parts)


if __name__ == "__main__":
    run_recipe(main)
