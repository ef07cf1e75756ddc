# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Measure a policy on held-out questions: answers, format, citations, evidence sensitivity, tools.

Each figure comes with n and a 95 % interval.

```
python recipes/evaluate.py --policy outputs/pou --split test
python recipes/evaluate.py --policy outputs/pou --blank content --output_dir outputs/blank  # no evidence
python recipes/evaluate.py --policy outputs/pou --config recipes/configs/eval_negative_tool.yaml  # one tool is useless
python recipes/evaluate.py --policy outputs/pou --config recipes/configs/eval_unseen_tool.yaml    # one it never saw
python recipes/evaluate.py --policy outputs/pou --compare_with tiny --output_dir outputs/two  # side by side
python recipes/evaluate.py --policy outputs/veritas --config recipes/configs/eval_veritas_pairs.yaml  # Search-R1
```
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
from transformers import AutoModelForCausalLM, set_seed

from faithful_search import dialects
from faithful_search.bundled import bundled_policy
from faithful_search.errors import ConfigError
from faithful_search.flags import check_least, flag
from faithful_search.hub.models import BOUNDS, SEEN, trained_with, weights_of
from faithful_search.inference.base import Sampling
from faithful_search.inference.loading import choose_threads, open_model
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.judges import Judge
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.measure import report
from faithful_search.measure.behaviour import tool_counts
from faithful_search.measure.controls import QUESTIONS
from faithful_search.measure.evaluation import Evaluation, differences
from faithful_search.measure.ledger import answers_kept, same_settings
from faithful_search.measure.probes import Blanked
from faithful_search.measure.suite import default_rewards, evaluate_policy
from faithful_search.measure.writing import results_folder, write_metrics
from faithful_search.rollout import Engine
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import WORLD, Task, load_tasks
from faithful_search.text import printable
from faithful_search.training.policies import check_dtype
from faithful_search.training.starting import owned, parse_recipe, run_recipe
from faithful_search.trajectory import write_jsonl
from faithful_search.wire.cache import key_of

UNFINISHED = "unfinished"
"""Folder of the rollouts of an evaluation that has not ended yet."""
SETTINGS = "settings.json"
FEW_VALID = 0.5
"""Share of rollouts with a valid format below which the dialect is probably not the policy's."""


