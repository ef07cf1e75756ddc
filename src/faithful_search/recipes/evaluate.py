"""Measure a policy on held-out questions: answers, format, citations, evidence sensitivity, tools.

Two policies can be measured on the same questions and compared. While an evaluation runs, its
rollouts are kept in `OUT/unfinished`, so that it can be resumed.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from .. import dialects, suites
from ..bundled import bundled_policy
from ..errors import ConfigError
from ..escape import printable
from ..flags import check_least, flag
from ..hub.models import BOUNDS, SEEN, trained_with, weights_of
from ..inference.base import Sampling
from ..judges import Judge
from ..judges.arguments import JudgeArguments
from ..measure import report
from ..measure.behaviour import tool_counts
from ..measure.controls import QUESTIONS
from ..measure.evaluation import Evaluation, differences
from ..measure.ledger import answers_kept, same_settings
from ..measure.probes import Blanked
from ..measure.suite import default_rewards, evaluate_policy
from ..measure.writing import results_folder, write_metrics
from ..rollout import Engine
from ..rollout.arguments import EnvironmentArguments
from ..tasks import Task, load_tasks
from ..training.refusing import check_dtype, check_files, check_folder, check_model, checked
from ..training.starting import owned, parse_recipe, run_recipe
from ..trajectory import write_jsonl
from ..wire.cache import key_of

UNFINISHED = "unfinished"
"""The folder within --out for the rollouts of an evaluation that has not ended yet."""
SETTINGS = "settings.json"
FEW_VALID = 0.5
"""Below this share of rollouts with a valid format, the policy was probably trained in another
dialect.
"""


@dataclass
class EvaluationArguments(EnvironmentArguments, JudgeArguments):
    """Which policy is measured, on which questions, and who judges."""

    # `as_trained` fills in those of the next ten flags that are left open
    dialect: str | None = flag(  # type: ignore[assignment]
        None, "Dialect of the policy. By default the one it was trained in, else pou."
    )
    observation_tokens: int | None = flag(  # type: ignore[assignment]
        None,
        "Maximum number of tokens in a tool response; 0 for no limit. By default as the policy was "
        "trained.",
    )
    force_answer: bool | None = flag(  # type: ignore[assignment]
        None, "Force an answer after the last turn. By default as the policy was trained."
    )
    verify: bool | None = flag(  # type: ignore[assignment]
        None,
        "Let the agent check its answers (dialect pokee). By default as the policy was trained.",
    )
    kept_responses: int | None = flag(  # type: ignore[assignment]
        None,
        "Number of the last tool responses that the policy sees; 0 for all. By default as it was "
        "trained.",
    )
    turns: int | None = flag(  # type: ignore[assignment]
        None,
        "Maximum number of turns in an episode. By default as the policy was trained, else 10.",
    )
    turn_tokens: int | None = flag(  # type: ignore[assignment]
        None, "Maximum number of tokens in a turn. By default as the policy was trained, else 256."
    )
    total_tokens: int | None = flag(
        None,
        "Maximum number of tokens in an episode after the prompt. By default as the policy was "
        "trained, else 1024.",
    )
    search_top_k: int | None = flag(  # type: ignore[assignment]
        None,
        "Number of passages that a search returns. By default as the policy was trained, else 3.",
    )
    triples: str | None = flag(  # type: ignore[assignment]
        None,
        "Facts of the tool knowledge_graph: 'world', a file, 'wikidata' or 'none'. By default "
        "'world' if the dialect has the tool.",
    )
    model: str = flag(
        "tiny",
        "Policy to measure: the directory or Hub id of a model or an adapter, or 'tiny' (bundled).",
    )
    compare_with: str | None = flag(
        None, "Policy to compare --model with, on the same questions. By default none."
    )
    questions: str = flag(
        "world", "Questions to ask: 'world' (bundled), a local file or a dataset on the Hub."
    )
    split: str = flag("validation", "Split of the questions to use.")
    limit: int | None = flag(None, "Number of questions to ask. By default all.")
    sample_seed: int | None = flag(
        None, "Random seed for drawing the questions. By default the first ones are asked."
    )
    controls: int = flag(
        QUESTIONS,
        "Number of questions to ask again without their evidence, and in changed worlds.",
    )
    blank: str | None = flag(
        None, "Text that replaces every title and text of the evidence. By default none does."
    )
    temperature: float = flag(0.0, "Sampling temperature. 0 is greedy.")
    samples: int = flag(1, "Number of rollouts for each question.")
    out: str = flag("outputs/evaluate", "Folder to write metrics.json and trajectories.jsonl to.")
    resume: bool = flag(False, "Continue the evaluation that was interrupted in --out.")
    overwrite: bool = flag(False, "Delete an earlier evaluation in --out.")
    seed: int = flag(0, "Random seed of the sampling.")
    dtype: str = flag("float32", "Data type of the weights.")
    threads: int = flag(0, "Number of CPU threads. 0 takes as many as there are idle cores.")
    trust_remote_code: bool = flag(False, "Allow a policy to run the Python code beside it.")


def main(argv: Sequence[str] | None = None, recipe: str = "") -> dict[str, Any]:
    """Run the recipe with these arguments, by default those of the command line. Returns the
    evaluations as JSON types, by policy.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    check(arguments)  # before torch is imported
    from ..inference.loading import choose_threads

    script = parse(arguments)
    out = Path(script.out)
    with owned(out, resume=(out / UNFINISHED).exists(), overwrite=script.overwrite):
        script.threads = choose_threads(script.threads)
        prepare(out / UNFINISHED, script)
        results = compare(script)
        shutil.rmtree(out / UNFINISHED)
        return results


