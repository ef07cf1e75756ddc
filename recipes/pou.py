# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent with Proof-of-Use rewards: question → rollouts → GRPO → evaluation before
and after, with plots.

```
accelerate launch recipes/pou.py                # the embedded default: tiny policy, bundled world
accelerate launch recipes/pou.py --config recipes/configs/pou_tiny_paper.yaml    # the paper's own form
accelerate launch recipes/pou.py --config recipes/configs/pou_smollm2-135m.yaml \\
    --model_name_or_path DIR --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus corpus.jsonl.gz
accelerate launch recipes/pou.py --config recipes/configs/pou_qwen2.5-7b.yaml \\
    --judge_url http://127.0.0.1:8000/v1 --judge_model NAME          # an LLM judges and writes the lures
python recipes/pou.py --config recipes/configs/pou_qwen2.5-7b.yaml --dry_run true    # its settings, two steps on a CPU
accelerate launch recipes/pou.py --use_peft true --lora_target_modules all-linear --save_merged true    # LoRA
```

Every flag of `PoUArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML file
or on the command line, which wins.
"""

from faithful_search.recipes.pou import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
