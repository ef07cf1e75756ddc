# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Supervised start: build expert episodes with the real tools, filter them, train a policy on what is left.

```
python recipes/sft.py --config recipes/configs/sft_tiny.yaml        # a tiny policy from nothing, on the bundled world
accelerate launch recipes/sft.py --config recipes/configs/sft_smollm2-135m.yaml --model_name_or_path DIR_OR_HUB_ID \\
    --questions musique.jsonl.gz 2wiki.jsonl.gz --corpus musique_corpus.jsonl.gz 2wiki_corpus.jsonl.gz
accelerate launch recipes/sft.py --config recipes/configs/sft_qwen2.5-7b.yaml \\
    --trajectories written.jsonl.gz                                 # episodes that a language model wrote
```

Every flag of `ExpertArguments`, TRL's `SFTConfig` and `ModelConfig` may stand in the YAML file or on the command
line; the latter wins.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from trl import ModelConfig, get_peft_config

from faithful_search import dialects
from faithful_search.bundled import REMEMBERED, world_file
from faithful_search.coldstart.decorators import Memory
from faithful_search.coldstart.experts import DRILL, Habits, Played, run_experts
from faithful_search.coldstart.filtering import (
    accept,
    by_tools,
    read_written,
    reject,
    summary,
    write_written,
)
from faithful_search.coldstart.plans import Plan, counted, plan_all, planner_for
from faithful_search.coldstart.rubric import (
    LABEL,
    EvaluatorCheck,
    Teaching,
    evaluator_rows,
    relabelled,
    scored_episodes,
    scored_file,
)
from faithful_search.coldstart.sft import Reading, build_dataset, sft_trainer
from faithful_search.coldstart.swap_names import (
    NameSwapper,
    check_unseen,
    swapped_copies,
    world_part,
    world_swapper,
)
from faithful_search.coldstart.tiny import TinyConfig, build_tiny
from faithful_search.errors import ConfigError, DataError
from faithful_search.flags import check_least, flag
from faithful_search.hub.cards import merged_card, model_card
from faithful_search.hub.pushing import push_run, takes_over
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.loading import read_tokenizer
from faithful_search.measure.evaluation import MERGED, Record
from faithful_search.measure.writing import write_metrics
from faithful_search.tasks import load_tasks
from faithful_search.text import printable
from faithful_search.tools.knowledge_graph import KnowledgeGraph
from faithful_search.tools.local_search import LocalSearch
from faithful_search.tools.toolbox import Toolbox
from faithful_search.training import checkpoints
from faithful_search.training.arguments import SearchSFTConfig
from faithful_search.training.policies import check_dtype, open_policy, save_policy
from faithful_search.training.starting import StartArguments, parse_recipe, run_recipe, started
from faithful_search.trajectory import Trajectory, write_jsonl

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "sft_tiny.yaml"
MAPPINGS: dict[str, Any] = {
    "habits": Habits,
    "memory": Memory,
    "rubric": Teaching,
    "tiny": TinyConfig,
}
"""Flags that hold several settings: a mapping in YAML, JSON on the command line."""


