"""What the verdict term costs: a training step of the bundled tiny policy with it and without, on
the same rollouts.

Rollouts of the bundled world are sampled and probed once; then loss and gradient of the whole batch
are computed over and over, in batches of `--batch` rollouts: TRL's loss alone, and with the term,
taking turns. Beside the seconds stand the tokens that go through the model, padding included.
Sampling, rewards and the optimizer's own step are left out: they are the same with and without.

    python benchmarks/bench_verdict_term.py [--rollouts 16] [--budget 1] [--repeats 3] [--threads 1]
    python benchmarks/bench_verdict_term.py --budget -1     # all eligible steps
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from faithful_search.bundled import tiny_policy
from faithful_search.rewards import EvidenceSensitivity, pou_mix
from faithful_search.tasks import load_tasks
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.starting import RunArguments

GROUP, TOKENS, SEED = 8, 768, 7


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--rollouts", type=int, default=16, help=f"a multiple of {GROUP}")
    parser.add_argument(
        "--batch", type=int, default=8, help="rollouts of a forward and backward pass"
    )
    parser.add_argument("--budget", type=int, default=1, help="probed steps of a rollout; -1: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    script = RunArguments(turns=6, turn_tokens=96, search_top_k=3)
    with tempfile.TemporaryDirectory() as out, script.toolbox() as toolbox:
        trainer = build(out, script, toolbox, given)
        batches = sampled(trainer, given)
        probes = sum(len(own) for batch in batches for own in batch["probes"])
        print(
            f"{given.rollouts} rollouts, {probes} probes, {given.threads} threads, median of {given.repeats} runs\n"
        )
        print("| loss | CPU s | tokens read | passes |\n|---|---|---|---|")
        taken: dict[str, list[float]] = {}
        for _ in range(given.repeats):
            for name, weight in (("TRL's", 0.0), ("with the verdict term", 1.0)):
                trainer.args.verdict_weight = weight
                seconds, seen = step(trainer, batches)
                taken.setdefault(name, []).append(seconds)
                if len(taken[name]) == given.repeats:
                    median = statistics.median(taken[name])
                    print(f"| {name} | {median:.2f} | {seen['tokens']:,} | {seen['passes']} |")
        plain, term = (statistics.median(own) for own in taken.values())
        print(f"\nA step takes {term / plain:.2f} times as long.")


def build(
    out: str, script: RunArguments, toolbox: Any, given: argparse.Namespace
) -> SearchGRPOTrainer:
    """A trainer of the bundled policy in float32."""
    path = tiny_policy("pou")
    args = SearchGRPOConfig(
        out,
        per_device_train_batch_size=given.batch,
        gradient_accumulation_steps=given.rollouts // given.batch,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        use_cpu=True,
        bf16=False,
        beta=0.0,
        activation_checkpointing=False,
        report_to="none",
        seed=SEED,
        verdict_weight=1.0,
    )
    budget = None if given.budget < 0 else given.budget
    return SearchGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        args,
        load_tasks("world", "train", limit=max(1, given.rollouts // GROUP)),
        processing_class=AutoTokenizer.from_pretrained(path),
        toolbox=toolbox,
        reward=pou_mix(sensitivity=EvidenceSensitivity(budget, centre=True)),
        limits=script.limits(TOKENS),
    )


def sampled(trainer: SearchGRPOTrainer, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The batches of one step, as training splits them; groups stay together here."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = given.rollouts // given.batch
    rows = [dict(trainer.train_dataset[number // GROUP]) for number in range(given.rollouts)]
    output = trainer._generate_and_score_completions(rows)
    return [
        {
            name: column[start : start + given.batch]
            if isinstance(column, list) or column.ndim
            else column
            for name, column in output.items()
            if isinstance(column, torch.Tensor | list)
        }
        for start in range(0, given.rollouts, given.batch)
    ]


def step(trainer: SearchGRPOTrainer, batches: list[dict[str, Any]]) -> tuple[float, Counter[str]]:
    """Seconds of this process for the gradient of all batches, and what went through the model."""
    seen: Counter[str] = Counter()
    hook = trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(tokens=kwargs["input_ids"].numel(), passes=1),
        with_kwargs=True,
    )
    trainer.model.zero_grad()
    start = time.process_time()
    for batch in batches:
        trainer.compute_loss(trainer.model, batch).backward()
    seconds = time.process_time() - start
    hook.remove()
    return seconds, seen


if __name__ == "__main__":
    main()