def check(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for mistakes in the flags that can be seen without importing torch."""
    flags = checked(EvaluationArguments, argv, None, ())
    script: EvaluationArguments = flags.script
    check_script(script)
    check_files(questions=[script.questions], corpus=[script.corpus])
    check_model(script.model, script.dialect)
    check_model(script.compare_with, script.dialect, "compare_with")
    is_unfinished = (Path(script.out) / UNFINISHED).exists()
    check_folder(script.out, is_unfinished, script.overwrite)
    flags.announce()


def check_script(script: EvaluationArguments) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    if script.compare_with == script.model:
        raise ConfigError(f"--compare_with {script.model} is the policy itself: name another one")
    check_least(script, limit=1, controls=0, samples=1, threads=0, generation_batch=1, seed=0)
    check_dtype(script.dtype)


def parse(argv: Sequence[str] | None = None) -> EvaluationArguments:
    """The values of the flags. Raises `ConfigError` for values that are not allowed."""
    [script] = parse_recipe((EvaluationArguments,), argv)
    check_script(script)
    return script


def prepare(folder: Path, script: EvaluationArguments) -> None:
    """Make the folder of the rollouts ready: empty, or with those of the evaluation that is
    resumed.

    Raises `ConfigError` when it holds rollouts, but the evaluation is not resumed, or they were
    made with other settings.
    """
    # A run that failed before its first rollout leaves empty files
    has_rollouts = any(path.stat().st_size for path in folder.glob("*/*.jsonl"))
    if script.overwrite or not has_rollouts:
        shutil.rmtree(folder, ignore_errors=True)
    elif not script.resume:
        raise ConfigError(
            f"{folder.parent} holds an evaluation that ended before its time: --resume goes on "
            "with it, --overwrite starts anew"
        )
    # The judge may change, since it is asked after the rollouts: another judge can score those of a
    # run whose judge failed
    may_change = {
        "out",
        "resume",
        "overwrite",
        "threads",
        "generation_batch",
        "trust_remote_code",
        *(field.name for field in fields(JudgeArguments)),
    }
    questions = [[task.id, task.question, task.answers] for task in tasks_of(script)]
    policies = [name for name in (script.model, script.compare_with) if name is not None]
    settings = {
        **{name: value for name, value in asdict(script).items() if name not in may_change},
        "questions": key_of(tasks=questions)[:16],
        "weights": [weights_of(name) for name in policies],
    }
    same_settings(folder / SETTINGS, settings, "--overwrite starts anew")
    write_metrics(folder / SETTINGS, settings)


def tasks_of(script: EvaluationArguments) -> list[Task]:
    """The questions, each repeated for its samples."""
    tasks = load_tasks(script.questions, script.split, script.limit, seed=script.sample_seed)
    return [task for task in tasks for _ in range(script.samples)]


def compare(script: EvaluationArguments) -> dict[str, Any]:
    """Measure one policy or two; write the results to --out and print them."""
    out = Path(script.out)
    judge = script.load_judge()
    names = [name for name in (script.compare_with, script.model) if name is not None]
    scripts = within_the_same_bounds({name: as_trained(script, name) for name in names})
    evaluations = {name: evaluate(name, settings, judge) for name, settings in scripts.items()}
    results = {name: evaluation.to_dict() for name, evaluation in evaluations.items()}
    metrics: dict[str, Any] = dict(results)
    policy = evaluations[script.model]
    write_rollouts(out / "trajectories.jsonl", policy)
    if script.compare_with is None:
        table = report.table(policy, None, (script.model, ""))
    else:
        compared = evaluations[script.compare_with]
        write_rollouts(out / "trajectories_compared.jsonl", compared)
        metrics["differences"] = differences(compared, policy)
        table = report.table(compared, policy, (script.compare_with, script.model))
    metrics["script"] = asdict(scripts[script.model])
    write_metrics(out / "metrics.json", metrics)
    print(table)
    for name, evaluation in evaluations.items():
        print(f"\ncalls of {name}: {printable(_calls(evaluation))}")
    return results


def write_rollouts(path: Path, evaluation: Evaluation) -> None:
    """Write the rollouts without their token ids."""
    rollouts = (
        msgspec.structs.replace(rollout, tokens=None) for rollout in evaluation.trajectories
    )
    write_jsonl(path, rollouts)


def evaluate(name: str, script: EvaluationArguments, judge: Judge | None = None) -> Evaluation:
    """Measure one policy on the questions. `default_rewards` says what is measured."""
    from transformers import AutoModelForCausalLM, set_seed

    from ..inference.loading import open_model
    from ..inference.transformers import TransformersGenerator

    subfolder = "policy" if name == script.model else "compared"
    folder = results_folder(Path(script.out) / UNFINISHED / subfolder)
    # Another seed after each interruption: the same draws must not come twice
    finished = sum(len(path.read_bytes().splitlines()) for path in folder.glob("*.jsonl"))
    set_seed(script.seed + finished)
    # `as_trained` has filled in the flags that were left open
    dialect = cast(str, script.dialect)
    total_tokens = cast(int, script.total_tokens)
    model, tokenizer = open_model(
        AutoModelForCausalLM,
        bundled_policy(name, dialect),
        dtype=script.dtype,
        trust_remote_code=script.trust_remote_code,
    )
    generator = TransformersGenerator(model, tokenizer, script.generation_batch)
    with script.toolbox() as toolbox:
        engine = Engine(
            generator,
            Blanked(toolbox, script.blank) if script.blank else toolbox,
            dialect,
            script.limits(total_tokens),
            Sampling(temperature=script.temperature),
        )
        rewards = default_rewards(dialect, judge, facts=suites.facts_are_known(script.questions))
        with answers_kept(judge, folder):
            evaluation = evaluate_policy(
                engine, tasks_of(script), rewards, controls=script.controls, folder=folder
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


def as_trained(script: EvaluationArguments, policy: str) -> EvaluationArguments:
    """The flags with values for those that were left open: the policy's own from its training where
    they are known, else the usual ones.

    With another dialect than the policy's own, none of its own values is used.
    """
    names = (*SEEN, *BOUNDS)
    trained = trained_with(bundled_policy(policy, script.dialect or "pou"), names)
    if script.dialect not in (None, trained.get("dialect")):
        trained = {}
    usual = {field.name: field.default for field in fields(EnvironmentArguments)}
    usual["total_tokens"] = 1024
    settings = {}
    unusual = []
    for name in names:
        if getattr(script, name) is not None:
            continue
        settings[name] = trained.get(name, usual[name])
        if name in trained and trained[name] != usual[name]:
            unusual.append(f"--{name} {trained[name]}")
    if unusual:
        print(f"as {policy} was trained: {', '.join(unusual)}")
    script = replace(script, **settings)
    if script.triples:
        return script
    searches_only = dialects.load(cast(str, script.dialect)).search_tool is not None
    return replace(script, triples="none" if searches_only else "world")


def within_the_same_bounds(
    scripts: dict[str, EvaluationArguments],
) -> dict[str, EvaluationArguments]:
    """The flags of policies that are compared, with the same limits: the larger one of each."""
    widest = {name: max(getattr(script, name) for script in scripts.values()) for name in BOUNDS}
    return {policy: replace(script, **widest) for policy, script in scripts.items()}


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
