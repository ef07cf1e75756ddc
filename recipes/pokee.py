# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a research agent as PokeeResearch was: RLOO, research and verification in turns, AI
feedback on the answer.

```
accelerate launch recipes/pokee.py              # the embedded default: tiny policy of Pokee's dialect, bundled world
accelerate launch recipes/pokee.py --config recipes/configs/pokee_qwen2.5-7b.yaml \\
    --questions train.jsonl.gz --eval_questions test.jsonl.gz --web_search serper --browse jina \\
    --judge_url http://127.0.0.1:8000/v1 --judge_model NAME
```

Every flag of `PokeeArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML
file or on the command line, which wins.
"""

from faithful_search.recipes.pokee import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
