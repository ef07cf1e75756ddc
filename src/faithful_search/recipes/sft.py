"""Supervised start: build expert episodes with the real tools, filter them, and train a policy on
those that are left.

Every flag of `ExpertArguments`, TRL's `SFTConfig` and `ModelConfig` may stand in the YAML file or
on the command line, which wins.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .. import dialects
from ..bundled import shipped, world_file
from ..coldstart.bare_answers import ANSWERS, check_dialect
from ..coldstart.swap_names import NameSwapper, world_swapper
from ..errors import ConfigError, DataError
from ..flags import check_least, check_literals, flag, knob
from ..rewards import SelfRubric
from ..rollout.episode import Limits
from ..tools.arguments import ToolArguments
from ..training.refusing import (
    MODEL,
    SFT,
    check_dtype,
    check_files,
    check_folder,
    check_model,
    checked,
)
from ..training.starting import StartArguments, parse_recipe, run_recipe, started

if TYPE_CHECKING:
    from trl import ModelConfig

    from ..training.arguments import SearchSFTConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "sft_tiny.yaml"
RECIPE = "recipes/sft.py"


@dataclass
class ExpertArguments(StartArguments):
    """Where episodes come from, and which of them are trained on.

    `source_kind`, `corpus` and `triples` hold an entry for each of the `questions`, or one for all.
    """

    trajectories: list[str] = flag(
        [],
        "Files of episodes that a language model wrote, in any dialect. By default the expert "
        "plays the episodes.",
    )
    questions: list[str] = flag(
        ["world"], "Questions for the expert: 'world', files or datasets on the Hub."
    )
    source_kind: list[str] = flag(
        ["world"],
        "Kind of each question file: world, musique, 2wiki or hotpotqa; or 'answers' to train on "
        "the gold answers alone, in a dialect that needs no tool.",
    )
    corpus: list[str] = flag(
        ["world"], "Passages that a search returns: 'world', files, or 'none' without the tool."
    )
    triples: list[str] = flag(
        ["none"], "Facts of the tool knowledge_graph: 'world', a file, or 'none' without the tool."
    )
    episodes: int = flag(
        0, "Number of episodes for each question file. 0 plays one for each question."
    )
    search_top_k: int = knob(ToolArguments, "search_top_k")
    min_episode_steps: int = flag(3, "Minimum number of steps in an episode that is kept.")
    max_episode_steps: int = flag(10, "Maximum number of steps in an episode that is kept.")
    habits: dict | str | None = flag(
        None, "Rates of the expert's mishaps and further habits: fields of Habits, as JSON."
    )
    dialect: str = flag("pou", "Dialect that the policy learns.")
    loss_on: Literal["agent", "all"] = flag(
        "agent", "Tokens in the loss: 'agent' takes those that the agent writes, 'all' every token."
    )
    verdict_token_weight: float = flag(1.0, "Loss weight of the token of a verdict.")
    copied_weight: float = flag(
        1.0,
        "Loss weight of tokens copied from the last tool response; rare tokens count more.",
    )
    reading_weight: float = flag(0.0, "Weight of the reading loss. 0 disables it.")
    reading_layers: list[int] = flag(
        [],
        "Layers whose hidden states the reading loss reads, counted from 1, without the last one.",
    )
    kept_responses: int = knob(Limits, "kept_responses")
    swaps_per_episode: int = flag(
        0,
        "Number of copies of each episode about other names, which replace it. 0 trains on the "
        "episode itself.",
    )
    swaps_per_twin: int = flag(
        0, "Number of copies of each twin about other names; see the habit `twins`."
    )
    learn: list[Literal["episodes", "twins", "drills"]] = flag(
        ["episodes", "twins", "drills"],
        "Parts of the expert's play to train on; see the habits `twins` and `drills`.",
    )
    memory: dict | str | None = flag(
        None,
        "Also train on answers learnt by heart and decorated with searches: fields of "
        "MemoryHabit, as "
        "JSON. By default none.",
    )
    rubric: dict | str | None = flag(
        None,
        "Also train to score trajectories by a rubric: fields of Teaching, as JSON. By default "
        "not.",
    )
    rubric_files: list[str] = flag(
        [],
        "Files of scored trajectories to train on, too, or of the policy's own; see "
        "docs/self-evaluation.md.",
    )
    rubric_tokens: int = knob(SelfRubric, "reply_tokens")
    names: str = flag(
        "world", "Names that may be swapped: a JSON file of {name: type}, or 'world'."
    )
    tiny: dict | str | None = flag(
        None, "Shape of the model 'tiny': fields of TinyConfig, as JSON."
    )
    save_dtype: str | None = flag(
        None, "Data type of the saved weights, such as float16. By default that of training."
    )
    save_merged: bool = flag(
        False, "With --use_peft, also save the merged full model, in output_dir/merged."
    )

    @property
    def steps(self) -> tuple[int, int]:
        """The minimum and maximum number of steps of an episode."""
        return self.min_episode_steps, self.max_episode_steps

    @cached_property
    def swapper(self) -> NameSwapper:
        """Swaps names. It makes no fact that the world holds out for evaluation."""
        path = world_file("names.json") if self.names == "world" else Path(self.names)
        try:
            names = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(
                f"--names {path} is no JSON file of names and their types: {error}"
            ) from error
        return world_swapper(names)


@dataclass(frozen=True)
class ExpertSource:
    """A question file, the kind of its annotations, and the corpus and triples that the expert
    searches.
    """

    questions: str
    kind: str
    corpus: str
    triples: str


def main(argv: Sequence[str] | None = None, recipe: str = RECIPE) -> None:
    """Run the recipe with these arguments, by default those of the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    check(arguments)  # before torch is imported
    from .cold_start import run

    script, args, model_args = parse(arguments)
    with started(script, args):
        run(script, args, model_args, recipe, arguments)


