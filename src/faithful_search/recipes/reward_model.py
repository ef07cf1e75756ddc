"""Distil a judge: train a small model on labelled pairs, so that it labels as the labeller would.

Every flag of `RewardModelArguments`, TRL's `SFTConfig` and `ModelConfig` may stand in the YAML file
or on the command line, which wins. Use the judge with `--judge nli --judge_model DIR`, or with
`--judge generator` if it has that head.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..bundled import shipped, tiny_policy
from ..distil.settings import Distillation
from ..flags import check_least, flag
from ..hub.cards import judge_card
from ..hub.pushing import push_run, takes_over
from ..measure.agreement import parse_judge
from ..training.refusing import MODEL, SFT, check_files, check_folder, check_model, checked
from ..training.starting import StartArguments, parse_recipe, run_recipe, started

if TYPE_CHECKING:
    from trl import ModelConfig

    from ..distil.distillation import Distilled
    from ..distil.pairs import Labelled
    from ..training.arguments import SearchSFTConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "rm_tiny.yaml"
RECIPE = "recipes/reward_model.py"
SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
)
"""The settings of the trainer that stand in the card."""


@dataclass
class RewardModelArguments(Distillation, StartArguments):
    """The pairs to train on, the kind of judge, and what it is compared with."""

    pairs: list[str] = flag(
        ["world"],
        "Pairs to train on: 'world' (made from the bundled world), labelled files, directories or "
        "datasets on the Hub.",
    )
    limit: int = flag(0, "Maximum number of pairs of each source and split; 0 for all.")
    second_labels: str | None = flag(
        None,
        "File of the same pairs, labelled a second time, to measure how far the labeller agrees "
        "with itself. By default none.",
    )
    calibration: list[str] = flag(
        [],
        "Labelled files to calibrate by: rows of their training side that are not trained on. By "
        "default the validation pairs.",
    )
    calibration_limit: int = flag(
        400, "Maximum number of pairs of each source to calibrate by; 0 for all."
    )
    beside: list[str] = flag(
        ["lexical"],
        "Judges to measure on the same held-out pairs: lexical, nli:MODEL, embedding:MODEL, …",
    )
    license: str | None = flag(
        None, "License of the weights, for the card. By default none is stated."
    )


def main(argv: Sequence[str] | None = None, recipe: str = RECIPE) -> "Distilled":
    """Run the recipe with these arguments, by default those of the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    check(arguments)  # before torch is imported
    from accelerate import PartialState

    script, args, model_args = parse(arguments)
    with started(script, args):
        repository = takes_over(args)  # `None` without --push_to_hub
        judge = distil(script, args, model_args)
        if PartialState().is_main_process:
            name = str(model_args.model_name_or_path)
            finish(judge, script, args, name, recipe, arguments)
            if repository:
                push_run(judge.folder, repository)
    return judge


def check(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for mistakes in the flags that can be seen without importing torch."""
    flags = checked(RewardModelArguments, argv, default=DEFAULT_CONFIG, places=[SFT, MODEL])
    script: RewardModelArguments = flags.script
    check_least(script, limit=0, calibration_limit=0)
    second = [script.second_labels] if script.second_labels else []
    if not script.dry_run:  # a dry run has its own
        check_files(pairs=script.pairs, second_labels=second, calibration=script.calibration)
        check_model(flags.values.get("model_name_or_path"), None)
        check_folder(flags.values.get("output_dir"), script.resume, script.overwrite)
    flags.announce()


def parse(
    argv: Sequence[str] | None = None,
) -> "tuple[RewardModelArguments, SearchSFTConfig, ModelConfig]":
    """The values of the flags. Raises `ConfigError` for values that are not allowed."""
    from trl import ModelConfig

    from ..training.arguments import SearchSFTConfig

    kinds = RewardModelArguments, SearchSFTConfig, ModelConfig
    script, args, model_args = parse_recipe(kinds, argv, DEFAULT_CONFIG)
    check_least(script, limit=0, calibration_limit=0)
    return script, args, model_args


def distil(
    script: RewardModelArguments, args: "SearchSFTConfig", model_args: "ModelConfig"
) -> "Distilled":
    """Read the pairs, train the judge, and measure it."""
    from accelerate import PartialState
    from trl import get_peft_config

    from ..distil.distillation import train_judge
    from ..distil.pairs import load_pairs
    from ..training.policies import model_init_kwargs

    name = str(model_args.model_name_or_path)
    rows = load_pairs(script.pairs, script.limit or None, args.seed)
    held_out = sum(row.split == "heldout" for row in rows)
    PartialState().print(f"{len(rows)} labelled pairs, {held_out} of them held out")
    model_kwargs: dict[str, Any] = {"trust_remote_code": args.trust_remote_code}
    for key, value in model_init_kwargs(model_args).items():
        if value is not None:
            model_kwargs[key] = value
    second_rows: Sequence[Labelled] = ()
    if script.second_labels:
        second_rows = load_pairs([script.second_labels])
    return train_judge(
        rows,
        str(tiny_policy()) if name == "tiny" else name,
        args,
        script,
        peft_config=get_peft_config(model_args),
        beside=dict(map(parse_judge, script.beside)),
        second=second_rows,
        calibration=load_pairs(script.calibration, script.calibration_limit or None, args.seed),
        model_kwargs=model_kwargs,
        base_name=name,
        resume=script.resume,
    )


def finish(
    judge: "Distilled",
    script: RewardModelArguments,
    args: "SearchSFTConfig",
    name: str,
    recipe: str,
    argv: Sequence[str],
) -> None:
    """Write the model card and print the results."""
    trainer_settings = {setting: getattr(args, setting) for setting in SETTINGS}
    judge_card(
        judge.folder,
        file=judge.file,
        base_model=name,
        agreement=judge.agreement,
        recipe=recipe,
        argv=argv,
        config={**asdict(script), **trainer_settings},
        pairs=script.pairs,
        license=script.license,
    )
    print(judge.agreement.table() if judge.agreement else "not measured")
    print(f"the judge is in {judge.folder}: --judge {judge.file.kind} --judge_model {judge.folder}")


if __name__ == "__main__":
    run_recipe(main)
