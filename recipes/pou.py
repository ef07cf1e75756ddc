"""Train a search agent with Proof-of-Use rewards: question → rollouts → GRPO → evaluation before and after, with plots.

```
accelerate launch recipes/pou.py                # the embedded default: tiny policy, bundled world
accelerate launch recipes/pou.py --config recipes/configs/pou_tiny_b2.yaml --output_dir outputs/b2
accelerate launch recipes/pou.py --config recipes/configs/pou_smollm2-135m.yaml \\
    --model_name_or_path DIR --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus corpus.jsonl.gz
accelerate launch recipes/pou.py --config recipes/configs/pou_qwen2.5-7b.yaml \\
    --judge_url http://127.0.0.1:8000/v1 --judge_model NAME          # an LLM judges and writes the lures
```

Every flag of `PoUArguments`, TRL's `GRPOConfig` and `ModelConfig` may stand in the YAML file or on the command line,
which wins.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, ModelConfig, get_peft_config

from faithful_search.analysis import plots
from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.evaluation import report
from faithful_search.evaluation.suite import Evaluation, default_rewards, evaluate_rollouts, run_episodes
from faithful_search.hub import model_card
from faithful_search.inference.base import Sampling
from faithful_search.judges import Judge, Writer
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.condensing import Condensing
from faithful_search.rewards import AnswerSupport, Correctness, Mix, answer_only_mix, corpus_snippets, pou_mix
from faithful_search.rewards.perturbation import Passage
from faithful_search.rollout import Engine
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import load_tasks
from faithful_search.tools import Toolbox
from faithful_search.training.callbacks import StepLine
from faithful_search.training.config import model_init_kwargs, parse_recipe, run_recipe
from faithful_search.training.grpo import SearchGRPOTrainer

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pou_tiny.yaml"


@dataclass
class PoUArguments(EnvironmentArguments, JudgeArguments):
    """What is asked, with which tools, how it is rewarded, and who judges."""

    questions: str = field(default="world", metadata={"help": "'world' (bundled), a local file or a Hub dataset"})
    eval_questions: str = field(default="world", metadata={"help": "held-out questions, likewise"})
    eval_split: str = field(default="validation", metadata={"help": "split of the held-out questions"})
    eval_limit: int = field(default=200, metadata={"help": "how many held-out questions; 0 skips the evaluations"})
    reward: str = field(default="pou", metadata={"help": "'pou', or 'answer_only' (format and answer, the baseline)"})
    budget: int = field(default=1, metadata={"help": "B_max: steps perturbed per rollout; 0 leaves R_pt out"})
    snippets: int = field(
        default=0, metadata={"help": "corpus passages that replace evidence in R_pt; 0: the batch's other questions'"}
    )
    correctness: str = field(default="em", metadata={"help": "R_anc: 'em', 'f1', or 'judge' (after an EM short-cut)"})
    lures: str = field(default="template", metadata={"help": "who writes R_pt's lures: 'template' or 'judge'"})
    condense: bool = field(
        default=False, metadata={"help": "let the judge's model shorten pages and facts to what a query asks for"}
    )
    support: bool = field(default=True, metadata={"help": "false leaves R_ans out (α = 0)"})
    alpha_fixed: float | None = field(default=None, metadata={"help": "a fixed α; 0.5 is the paper's static mix"})
    alpha_beta: float = field(default=0.9, metadata={"help": "EMA of the batch's correctness"})
    alpha_tau: float = field(default=0.5, metadata={"help": "correctness at which α is one half"})
    alpha_kappa: float = field(default=10.0, metadata={"help": "sharpness of α's transition"})
    advantages: str = field(default="trl", metadata={"help": "'trl', 'group_relative' or 'leave_one_out'"})
    threads: int = field(default=0, metadata={"help": "CPU threads of this process; 0 leaves torch's own choice"})
    resume: bool = field(default=False, metadata={"help": "go on from the last checkpoint in output_dir"})


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    script, args, model_args = parse(given)
    if script.threads:
        torch.set_num_threads(script.threads)
    set_seed(args.seed)
    with script.toolbox(build_condenser(script)) as toolbox:
        trainer = build_trainer(script, args, model_args, toolbox)
        before = evaluate(trainer, script)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir) if script.resume else None)
        trainer.save_model()
        after = evaluate(trainer, script)
    if not PartialState().is_main_process:
        return {}
    return finish(script, args, model_args, trainer, before, after, given)


def parse(argv: Sequence[str] | None = None) -> tuple[PoUArguments, GRPOConfig, ModelConfig]:
    """The three dataclasses; without `--config` the embedded default's file is read.

    Raises:
        ConfigError: for settings that contradict each other.
    """
    script, args, model_args = parse_recipe((PoUArguments, GRPOConfig, ModelConfig), argv, DEFAULT_CONFIG)
    if script.reward not in ("pou", "answer_only"):
        raise ConfigError(f"unknown reward {script.reward!r}; there are: pou, answer_only")
    if script.correctness not in ("em", "f1", "judge"):
        raise ConfigError(f"unknown correctness {script.correctness!r}; there are: em, f1, judge")
    if script.condense and script.judge == "lexical":
        raise ConfigError("--condense true needs a judge with a model that writes: --judge endpoint, say")
    if script.lures not in ("template", "judge"):
        raise ConfigError(f"unknown lures {script.lures!r}; there are: template, judge")
    if script.judge == "lexical" and "judge" in (script.correctness, script.lures):
        raise ConfigError("--correctness judge and --lures judge need a judge with a model: --judge endpoint, say")
    if script.budget < 0:
        raise ConfigError(f"budget must be 0 (no R_pt) or more, not {script.budget}")
    asked = [script.questions, *([script.eval_questions] if script.eval_limit else [])]
    if "world" in (script.corpus, *asked) and {script.corpus, *asked} != {"world"}:
        raise ConfigError(
            f"questions {script.questions!r}, eval_questions {script.eval_questions!r}, corpus {script.corpus!r}: "
            "the bundled world and other data are mixed; give all three"
        )
    return script, args, model_args


def build_reward(script: PoUArguments) -> Mix:
    """Proof-of-Use's objective, one of its ablations, or the baseline without it.

    Raises:
        ConfigError: when the judge that is to write lures can only judge.
    """
    judge = script.load_judge()
    correctness = Correctness(script.correctness, judge=judge if script.correctness == "judge" else None)  # type: ignore[arg-type]
    if script.reward == "answer_only":
        return answer_only_mix(correctness)
    return pou_mix(
        max(script.budget, 1),
        support=AnswerSupport(judge) if judge else None,
        correctness=correctness,
        writer=_writer(judge, "--lures judge") if script.lures == "judge" else None,
        snippets=_snippets(script) if script.snippets else (),
        sensitivity=script.budget > 0,
        alpha=script.alpha_fixed if script.support else 0.0,
        beta=script.alpha_beta,
        tau=script.alpha_tau,
        kappa=script.alpha_kappa,
    )


def build_condenser(script: PoUArguments) -> Condensing | None:
    """What shortens pages and facts for the policy.

    Raises:
        ConfigError: when the judge that is to do it can only judge.
    """
    return Condensing(_writer(script.load_judge(), "--condense true")) if script.condense else None


def _snippets(script: PoUArguments) -> tuple[Passage, ...]:
    rows = ({"title": passage.title, "text": passage.text} for passage in script.corpus_passages())
    return corpus_snippets(rows, script.snippets)


def _writer(judge: Judge | None, asked: str) -> Writer:
    if not isinstance(judge, Writer):
        raise ConfigError(f"{asked} needs a judge that writes: --judge endpoint or generator")
    return judge


def build_trainer(
    script: PoUArguments, args: GRPOConfig, model_args: ModelConfig, toolbox: Toolbox
) -> SearchGRPOTrainer:
    """The trainer, its policy loaded from a directory, the Hub, or the package ("tiny")."""
    source = str(tiny_policy()) if model_args.model_name_or_path == "tiny" else str(model_args.model_name_or_path)
    args.model_init_kwargs = {**model_init_kwargs(model_args), **(args.model_init_kwargs or {})}
    trainer = SearchGRPOTrainer(
        model=source,
        processing_class=AutoTokenizer.from_pretrained(source, revision=model_args.model_revision),
        args=args,
        train_dataset=load_tasks(script.questions),
        toolbox=toolbox,
        reward=build_reward(script),
        dialect=script.dialect,
        limits=script.limits(args.max_completion_length or 0),
        advantages=script.advantages,
        trajectory_file=Path(args.output_dir) / "trajectories.jsonl",
        generation_batch=script.generation_batch,
        peft_config=get_peft_config(model_args),
    )
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(StepLine())
    return trainer


def evaluate(trainer: SearchGRPOTrainer, script: PoUArguments) -> Evaluation | None:
    """Greedy episodes on the held-out questions, shared out over the processes; scored by the main one."""
    if not script.eval_limit:
        return None
    state = PartialState()
    tasks = load_tasks(script.eval_questions, script.eval_split, script.eval_limit)
    own = tasks[state.process_index :: state.num_processes]
    engine = Engine(
        trainer.generator, trainer.toolbox, script.dialect, trainer.engine.limits, Sampling(temperature=0.0)
    )
    with trainer.accelerator.autocast():
        rollouts = gather_object(run_episodes(engine, own))
        if not state.is_main_process:
            return None
        order = [task.id for start in range(state.num_processes) for task in tasks[start :: state.num_processes]]
        rewards = {name: reward.bind(policy=trainer.generator) for name, reward in default_rewards().items()}
        return evaluate_rollouts(rollouts, order, rewards, trainer.toolbox.names)


def finish(
    script: PoUArguments,
    args: GRPOConfig,
    model_args: ModelConfig,
    trainer: SearchGRPOTrainer,
    before: Evaluation | None,
    after: Evaluation | None,
    argv: list[str],
) -> dict[str, Any]:
    """Metrics, the table and the model card, then the plots."""
    out = Path(args.output_dir)
    trainer.processing_class.save_pretrained(out)
    settings = {
        **asdict(script),
        "total_tokens": args.max_completion_length,
        "learning_rate": args.learning_rate,
        "max_steps": args.max_steps,
        "seed": args.seed,
    }
    results = {name: found.to_dict() for name, found in (("before", before), ("after", after)) if found is not None}
    metrics = {
        **results,
        "settings": settings,
        "model": model_args.model_name_or_path,
        "steps": trainer.state.global_step,
    }
    report.write_metrics(out / "metrics.json", metrics)
    history = [{key: _finite(value) for key, value in row.items()} for row in trainer.state.log_history]
    (out / "history.json").write_text(json.dumps(history, indent=1), encoding="utf-8")
    model_card(
        out,
        base_model=str(model_args.model_name_or_path),
        dialect=script.dialect,
        recipe="recipes/pou.py",
        command=f"accelerate launch recipes/pou.py {shlex.join(argv)}".strip(),
        metrics=results or None,
        config=settings,
        tools=trainer.toolbox.names,
        dataset=script.eval_questions,
    )
    if before and after:
        print(f"\n{report.table(before, after, ('before', 'after'))}")
    plots.reward_curves(history, out / "rewards.png")
    plots.tool_curves(history, out / "tools.png")
    print(f"\npolicy, card, trajectories, plots and metrics are in {out}")
    return metrics


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    run_recipe(main)
