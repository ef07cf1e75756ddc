# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Distil a judge: labelled (information, thought) pairs → a small model that says what the labeller would say.

```
accelerate launch recipes/reward_model.py --config recipes/configs/rm_tiny.yaml     # a tiny judge, on the bundled world
accelerate launch recipes/reward_model.py --config recipes/configs/rm_mpnet.yaml --pairs claims.jsonl.gz more.jsonl.gz
accelerate launch recipes/reward_model.py --config recipes/configs/rm_qwen2.5-14b.yaml --pairs outputs/labels
```

Every flag of `RewardModelArguments`, TRL's `SFTConfig` and `ModelConfig` may stand in the YAML file or on the command
line, which wins. What comes out is used with `--judge nli --judge_model DIR`, or `--judge generator` for that head.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, get_peft_config

from faithful_search.bundled import tiny_policy
from faithful_search.distil.distillation import Distillation, Distilled, train_judge
from faithful_search.distil.pairs import load_pairs
from faithful_search.flags import check_least, flag
from faithful_search.hub.cards import judge_card
from faithful_search.hub.pushing import push_run, takes_over
from faithful_search.measure.agreement import parse_judge
from faithful_search.training.arguments import SearchSFTConfig
from faithful_search.training.policies import model_init_kwargs
from faithful_search.training.starting import StartArguments, parse_recipe, run_recipe, started

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "rm_tiny.yaml"
SETTINGS = (
    *("learning_rate", "lr_scheduler_type", "num_train_epochs", "max_steps"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "seed"),
)
"""The trainer's, for the card."""


@dataclass
class RewardModelArguments(Distillation, StartArguments):
    """What is learnt from, which head learns it, and what is measured beside it."""

    pairs: list[str] = flag(
        ["world"],
        "'world' (made from the bundled world), labelled files, directories or Hub datasets",
    )
    limit: int = flag(0, "most pairs of each source and split; 0: all")
    second_labels: str | None = flag(
        None, "the same pairs, labelled once more: how far the labeller agrees with itself"
    )
    beside: list[str] = flag(
        ["lexical"],
        "judges measured on the same held-out pairs: lexical, nli:MODEL, embedding:MODEL, …",
    )
    license: str | None = flag(None, "of the weights, for the card")


def main(argv: Sequence[str] | None = None) -> Distilled:
    given = list(sys.argv[1:] if argv is None else argv)
    script, args, model_args = parse_recipe(
        (RewardModelArguments, SearchSFTConfig, ModelConfig), given, DEFAULT_CONFIG
    )
    check_least(script, limit=0)
    with started(script, args):
        repository = takes_over(args)
        found = distil(script, args, model_args)
        if PartialState().is_main_process:
            finish(found, script, args, str(model_args.model_name_or_path), given)
            if repository:
                push_run(found.folder, repository)
    return found


def distil(
    script: RewardModelArguments, args: SearchSFTConfig, model_args: ModelConfig
) -> Distilled:
    """Pairs, training, and measurement."""
    name = str(model_args.model_name_or_path)
    rows = load_pairs(script.pairs, script.limit or None, args.seed)
    held_out = sum(row.split == "heldout" for row in rows)
    PartialState().print(f"{len(rows)} labelled pairs, {held_out} of them held out")
    kwargs = {
        key: value for key, value in model_init_kwargs(model_args).items() if value is not None
    }
    return train_judge(
        rows,
        str(tiny_policy()) if name == "tiny" else name,
        args,
        script,
        peft_config=get_peft_config(model_args),
        beside=dict(map(parse_judge, script.beside)),
        second=load_pairs([script.second_labels]) if script.second_labels else (),
        model_kwargs={"trust_remote_code": args.trust_remote_code, **kwargs},
        base_name=name,
        resume=script.resume,
    )


def finish(
    found: Distilled,
    script: RewardModelArguments,
    args: SearchSFTConfig,
    name: str,
    given: Sequence[str],
) -> None:
    """The model card, and the table for those who watch."""
    judge_card(
        found.folder,
        file=found.file,
        base_model=name,
        agreement=found.agreement,
        argv=given,
        config={**asdict(script), **{setting: getattr(args, setting) for setting in SETTINGS}},
        pairs=script.pairs,
        license=script.license,
    )
    print(found.agreement.table() if found.agreement else "not measured")
    print(f"the judge is in {found.folder}: --judge {found.file.kind} --judge_model {found.folder}")


if __name__ == "__main__":
    run_recipe(main)
