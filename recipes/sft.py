# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Supervised start: build expert episodes with the real tools, filter them, train a policy on what
is left.

```
python recipes/sft.py --config recipes/configs/sft_tiny.yaml        # a tiny policy from nothing, on the bundled world
accelerate launch recipes/sft.py --config recipes/configs/sft_smollm2-135m.yaml --model_name_or_path DIR_OR_HUB_ID \\
    --questions musique.jsonl.gz 2wiki.jsonl.gz --corpus musique_corpus.jsonl.gz 2wiki_corpus.jsonl.gz
accelerate launch recipes/sft.py --config recipes/configs/sft_qwen2.5-7b.yaml \\
    --trajectories written.jsonl.gz                                 # episodes that a language model wrote
```

Every flag of `ExpertArguments`, TRL's `SFTConfig` and `ModelConfig` may stand in the YAML file or
on the command line; the latter wins.
"""

from faithful_search.recipes.sft import main
from faithful_search.training.starting import run_recipe

if __name__ == "__main__":
    run_recipe(main)