@dataclass
class ExpertArguments(StartArguments):
    """Where episodes come from and which are kept. Lists hold an entry for each question file, or one for all."""

    trajectories: list[str] = flag(
        [], "files of episodes that a language model wrote, in any dialect: instead of the expert's"
    )
    questions: list[str] = flag(["world"], "'world', files or Hub datasets")
    source_kind: list[str] = flag(["world"], "world, musique, 2wiki, hotpotqa")
    corpus: list[str] = flag(["world"], "passages: 'world' or files")
    triples: list[str] = flag(["none"], "triples of knowledge_graph: 'world', a file, or 'none'")
    episodes: int = flag(0, "episodes of each source; 0: one per question")
    top_k: int = flag(3, "passages a call returns")
    min_episode_steps: int = flag(3, "fewest steps of an episode that is kept")
    max_episode_steps: int = flag(10, "most steps of an episode that is kept")
    habits: dict | str | None = flag(None, "rates of mishaps: fields of Habits, as JSON")
    dialect: str = flag("pou", "how the agent writes")
    loss_on: Literal["agent", "all"] = flag(
        "agent", "'agent': what the agent writes; 'all': every token"
    )
    verdict_weight: float = flag(1.0, "how many times a verdict's token counts in the loss")
    copied_weight: float = flag(
        1.0, "the same of tokens taken from what was just found; rare ones count more"
    )
    reading_weight: float = flag(0.0, "what the reading loss counts; 0: none")
    reading_layers: list[int] = flag(
        [], "whose hidden states the reading loss reads, from 1; not the last one"
    )
    kept_responses: int = flag(
        0, "how many of the last tool responses the agent sees; 0: all; see docs/veritas.md"
    )
    swaps_per_episode: int = flag(0, "copies of an episode about other names; 0: itself")
    swaps_per_twin: int = flag(0, "the same of a twin, see the habit `twins`")
    learn: list[Literal["episodes", "twins", "drills"]] = flag(
        ["episodes", "twins", "drills"],
        "what to train on of that which the expert plays, see the habits `twins` and `drills`",
    )
    memory: dict | str | None = flag(
        None, "also learn answers by heart, and to dress them up: fields of Memory, as JSON"
    )
    rubric: dict | str | None = flag(
        None, "also learn to score trajectories by a rubric: fields of Teaching, as JSON"
    )
    rubric_files: list[str] = flag(
        [],
        "also trajectories that somebody scored, or the policy's own; see docs/self-evaluation.md",
    )
    rubric_tokens: int = flag(256, "tokens of an explained score, when it is measured")
    names: str = flag("world", "JSON file {name: type} of what may be swapped, or 'world'")
    tiny: dict | str | None = flag(None, "shape of model 'tiny': TinyConfig, as JSON")
    save_dtype: str | None = flag(None, "dtype of the saved weights, such as float16")
    save_merged: bool = flag(
        False, "with --use_peft: also the full model, merged, in output_dir/merged"
    )

    @property
    def steps(self) -> tuple[int, int]:
        """Bounds of an episode's steps."""
        return self.min_episode_steps, self.max_episode_steps

    @cached_property
    def swapper(self) -> NameSwapper:
        """Swaps names, but never into a fact that the world holds out."""
        path = world_file("names.json") if self.names == "world" else Path(self.names)
        try:
            names = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(
                f"--names {path} is no JSON file of names and their types: {error}"
            ) from error
        return world_swapper(names)


class Source(NamedTuple):
    """One question file, how it is annotated, and what its expert searches in."""

    questions: str
    kind: str
    corpus: str
    triples: str


Built = list[tuple[list[Played], list[dict[str, Any]]]]
"""Episodes and their twins, with the schemas of the tools that they used."""


def main(argv: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if argv is None else argv)
    script, args, model_args = parse(given)
    with started(script, args):
        run(script, args, model_args, given)


