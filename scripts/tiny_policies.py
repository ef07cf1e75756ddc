"""Make a bundled tiny policy from nothing, stage by stage.

```
python scripts/tiny_policies.py pou                       # outputs/sft_tiny, then three stages more
python scripts/tiny_policies.py search_r1 --install       # and put it where the package looks for it
python scripts/tiny_policies.py self_eval                 # the one that scores itself, from the Search-R1 one
python scripts/tiny_policies.py memory                    # the one that can hack, from the bundled one that writes pou
python scripts/tiny_policies.py pairs                     # the one that sees one response at a time
```

A stage that is complete is not made again, one that was interrupted goes on from its last
checkpoint.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import faithful_search
from faithful_search.bundled import REMEMBERED, TINY

DATA = Path(faithful_search.__file__).parent / "data"
RECIPES = Path(__file__).parent.parent / "recipes"
CONFIGS = Path(__file__).parent / "policies"
STAGES = {
    "pou": ("sft_tiny", "sft_tiny_drills", "sft_tiny_reading", "sft_tiny_reading_more"),
    "search_r1": ("sft_tiny_search_r1",),
    "self_eval": ("sft_self_eval_tiny",),
    "pokee": ("sft_tiny_pokee",),
    "memory": ("sft_tiny_memory",),
    "pairs": ("sft_tiny_pairs", "sft_tiny_pairs_choice"),
}
SHIPPED = ("*.safetensors", "*config.json", "tokenizer.json", "chat_template.jinja", REMEMBERED)
"""What is taken over of the last stage; the card in the package is written by hand."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policy", choices=list(STAGES))
    parser.add_argument("--install", action="store_true", help="copy the policy into the package")
    args = parser.parse_args()
    for stage in STAGES[args.policy]:
        make(stage)
    if args.install:
        install(Path("outputs") / STAGES[args.policy][-1], DATA / TINY[args.policy])


def make(stage: str) -> None:
    """One run of recipes/sft.py, which writes to the folder that the next stage starts from."""
    out = Path("outputs") / stage
    if (out / "model.safetensors").exists():
        print(f"{out} is complete")
        return
    resume = ("--resume", "true") if any(out.glob("checkpoint-*")) else ()
    # Of a name that is not there `--config` takes the recipes' configuration: `sft_tiny`.
    config = CONFIGS / f"{stage}.yaml"
    command = (str(RECIPES / "sft.py"), "--config", str(config), *resume)
    if subprocess.run([sys.executable, *command], check=False).returncode:
        sys.exit(f"{stage} failed; the same command goes on from its last checkpoint")


def install(made: Path, bundled: Path) -> None:
    bundled.mkdir(exist_ok=True)
    for path in (path for pattern in SHIPPED for path in made.glob(pattern)):
        shutil.copy2(path, bundled)
    print(f"{made} is bundled now, in {bundled}")


if __name__ == "__main__":
    main()
