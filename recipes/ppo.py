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

The reward and all flags are those of `veritas.py`; `--advantages ppo` does the same in the other recipes, with their
rewards and groups of rollouts.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import veritas
from trl import ModelConfig

from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.starting import run_recipe

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "ppo_tiny.yaml"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    return veritas.run(parse(given), "recipes/ppo.py", given)


def parse(
    argv: Sequence[str] | None = None,
) -> tuple[veritas.VeritasArguments, SearchGRPOConfig, ModelConfig]:
    """As `veritas.parse`, with PPO's embedded default."""
    return veritas.parse(argv, DEFAULT_CONFIG)


if __name__ == "__main__":
    run_recipe(main)
