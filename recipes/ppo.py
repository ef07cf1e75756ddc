# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent with VERITAS's rewards by PPO, as the paper does: a value of every state,
and its advantages.

```
accelerate launch recipes/ppo.py                # the embedded default: tiny Search-R1 policy, bundled world
accelerate launch recipes/ppo.py --gae_over_turns true --step_rewards true
accelerate launch recipes/ppo.py --config recipes/configs/ppo_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus http://127.0.0.1:8000 \\
    --judge_url http://127.0.0.1:8001           # passages and judge are served
```

The reward and all flags are those of `veritas.py`; `--advantages ppo` does the same in the other
recipes, with their rewards and groups of rollouts.
"""

from faithful_search.recipes.ppo import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