def check(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for mistakes in the flags that can be seen without importing torch."""
    flags = checked(ExpertArguments, argv, default=DEFAULT_CONFIG, places=[SFT, MODEL])
    script: ExpertArguments = flags.script
    check_script(script)
    sources_of(script)
    if not script.dry_run:  # which replaces them
        check_there(script, flags.values)
    flags.announce()


def check_there(script: ExpertArguments, values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for files and a model that are not there, or a folder in use."""
    check_files(
        trajectories=script.trajectories,
        questions=script.questions,
        corpus=script.corpus,
        triples=script.triples,
        rubric_files=script.rubric_files,
    )
    if values.get("model_name_or_path") != "tiny":  # "tiny" is built, not loaded
        check_model(values.get("model_name_or_path"), script.dialect)
    check_folder(values.get("output_dir"), script.resume, script.overwrite)


def check_script(script: ExpertArguments) -> None:
    """Raise `ConfigError` for settings of the recipe that contradict each other."""
    check_literals(script)
    check_least(script, episodes=0, swaps_per_episode=0, swaps_per_twin=0, kept_responses=0)
    check_least(script, verdict_token_weight=0, copied_weight=0, reading_weight=0, rubric_tokens=1)
    check_dtype(script.save_dtype)
    if script.reading_layers and not script.reading_weight:
        raise ConfigError(
            "--reading_layers are read with --reading_weight above 0 only; give that, or leave "
            "them out"
        )
    if ANSWERS in script.source_kind and not script.trajectories:
        check_dialect(dialects.load(script.dialect))
    if script.kept_responses and dialects.load(script.dialect).observation_role is not None:
        raise ConfigError(
            f"--kept_responses: dialect {script.dialect!r} writes each tool response as a message "
            "of a chat, which stays; leave it at 0"
        )


def parse(
    argv: Sequence[str] | None = None,
) -> "tuple[ExpertArguments, SearchSFTConfig, ModelConfig]":
    """The values of the flags. Raises `ConfigError` for values that are not allowed, or that
    nothing reads.
    """
    from trl import ModelConfig

    from ..training.arguments import SearchSFTConfig
    from .cold_start import MAPPINGS, chosen

    flags = parse_recipe((ExpertArguments, SearchSFTConfig, ModelConfig), argv, DEFAULT_CONFIG)
    script: ExpertArguments = flags[0]
    for name in MAPPINGS:
        chosen(script, name)
    check_script(script)
    return flags


def sources_of(script: ExpertArguments) -> list[ExpertSource]:
    """The question files with their corpora and triples. Raises `ConfigError` when the lists do not
    have the same length.
    """
    number = len(script.questions)
    columns: dict[str, list[str]] = {}
    for name in ("source_kind", "corpus", "triples"):
        entries = getattr(script, name)
        if len(entries) not in (1, number):
            raise ConfigError(
                f"--{name}: {len(entries)} entries for {number} question files; give one for each "
                "or for all"
            )
        columns[name] = entries if len(entries) == number else entries * number
    return [
        ExpertSource(
            questions=questions,
            kind=columns["source_kind"][place],
            corpus=columns["corpus"][place],
            triples=columns["triples"][place],
        )
        for place, questions in enumerate(script.questions)
    ]


if __name__ == "__main__":
    run_recipe(main)
