"""Train a search agent with Proof-of-Use rewards: question → rollouts → GRPO → evaluation before and after, with plots.

```
accelerate launch recipes/pou.py                # the embedded default: tiny policy, bundled world
accelerate launch recipes/pou.py --config recipes/configs/pou_tiny_b2.yaml --output_dir outputs/b2
accelerate launch recipes/pou.py --config recipes/configs/pou_smollm2-135m.yaml \\
    --model_name_or_path DIR --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus corpus.jsonl.gz
```

Every flag of `PoUArguments`, TRL's `GRPOConfig` and `ModelConfig` may stand in the YAML file or on the command line,
which wins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, ProgressCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, ModelConfig, get_peft_config

from faithful_search.analysis import plots
from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.evaluation import report
from faithful_search.evaluation.suite import Evaluation, evaluate_policy
from faithful_search.hub import model_card
from faithful_search.inference.base import Sampling
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import Mix, answer_only_mix, pou_mix
from faithful_search.rollout import Engine
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import load_tasks
from faithful_search.tools import Toolbox
from faithful_search.training.callbacks import StepLine
from faithful_search.training.config import parse_recipe
from faithful_search.training.grpo import SearchGRPOTrainer

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pou_tiny.yaml"


@dataclass
class PoUArguments(EnvironmentArguments):
    """What is asked, with which tools, and how it is rewarded."""

    questions: str = field(default="world", metadata={"help": "'world' (bundled), a local file or a Hub dataset"})
    eval_questions: str = field(default="world", metadata={"help": "held-out questions, likewise"})
    eval_split: str = field(default="validation", metadata={"help": "split of the held-out questions"})
    eval_limit: int = field(default=200, metadata={"help": "how many held-out questions; 0 skips the evaluations"})
    reward: str = field(default="pou", metadata={"help": "'pou', or 'answer_only' (format and answer, the baseline)"})
    budget: int = field(default=1, metadata={"help": "B_max: steps perturbed per rollout; 0 leaves R_pt out"})
    support: bool = field(default=True, metadata={"help": "false leaves R_ans out (α = 0)"})
    alpha_fixed: float | None = field(default=None, metadata={"help": "a fixed α; 0.5 is the paper's static mix"})
    alpha_beta: float = field(default=0.9, metadata={"help": "EMA of the batch's correctness"})
    alpha_tau: float = field(default=0.5, metadata={"help": "correctness at which α is one half"})
    alpha_kappa: float = field(default=10.0, metadata={"help": "sharpness of α's transition"})
    advantages: str = field(default="trl", metadata={"help": "'trl', 'group_relative' or 'leave_one_out'"})
    threads: int = field(default=0, metadata={"help": "CPU threads of this process; 0 leaves torch's own choice"})
    resume: bool = field(default=False, metadata={"help": "go on from the last checkpoint in output_dir"})


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    script, args, model_args = parse(argv)
    if script.threads:
        torch.set_num_threads(script.threads)
    set_seed(args.seed)
    toolbox = script.toolbox()
    trainer = build_trainer(script, args, model_args, toolbox)
    main_process = PartialState().is_main_process
    out = Path(args.output_dir)

    before = evaluate(trainer, script) if main_process and script.eval_limit else None
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir) if script.resume else None)
    trainer.save_model()
    if not main_process:
        return {}
    trainer.processing_class.save_pretrained(out)
    after = evaluate(trainer, script) if script.eval_limit else None
    return finish(out, script, args, model_args, trainer, before, after)


def parse(argv: Sequence[str] | None = None) -> tuple[PoUArguments, GRPOConfig, ModelConfig]:
    """The three dataclasses; without `--config` the embedded default's file is read."""
    script, args, model_args = parse_recipe((PoUArguments, GRPOConfig, ModelConfig), argv, DEFAULT_CONFIG)
    if script.reward not in ("pou", "answer_only"):
        raise ConfigError(f"unknown reward {script.reward!r}; there are: pou, answer_only")
    return script, args, model_args


def build_reward(script: PoUArguments) -> Mix:
    """Proof-of-Use's objective, one of its ablations, or the baseline without it."""
    if script.reward == "answer_only":
        return answer_only_mix()
    return pou_mix(
        max(script.budget, 1),
        sensitivity=script.budget > 0,
        alpha=script.alpha_fixed if script.support else 0.0,
        beta=script.alpha_beta,
        tau=script.alpha_tau,
        kappa=script.alpha_kappa,
    )


def build_trainer(
    script: PoUArguments, args: GRPOConfig, model_args: ModelConfig, toolbox: Toolbox
) -> SearchGRPOTrainer:
    """The trainer, its policy loaded from a directory, the Hub, or the package ("tiny")."""
    source = str(tiny_policy()) if model_args.model_name_or_path == "tiny" else model_args.model_name_or_path
    dtype = getattr(torch, model_args.dtype or "float32")
    trainer = SearchGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(source, dtype=dtype),
        processing_class=AutoTokenizer.from_pretrained(source),
        args=args,
        train_dataset=load_tasks(script.questions),
        toolbox=toolbox,
        reward=build_reward(script),
        dialect=script.dialect,
        limits=script.limits(args.max_completion_length),
        advantages=script.advantages,
        trajectory_file=Path(args.output_dir) / "trajectories.jsonl",
        generation_batch=script.generation_batch,
        peft_config=get_peft_config(model_args),
    )
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(StepLine())
    return trainer


def evaluate(trainer: SearchGRPOTrainer, script: PoUArguments) -> Evaluation:
    """Greedy episodes on the held-out questions."""
    generator = TransformersGenerator(
        trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class, script.generation_batch
    )
    engine = Engine(generator, trainer.toolbox, script.dialect, trainer.engine.limits, Sampling(temperature=0.0))
    tasks = load_tasks(script.eval_questions, script.eval_split, script.eval_limit)
    return evaluate_policy(engine, tasks)


def finish(
    out: Path,
    script: PoUArguments,
    args: GRPOConfig,
    model_args: ModelConfig,
    trainer: SearchGRPOTrainer,
    before: Evaluation | None,
    after: Evaluation | None,
) -> dict[str, Any]:
    """Plots, metrics, the table and the model card."""
    history = trainer.state.log_history
    (out / "history.json").write_text(json.dumps(history, indent=1), encoding="utf-8")
    plots.reward_curves(history, out / "rewards.png")
    plots.tool_curves(history, out / "tools.png")
    metrics = {
        "before": before and before.to_dict(),
        "after": after and after.to_dict(),
        "script": asdict(script),
        "model": model_args.model_name_or_path,
        "seed": args.seed,
        "steps": trainer.state.global_step,
    }
    report.write_metrics(out / "metrics.json", metrics)
    if before and after:
        print(report.table(before, after, ("before", "after")))
    model_card(
        out,
        base_model=str(model_args.model_name_or_path),
        dialect=script.dialect,
        recipe="recipes/pou.py",
        command="accelerate launch recipes/pou.py " + " ".join(sys.argv[1:]),
        metrics={"before": metrics["before"], "after": metrics["after"]} if before and after else None,
        config={**asdict(script), "learning_rate": args.learning_rate, "max_steps": args.max_steps, "seed": args.seed},
        tools=trainer.toolbox.names,
    )
    print(f"\npolicy, card, trajectories, plots and metrics are in {out}")
    return metrics


if __name__ == "__main__":
    main()
