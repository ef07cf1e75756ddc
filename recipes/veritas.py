# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent with VERITAS's rewards: exact match first, faithfulness warmed up; evaluated
before and after.

```
accelerate launch recipes/veritas.py            # the embedded default: a tiny policy that sees one response at a time
accelerate launch recipes/veritas.py --config recipes/configs/veritas_tiny.yaml    # one that sees all, with curriculum
accelerate launch recipes/veritas.py --judge nli --judge_model outputs/rm_tiny    # from recipes/reward_model.py
accelerate launch recipes/veritas.py --config recipes/configs/veritas_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus http://127.0.0.1:8000 \\
    --judge_url http://127.0.0.1:8001           # passages and judge are served
```

Every flag of `VeritasArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

from faithful_search.recipes.veritas import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