@dataclass
class EvaluationArguments(EnvironmentArguments, JudgeArguments):
    """Which policy, on which questions, and who judges."""

    # left open, what follows is as the policy was trained
    dialect: str | None = flag(None, "how the policy writes")
    observation_tokens: int | None = flag(None, "tokens a tool response may have; 0: no limit")
    force_answer: bool | None = flag(None, "open an answer where its last turn gave none")
    verify: bool | None = flag(None, "the agent checks its answers (dialect pokee)")
    kept_responses: int | None = flag(None, "the last tool responses that it sees; 0: all")
    turns: int | None = flag(
        None, "reasoning steps an episode may have; 10 where that is not known"
    )
    turn_tokens: int | None = flag(None, "tokens a turn may have; else 256")
    total_tokens: int | None = flag(None, "tokens of an episode after the prompt; else 1024")
    search_top_k: int | None = flag(None, "pieces of evidence a query returns; else 3")
    triples: str | None = flag(
        None, "as in the other recipes; none: those that the dialect can use"
    )
    policy: str = flag("tiny", "directory or Hub id, an adapter's too; 'tiny': bundled")
    compare_with: str | None = flag(None, "a second policy, measured on the same questions first")
    questions: str = flag("world", "'world' (bundled), a local file or a Hub dataset")
    split: str = flag("validation", "split of the questions")
    limit: int | None = flag(None, "how many questions; all without it", aliases=["--eval_limit"])
    sample_seed: int | None = flag(
        None, "draws the limit questions at random by this seed; none: the first ones"
    )
    controls: int = flag(
        QUESTIONS, "questions asked again without their evidence and in changed worlds; 0: none"
    )
    blank: str | None = flag(None, "what every title and text of the evidence then reads")
    temperature: float = flag(0.0, "0 is greedy")
    samples: int = flag(1, "rollouts per question")
    output_dir: str = flag("outputs/evaluate", "metrics.json and trajectories.jsonl go here")
    resume: bool = flag(False, "go on with the evaluation that was interrupted in output_dir")
    overwrite_output_dir: bool = flag(
        False, "begin anew where output_dir holds an earlier evaluation"
    )
    seed: int = flag(0, "of the sampling")
    dtype: str = flag("float32", "of the weights while running")
    threads: int = flag(0, "CPU threads; 0: as many as there are idle cores")
    trust_remote_code: bool = flag(
        False, "run the Python code that lies beside a policy, where it needs some"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    [script] = parse_recipe((EvaluationArguments,), argv)
    if script.compare_with == script.policy:
        raise ConfigError(f"--compare_with {script.policy} is the policy itself: name another one")
    check_least(script, limit=1, controls=0, samples=1, threads=0, generation_batch=1, seed=0)
    check_dtype(script.dtype)
    out = Path(script.output_dir)
    with owned(out, resume=(out / UNFINISHED).exists(), overwrite=script.overwrite_output_dir):
        script.threads = choose_threads(script.threads)
        prepare(out / UNFINISHED, script)
        results = compare(script)
        shutil.rmtree(out / UNFINISHED)
        return results


def prepare(folder: Path, script: EvaluationArguments) -> None:
    """The folder of rollouts that are not scored yet, empty or with those of an interrupted evaluation.

    Raises:
        ConfigError: when it holds rollouts that are not to be continued, or of another evaluation.
    """
    begun = any(
        path.stat().st_size for path in folder.glob("*/*.jsonl")
    )  # not a run that failed before it asked
    if script.overwrite_output_dir or not begun:
        shutil.rmtree(folder, ignore_errors=True)
    elif not script.resume:
        raise ConfigError(
            f"{folder.parent} holds an evaluation that ended before its time: --resume true goes on with it, "
            "--overwrite_output_dir true starts anew"
        )
    # A judge is asked after the rollouts: another one can score those of a run whose judge failed
    free = {
        "output_dir",
        "resume",
        "overwrite_output_dir",
        "threads",
        "generation_batch",
        "trust_remote_code",
    }
    free |= {field.name for field in fields(JudgeArguments)}
    tasks = asked(script)
    settings = {
        **{name: value for name, value in asdict(script).items() if name not in free},
        "questions": key_of(tasks=[[task.id, task.question, task.answers] for task in tasks])[:16],
        "weights": [
            weights_of(name) for name in (script.policy, script.compare_with) if name is not None
        ],
    }
    same_settings(folder / SETTINGS, settings, "--overwrite_output_dir true starts anew")
    write_metrics(folder / SETTINGS, settings)


def asked(script: EvaluationArguments) -> list[Task]:
    """The questions, each as often as it has samples."""
    tasks = load_tasks(script.questions, script.split, script.limit, seed=script.sample_seed)
    return [task for task in tasks for _ in range(script.samples)]


def compare(script: EvaluationArguments) -> dict[str, Any]:
    """One policy or two, measured, written down and printed."""
    names = [name for name in (script.compare_with, script.policy) if name is not None]
    judge, out = script.load_judge(), Path(script.output_dir)
    scripts = within_the_same_bounds({name: as_trained(script, name) for name in names})
    found = {name: evaluate(name, own, judge) for name, own in scripts.items()}
    results = {name: evaluation.to_dict() for name, evaluation in found.items()}
    before, after, two = found[names[0]], found[names[-1]], len(names) == 2
    changes = {"differences": differences(before, after)} if two else {}
    for name, file in (
        (script.policy, "trajectories.jsonl"),
        (script.compare_with, "trajectories_compared.jsonl"),
    ):
        if name is not None:
            write_jsonl(
                out / file,
                (msgspec.structs.replace(item, tokens=None) for item in found[name].trajectories),
            )
    write_metrics(
        out / "metrics.json", {**results, **changes, "script": asdict(scripts[script.policy])}
    )
    print(report.table(before, after if two else None, (names[0], names[-1])))
    for name, evaluation in found.items():
        print(f"\ncalls of {name}: {printable(_calls(evaluation))}")
    return results


def evaluate(name: str, script: EvaluationArguments, judge: Judge | None = None) -> Evaluation:
    """One policy on the questions; see `default_rewards` for what is measured."""
    which = "policy" if name == script.policy else "compared"
    folder = results_folder(Path(script.output_dir) / UNFINISHED / which)
    # What is sampled after an interruption must not be the draws of before
    set_seed(
        script.seed + sum(len(path.read_bytes().splitlines()) for path in folder.glob("*.jsonl"))
    )
    source = bundled_policy(name, script.dialect)
    trusted = script.trust_remote_code
    model, tokenizer = open_model(
        AutoModelForCausalLM, source, dtype=script.dtype, trust_remote_code=trusted
    )
    generator = TransformersGenerator(model, tokenizer, script.generation_batch)
    with script.toolbox() as toolbox:
        engine = Engine(
            generator,
            Blanked(toolbox, script.blank) if script.blank else toolbox,
            script.dialect,
            script.limits(script.total_tokens),
            Sampling(temperature=script.temperature),
        )
        rewards = default_rewards(script.dialect, judge, facts=script.questions in WORLD)
        with answers_kept(judge, folder):
            found = evaluate_policy(
                engine, asked(script), rewards, controls=script.controls, folder=folder
            )
        failed = ", ".join(
            f"{tool} {of.errors} of {of.calls}" for tool, of in toolbox.stats().items() if of.errors
        )
    ended = [
        item.meta["scores"]["valid_format"]
        for item in found.trajectories
        if item.stop_reason != "turn_limit"
    ]
    if ended and sum(ended) < FEW_VALID * len(ended):
        print(
            f"{sum(ended):g} of {len(ended)} rollouts of {name} that ended have a valid format of dialect "
            f"{script.dialect!r}: was it trained in another one? Its figures mean little then; see --dialect",
            file=sys.stderr,
        )
    if failed:
        print(f"calls of {name} that ended in an error: {failed}", file=sys.stderr)
    return found


def as_trained(script: EvaluationArguments, policy: str) -> EvaluationArguments:
    """The script with what it leaves open as the policy was trained, and else as everywhere.

    Another dialect than the policy's own leaves nothing of how it was trained.
    """
    names = (*SEEN, *BOUNDS)
    trained = trained_with(bundled_policy(policy, script.dialect or "pou"), names)
    if script.dialect not in (None, trained.get("dialect")):
        trained = {}
    usual = {field.name: field.default for field in fields(EnvironmentArguments)} | {
        "total_tokens": 1024
    }
    found = {
        name: trained.get(name, usual[name]) for name in names if getattr(script, name) is None
    }
    if told := {
        name: value for name, value in found.items() if name in trained and value != usual[name]
    }:
        print(
            f"as {policy} was trained: {', '.join(f'--{name} {value}' for name, value in told.items())}"
        )
    script = replace(script, **found)
    alone = dialects.load(script.dialect).search_tool is not None
    return script if script.triples else replace(script, triples="none" if alone else "world")


def within_the_same_bounds(
    scripts: dict[str, EvaluationArguments],
) -> dict[str, EvaluationArguments]:
    """What is compared may write and read as much: the most that either was trained with."""
    widest = {name: max(getattr(script, name) for script in scripts.values()) for name in BOUNDS}
    return {policy: replace(script, **widest) for policy, script in scripts.items()}


def _calls(evaluation: Evaluation) -> str:
    """How often each tool was called, those that there are first, then names that the policy made up."""
    counts = {**dict.fromkeys(evaluation.tool_calls, 0), **tool_counts(evaluation.trajectories)}
    unknown = {tool: "" if tool in evaluation.tool_calls else " (unknown)" for tool in counts}
    return ", ".join(f"{tool} {count}{unknown[tool]}" for tool, count in counts.items())


if __name__ == "__main__":
    run_recipe(main)