def run(
    script: ExpertArguments, args: SearchSFTConfig, model_args: ModelConfig, given: Sequence[str]
) -> None:
    """Episodes, rows, training, and what is left of it in the output directory."""
    repository, out = takes_over(args), Path(args.output_dir or ".")
    sources = sources_of(script)
    name, chat = policy(script, args, model_args)
    model = open_policy(name, model_args, args, script.save_merged)
    if script.trajectories:
        built = written_of(script, args, chat)
    else:
        built = [episodes_of(source, script, args.seed) for source in sources]
        if PartialState().is_main_process:
            write_episodes(out, [one.episode for played, _ in built for one in played], script)
    parts = [rows_of(played, tools, chat, script, args) for played, tools in built]
    scored, held_out = scored_of(built, script, args.seed)
    if scored:
        teaching, longest = chosen(script, "rubric"), args.max_length
        parts.append(
            Dataset.from_list(
                evaluator_rows(scored, chat, teaching, args.seed, script.loss_on, longest)
            )
        )
        say(
            f"{len(scored)} scored trajectories are {len(parts[-1])} rows; {len(held_out)} others are held out"
        )
    dataset = concatenate_datasets(parts)
    say(f"{len(dataset)} rows of {sum(dataset['length']) / len(dataset):.0f} tokens on average")
    reading = (
        Reading(chat, script.reading_weight, script.reading_layers)
        if script.reading_weight
        else None
    )
    trainer = sft_trainer(
        model, args, dataset, chat.tokenizer, get_peft_config(model_args), reading
    )
    evaluator = EvaluatorCheck(trainer, held_out, script.rubric_tokens, say)
    if held_out:
        trainer.add_callback(evaluator)
    checkpoints.train(trainer, script.resume)
    if held_out:
        evaluator.measure("after")
    save_policy(trainer, script.save_dtype, script.save_merged)
    if PartialState().is_main_process:
        record = Record(
            folder=str(out),
            model=str(model_args.model_name_or_path),
            dialect=script.dialect,
            tools=[tool["function"]["name"] for tool in built[0][1]],
            questions=" ".join(script.questions),
            settings=asdict(script),
            steps=trainer.state.global_step,
            history=[],
        )
        write_metrics(out / "metrics.json", record.metrics())
        opened = {
            "corpus": script.corpus[0],
            "triples": script.triples[0],
            "search_top_k": script.top_k,
        }
        model_card(
            msgspec.structs.replace(record, settings={**record.settings, **opened}),
            "recipes/sft.py",
            given,
        )
        if script.save_merged:
            merged_card(out, out / MERGED)
        if repository:
            push_run(out, repository, merged=script.save_merged)
    say(f"policy, card and episodes are in {args.output_dir}")


def parse(
    argv: Sequence[str] | None = None,
) -> tuple[ExpertArguments, SearchSFTConfig, ModelConfig]:
    """The three dataclasses, with settings that cannot be read, or that nothing reads, refused (`ConfigError`)."""
    flags = parse_recipe((ExpertArguments, SearchSFTConfig, ModelConfig), argv, DEFAULT_CONFIG)
    script: ExpertArguments = flags[0]
    for name in MAPPINGS:
        chosen(script, name)
    check_least(script, episodes=0, swaps_per_episode=0, swaps_per_twin=0, kept_responses=0)
    check_least(script, verdict_weight=0, copied_weight=0, reading_weight=0, rubric_tokens=1)
    check_dtype(script.save_dtype)
    if script.reading_layers and not script.reading_weight:
        raise ConfigError(
            "--reading_layers are read with --reading_weight above 0 only; give that, or leave them out"
        )
    if script.kept_responses and dialects.load(script.dialect).observation_role is not None:
        raise ConfigError(
            f"--kept_responses: dialect {script.dialect!r} writes each tool response as a message of a chat, which "
            "stays; leave it at 0"
        )
    return flags


