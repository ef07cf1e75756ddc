# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Measure a policy on held-out questions: answers, format, citations, evidence sensitivity, tools.

Each figure comes with n and a 95 % interval.

```
python recipes/evaluate.py --model outputs/pou --split test
python recipes/evaluate.py --model outputs/pou --blank content --out outputs/blank  # no evidence
python recipes/evaluate.py --model outputs/pou --config recipes/configs/eval_negative_tool.yaml  # one tool is useless
python recipes/evaluate.py --model outputs/pou --config recipes/configs/eval_unseen_tool.yaml    # one it never saw
python recipes/evaluate.py --model outputs/pou --compare_with tiny --out outputs/two  # side by side
python recipes/evaluate.py --model outputs/veritas --config recipes/configs/eval_veritas_pairs.yaml  # Search-R1
```
"""

from faithful_search.recipes.evaluate import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
