# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Rejection sampling: a policy answers its training questions several times, and is trained on the
rollouts that are right and rest on their evidence.

```
python recipes/rejection.py                                         # the tiny policy that knows answers by heart
python recipes/rejection.py --config recipes/configs/rejection_qwen2.5-7b.yaml --questions train.jsonl.gz \\
    --corpus http://HOST:8000
```

Every flag of `RejectionArguments` may stand in the YAML file or on the command line; the latter
wins. Flags behind `--` are those of `recipes/sft.py`.
"""

from faithful_search.recipes.rejection import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