def sources_of(script: ExpertArguments) -> list[Source]:
    """The question files with what belongs to each. Raises `ConfigError` when the lists do not fit together."""
    wanted = len(script.questions)
    columns = [script.questions, script.source_kind, script.corpus, script.triples]
    for name, column in zip(("source_kind", "corpus", "triples"), columns[1:], strict=True):
        if len(column) not in (1, wanted):
            raise ConfigError(
                f"--{name}: {len(column)} entries for {wanted} question files; give one for each or for all"
            )
    return [
        Source(*row)
        for row in zip(*(column * (wanted // len(column)) for column in columns), strict=True)
    ]


def policy(
    script: ExpertArguments, args: SearchSFTConfig, model_args: ModelConfig
) -> tuple[str, ChatFormat]:
    """The model's directory or Hub id, and its chat format; `tiny` is built from nothing."""
    name = str(model_args.model_name_or_path)
    if name == "tiny":
        name = str(Path(args.output_dir or ".") / "untrained")
        with PartialState().main_process_first():
            if PartialState().is_main_process:
                build_tiny(name, chosen(script, "tiny"))
    trusted = args.trust_remote_code
    tokenizer = read_tokenizer(name, revision=model_args.model_revision, trust_remote_code=trusted)
    return name, ChatFormat.of(tokenizer, dialects.load(script.dialect))


def episodes_of(
    source: Source, script: ExpertArguments, seed: int
) -> tuple[list[Played], list[dict[str, Any]]]:
    """The expert's episodes on one source, fit or not, with their twins, and the schemas of the tools it had."""
    tasks = load_tasks(source.questions)
    plans, skipped = plan_all(tasks, planner_for(source.kind, tasks))
    say(
        f"{source.questions}: {len(plans)} of {len(tasks)} questions planned; skipped: {counted(skipped)}"
    )
    plans = repeated(plans, script.episodes or len(plans))
    with toolbox_of(source, script) as toolbox:
        habits, dialect = chosen(script, "habits"), dialects.load(script.dialect)
        progress = PartialState().is_local_main_process
        return run_experts(
            plans, toolbox, dialect, habits, seed, progress=progress
        ), toolbox.schemas


def repeated(plans: Sequence[Plan], wanted: int) -> list[Plan]:
    """The plans, again when they run out; a copy's id ends in `#n`, so its draws differ."""
    every = (
        replace(plan, id=f"{plan.id}#{copy}" if copy else plan.id)
        for copy in count()
        for plan in plans
    )
    return list(islice(every, wanted))


def written_of(script: ExpertArguments, args: SearchSFTConfig, chat: ChatFormat) -> Built:
    """The episodes of `--trajectories` that are fit, those of the same tools together, with the tools' schemas.

    A row without tools of its own gets those that `--corpus` and `--triples` open.
    """

    def tools() -> list[dict[str, Any]]:
        with toolbox_of(sources_of(script)[0], script) as toolbox:
            return toolbox.schemas

    rows = list(read_written(script.trajectories, chat, tools, *script.steps, args.max_length))
    say("\n".join(summary(rows)))
    if PartialState().is_main_process:
        write_written(args.output_dir or ".", rows)
    return [
        ([Played(episode, []) for episode in episodes], described)
        for episodes, described in by_tools(rows)
    ]


def toolbox_of(source: Source, script: ExpertArguments) -> Toolbox:
    """The expert's tools; those of the world hold its training part only."""
    corpus: Any = world_part("passages") if source.corpus == "world" else source.corpus
    search = LocalSearch.from_corpus(corpus, top_k=script.top_k)
    tools: list[Any] = [
        replace(search, name=dialects.load(script.dialect).search_tool or search.name)
    ]
    if source.triples != "none":
        triples: Any = world_part("triples") if source.triples == "world" else source.triples
        tools.append(KnowledgeGraph.from_triples(triples, top_k=script.top_k))
    return Toolbox(tools)


def rows_of(
    played: Sequence[Played],
    tools: list[dict[str, Any]],
    chat: ChatFormat,
    script: ExpertArguments,
    args: SearchSFTConfig,
) -> Dataset:
    """Filter the episodes of one source, swap names in them and in their twins where asked, and tokenise them."""
    kept, reasons = accept([one.episode for one in played], *script.steps)
    say(f"{len(kept)} of {len(played)} episodes kept; rejected: {counted(reasons)}")
    if not kept:
        raise DataError(f"all {len(played)} episodes were rejected: {counted(reasons)}")
    remembered = memory_rows(kept, script, args)
    twins = [
        twin for one in played if reject(one.episode, *script.steps) is None for twin in one.twins
    ]
    if twins:
        say(f"{len(twins)} twins: {counted(Counter(twin.meta['twin'] for twin in twins))}")
    twins = [
        twin
        for twin in twins
        if ("drills" if twin.meta["twin"] == DRILL else "twins") in script.learn
    ]
    kept = kept if "episodes" in script.learn else []
    rows: list[Trajectory] = []
    for found, copies in ((kept, script.swaps_per_episode), (twins, script.swaps_per_twin)):
        progress = PartialState().is_local_main_process
        rows += (
            swapped_copies(found, script.swapper, copies, args.seed, progress) if copies else found
        )
    rows += remembered
    if "world" in script.corpus:
        check_unseen(rows, [row["text"] for row in world_part("passages", False)])
    weights = script.verdict_weight, script.copied_weight
    reading = script.reading_weight > 0
    return build_dataset(
        rows, chat, tools, script.loss_on, args.max_length, *weights, reading, script.kept_responses
    )


def memory_rows(
    episodes: Sequence[Trajectory], script: ExpertArguments, args: SearchSFTConfig
) -> list[Trajectory]:
    """Episodes of the decorator; `remembered.json` says which of the first file's questions are learnt by heart."""
    if not script.memory:
        return []
    memory = chosen(script, "memory")
    by_heart = memory.drawn(load_tasks(script.questions[0]), args.seed)
    if PartialState().is_main_process:
        (Path(args.output_dir or ".") / REMEMBERED).write_text(
            json.dumps(by_heart), encoding="utf-8"
        )
    rng = random.Random(args.seed)
    rows = memory.rows(
        episodes, {*by_heart}, lambda episode: script.swapper.swap(episode, rng), args.seed
    )
    say(
        f"{len(by_heart)} questions by heart: {len(rows)} rows of the decorator and of reading the same questions"
    )
    return rows


def scored_of(
    built: Built, script: ExpertArguments, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Trajectories with the scores they deserve: to learn to score from, and to measure the evaluator with.

    Those that the world's facts scored are learnt about other names, so that no fact is learnt with them.
    """
    teaching = chosen(script, "rubric")
    scored = [row for path in script.rubric_files for row in scored_file(path)]
    if script.rubric and (teaching.spoiled or not scored):
        kept, _ = accept([one.episode for played, _ in built for one in played], *script.steps)
        scored += scored_episodes(kept, teaching, script.swapper.finder, seed)
    if not scored:
        return [], []
    learnt, held_out = teaching.split(scored, seed)
    told = [item for item in learnt if "error" not in item.meta[LABEL]]
    world = [item for item in learnt if "error" in item.meta[LABEL]]
    swapped = swapped_copies(world, script.swapper, 1, seed, PartialState().is_local_main_process)
    return [*told, *map(relabelled, swapped)], held_out


def write_episodes(out: Path, episodes: Sequence[Trajectory], script: ExpertArguments) -> None:
    """All episodes to `episodes.jsonl`, and line by line why each was rejected (or null) to `reasons.jsonl`."""
    write_jsonl(out / "episodes.jsonl", episodes)
    lines = (
        json.dumps({"id": item.id, "rejected": reject(item, *script.steps)}) + "\n"
        for item in episodes
    )
    (out / "reasons.jsonl").write_text("".join(lines), encoding="utf-8")


def chosen(script: ExpertArguments, name: str) -> Any:
    """The settings of one of `MAPPINGS`; a `ConfigError` says what is wrong with them."""
    kind, value = MAPPINGS[name], getattr(script, name)
    names = ", ".join(kind.__dataclass_fields__)
    try:
        given = json.loads(value) if isinstance(value, str) else value or {}
        if not isinstance(given, dict):
            raise ConfigError(
                f"--{name} is a mapping of names to values, not {value!r}; the names: {names}"
            )
        if unknown := given.keys() - kind.__dataclass_fields__:
            raise ConfigError(
                f"--{name} has no {' and no '.join(sorted(unknown))}; it has: {names}"
            )
        usual = kind(script.dialect) if kind is TinyConfig else kind()
        return msgspec.convert({**asdict(usual), **given}, kind)  # checks the types, too
    except json.JSONDecodeError as error:
        raise ConfigError(f"--{name} is not JSON ({error}): {value}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"--{name}: {error}") from error


def say(line: str) -> None:
    """Print once, whatever the number of processes."""
    PartialState().print(printable(line))


if __name__ == "__main__":
    run_recipe(main)
