# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Distil a judge: labelled (information, thought) pairs → a small model that says what the labeller
would say.

```
accelerate launch recipes/reward_model.py --config recipes/configs/rm_tiny.yaml     # a tiny judge, on the bundled world
accelerate launch recipes/reward_model.py --config recipes/configs/rm_mpnet.yaml --pairs claims.jsonl.gz more.jsonl.gz
accelerate launch recipes/reward_model.py --config recipes/configs/rm_qwen2.5-14b.yaml --pairs outputs/labels
```

Every flag of `RewardModelArguments`, TRL's `SFTConfig` and `ModelConfig` may stand in the YAML file
or on the command line, which wins. What comes out is used with `--judge nli --judge_model DIR`, or
`--judge generator` for that head.
"""

from faithful_search.recipes.reward_model import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
