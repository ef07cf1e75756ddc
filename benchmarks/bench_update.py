"""What an update costs: each estimator's beside TRL's GRPO, on the same rollouts of the bundled
tiny policy.

Rollouts of the bundled world are sampled once. Then, in a process of its own for each estimator,
advantages are made of their scores, and loss, gradient and optimizer's step of the whole batch
computed. TRL's own is one padded pass; ours go in passes by length. Sampling and rewards are left
out: they are the same for all.

    python benchmarks/bench_update.py [--rollouts 16] [--repeats 3] [--threads 1] [--only trl turns
    ppo]
"""

import argparse
import json
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from faithful_search.bundled import tiny_policy
from faithful_search.rewards import answer_only_mix
from faithful_search.tasks import load_tasks
from faithful_search.training.arguments import PPO, SearchGRPOConfig
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.ppo import SearchPPOTrainer
from faithful_search.training.starting import RunArguments

GROUP, TOKENS, SEED = 8, 768, 7
UPDATES: dict[str, dict[str, Any]] = {
    "trl": {},
    "group_relative": {"advantages": "group_relative"},
    "leave_one_out": {"advantages": "leave_one_out"},
    "turns": {"advantages": "turns"},
    "llds": {"llds": 0.1},
    "ppo": {"advantages": PPO},
    "ppo, own trunk": {"advantages": PPO, "value_trunk": True},
}


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--rollouts", type=int, default=16, help=f"a multiple of {GROUP}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=list(UPDATES), choices=list(UPDATES))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.child:
        print(json.dumps(measured(*given.child, given)))
        return
    with tempfile.TemporaryDirectory() as out:
        own, padded = sample(Path(out) / "batch.pt", given)
        print(
            f"{given.rollouts} rollouts, {own:,} own tokens ({padded:,} with prompts, tools and padding), ",
            end="",
        )
        print(f"{given.threads} threads, median of {given.repeats} runs\n")
        print("| update | CPU s | own tokens a second | peak memory, MiB |\n|---|---|---|---|")
        for name in given.only:
            child = [sys.executable, *sys.argv, "--child", name, str(Path(out) / "batch.pt")]
            done = subprocess.run(child, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| {name} | {found['seconds']:.2f} | {own / found['seconds']:.0f} | {found['peak']:.0f} |"
            )


def build(out: str, toolbox: Any, given: argparse.Namespace, **own: Any) -> SearchGRPOTrainer:
    """A trainer of the bundled policy in float32, whose whole batch is one update."""
    args = SearchGRPOConfig(
        out,
        per_device_train_batch_size=given.rollouts,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        model_init_kwargs={"dtype": "float32"},
        use_cpu=True,
        bf16=False,
        beta=0.0,
        activation_checkpointing=False,
        report_to="none",
        seed=SEED,
        **own,
    )
    kind = SearchPPOTrainer if args.advantages == PPO else SearchGRPOTrainer
    tasks = load_tasks("world", "train", limit=max(1, given.rollouts // GROUP))
    limits = RunArguments(turns=6, turn_tokens=96).limits(TOKENS)
    path = str(tiny_policy("pou"))
    return kind(path, args, tasks, toolbox=toolbox, reward=answer_only_mix(), limits=limits)


def sample(path: Path, given: argparse.Namespace) -> tuple[int, int]:
    """Sample the rollouts and keep them there; their own tokens, and all of the batch's."""
    with RunArguments(search_top_k=3).toolbox() as toolbox:
        trainer = build(str(path.parent), toolbox, given)
        trainer.model.train()
        rows = [dict(trainer.train_dataset[number // GROUP]) for number in range(given.rollouts)]
        output = trainer._generate_and_score_completions(rows)
    path.write_bytes(pickle.dumps((output, trainer.rollouts)))
    return int((output["turn_numbers"] > 0).sum()), output["prompt_ids"].numel() + output[
        "completion_ids"
    ].numel()


def measured(name: str, path: str, given: argparse.Namespace) -> dict[str, float]:
    """Median seconds of an update, and the process's largest memory."""
    output, rollouts = pickle.loads(Path(path).read_bytes())  # our own, of a moment ago
    with RunArguments(search_top_k=3).toolbox() as toolbox, tempfile.TemporaryDirectory() as out:
        trainer = build(out, toolbox, given, **UPDATES[name])
        trainer.rollouts = rollouts
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        optimizer = trainer.create_optimizer()
        seconds = [
            update(trainer, dict(output), optimizer, name == "trl")
            for _ in range(given.repeats + (name == "llds"))
        ]
    seconds = seconds[-given.repeats :]  # the term is of the batch before, which the first has not
    return {
        "seconds": statistics.median(seconds),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def update(trainer: SearchGRPOTrainer, batch: dict[str, Any], optimizer: Any, plain: bool) -> float:
    """Seconds of this process for advantages, gradient and step."""
    start = time.process_time()
    batch |= trainer._estimated(trainer.rollouts, batch)
    if plain:  # TRL's own passes and loss
        trainer._get_per_token_logps_and_entropies = (
            GRPOTrainer._get_per_token_logps_and_entropies.__get__(trainer)
        )
        loss = GRPOTrainer.compute_loss(trainer, trainer.model, batch)
    else:
        loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.process_time() - start


if __name__ == "__main__":
    main()
