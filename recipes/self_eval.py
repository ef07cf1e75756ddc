# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent that scores itself: trajectory-level self-evaluation, evaluated before and
after.

```
accelerate launch recipes/self_eval.py              # the embedded default: a tiny policy that can score, bundled world
accelerate launch recipes/self_eval.py --config scripts/studies/self_eval_tiny_answer_only.yaml   # the paper's baseline
accelerate launch recipes/self_eval.py --config recipes/configs/self_eval_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus http://127.0.0.1:8000    # QLoRA, as in the paper
```

The policy is its own judge: it must have learnt to score first, see
`scripts/policies/sft_self_eval_tiny.yaml`. Every flag of `SelfEvalArguments`, `SearchGRPOConfig` and
TRL's `ModelConfig` may stand in the YAML file or on the command line, which wins.
"""

from faithful_search.recipes.self_eval import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
