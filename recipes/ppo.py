# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent with VERITAS's rewards by PPO, as the paper does: a value of every state, and its advantages.

```
accelerate launch recipes/ppo.py                # the embedded default: tiny Search-R1 policy, bundled world
accelerate launch recipes/ppo.py --gae_over_turns true --step_rewards true
accelerate launch recipes/ppo.py --config recipes/configs/ppo_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus http://127.0.0.1:8000 \\
    --judge_url http://127.0.0.1:8001           # passages and judge are served
```

Every flag of `PPOArguments`, `PPOConfig` and TRL's `ModelConfig` may stand in the YAML file or on the command line,
which wins. The reward and its flags are those of `veritas.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trl import ModelConfig
from veritas import VeritasArguments, build_reward, check

from faithful_search.analysis.results import leave
from faithful_search.hub import takes_over
from faithful_search.training.config import parse_recipe, run_recipe
from faithful_search.training.ppo import PPOConfig, PPOSettings, SearchPPOTrainer
from faithful_search.training.runs import trained

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "ppo_tiny.yaml"


@dataclass
class PPOArguments(PPOSettings, VeritasArguments):
    """What is asked, how it is rewarded and when, who judges, and how advantages are made of it."""

    @property
    def ppo(self) -> PPOSettings:
        """PPO's own settings."""
        return PPOSettings(**{item.name: getattr(self, item.name) for item in fields(PPOSettings)})


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    flags = script, args, _ = parse(given)
    repository = takes_over(args)
    with trained(
        flags, lambda judge: build_reward(script, args, judge), kind=SearchPPOTrainer, ppo=script.ppo
    ) as record:
        return leave(record, "recipes/ppo.py", given, repository)


def parse(argv: Sequence[str] | None = None) -> tuple[PPOArguments, PPOConfig, ModelConfig]:
    """The three dataclasses; without `--config` the embedded default's file is read.

    Raises:
        ConfigError: for settings that contradict each other.
    """
    script, args, model_args = parse_recipe((PPOArguments, PPOConfig, ModelConfig), argv, DEFAULT_CONFIG)
    check(script)
    return script, args, model_args


if __name__ == "__main__":
    run_recipe(main)
