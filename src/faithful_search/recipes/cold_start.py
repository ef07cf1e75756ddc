"""The work of the recipe `sft`: play or read episodes, make rows of tokens of them, and train.

```
questions ─ expert ─> episodes, twins ─┐
                                       ├─ filter, swap names ─> rows ─ SFT ─> policy, card
files ─ read_written ─> episodes ──────┘
```

It is a file of its own because it needs torch, and `sft` checks the recipe's flags before torch is
imported.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from trl import ModelConfig, get_peft_config

from .. import dialects
from ..bundled import REMEMBERED, bundled_policy
from ..coldstart.bare_answers import ANSWERS, bare_answers
from ..coldstart.decorators import MemoryHabit
from ..coldstart.experts import DRILL, Habits, Played, run_experts
from ..coldstart.filtering import (
    accept,
    by_tools,
    read_written,
    reject,
    summary,
    write_written,
)
from ..coldstart.plans import Plan, counted, plan_all, planner_for
from ..coldstart.rubric import (
    EvaluatorCheck,
    Teaching,
    evaluator_rows,
    relabelled,
    scored_episodes,
    scored_file,
)
from ..coldstart.sft import ReadingLoss, build_dataset, sft_trainer
from ..coldstart.swap_names import check_unseen, swapped_copies, world_part
from ..coldstart.tiny import TinyConfig, build_tiny
from ..errors import ConfigError, DataError
from ..escape import printable
from ..hub.cards import merged_card, model_card
from ..hub.pushing import push_run, takes_over
from ..inference.chat import ChatFormat
from ..inference.loading import read_tokenizer
from ..measure.evaluation import MERGED, Record
from ..measure.writing import write_metrics
from ..rewards.self_rubric import LABEL
from ..tasks import load_tasks
from ..tools.knowledge_graph import KnowledgeGraph
from ..tools.local_search import LocalSearch
from ..tools.toolbox import Toolbox
from ..training import checkpoints
from ..training.arguments import SearchSFTConfig
from ..training.policies import open_policy, save_policy
from ..trajectory import Trajectory, write_jsonl
from .sft import ExpertArguments, ExpertSource, sources_of

MAPPINGS: dict[str, Any] = {
    "habits": Habits,
    "memory": MemoryHabit,
    "rubric": Teaching,
    "tiny": TinyConfig,
}
"""The flags that hold several settings, as a mapping in YAML or as JSON on the command line, with
the classes that have these settings as fields.
"""
Built = list[tuple[list[Played], list[dict[str, Any]]]]
"""Groups of episodes, with their twins, each with the schemas of the tools that it used."""


def run(
    script: ExpertArguments,
    args: SearchSFTConfig,
    model_args: ModelConfig,
    recipe: str,
    argv: Sequence[str],
) -> None:
    """Make the episodes and the rows, train, and write the policy with its card."""
    repository = takes_over(args)
    out = Path(args.output_dir or ".")
    sources = sources_of(script)
    name, chat = policy(script, args, model_args)
    model = open_policy(name, model_args, args, script.save_merged)
    if script.trajectories:
        built = written_of(script, args, chat)
    else:
        built = [episodes_of(source, script, args.seed) for source in sources]
        if PartialState().is_main_process:
            write_episodes(out, _episodes(built), script)
    parts = [rows_of(played, tools, chat, script, args) for played, tools in built]
    scored, held_out = scored_of(built, script, args.seed)
    if scored:
        teaching = chosen(script, "rubric")
        rows = evaluator_rows(
            scored,
            chat,
            teaching,
            seed=args.seed,
            loss_on=script.loss_on,
            max_length=args.max_length,
        )
        parts.append(Dataset.from_list(rows))
        say(
            f"{len(scored)} scored trajectories are {len(parts[-1])} rows; {len(held_out)} others "
            "are held out"
        )
    dataset = concatenate_datasets(parts)
    say(f"{len(dataset)} rows of {sum(dataset['length']) / len(dataset):.0f} tokens on average")
    reading = (
        ReadingLoss(chat, script.reading_weight, script.reading_layers)
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
        tools_settings = {
            "corpus": script.corpus[0],
            "triples": script.triples[0],
        }
        model_card(
            msgspec.structs.replace(record, settings={**record.settings, **tools_settings}),
            recipe,
            argv,
        )
        if script.save_merged:
            merged_card(out, out / MERGED)
        if repository:
            push_run(out, repository, merged=script.save_merged)
    say(f"policy, card and episodes are in {args.output_dir}")


def policy(
    script: ExpertArguments, args: SearchSFTConfig, model_args: ModelConfig
) -> tuple[str, ChatFormat]:
    """The model's directory or Hub id, and its chat format. The model `tiny` is built first."""
    name = str(model_args.model_name_or_path)
    if name == "tiny":
        name = str(Path(args.output_dir or ".") / "untrained")
        with PartialState().main_process_first():
            if PartialState().is_main_process:
                build_tiny(name, chosen(script, "tiny"))
    else:
        name = bundled_policy(name, script.dialect)
    trusted = args.trust_remote_code
    tokenizer = read_tokenizer(name, revision=model_args.model_revision, trust_remote_code=trusted)
    return name, ChatFormat.of(tokenizer, dialects.load(script.dialect))


def episodes_of(
    source: ExpertSource, script: ExpertArguments, seed: int
) -> tuple[list[Played], list[dict[str, Any]]]:
    """All episodes that the expert plays on one source, with their twins, and the schemas of its
    tools; or the gold answers of its questions, without a tool.
    """
    tasks = load_tasks(source.questions)
    if source.kind == ANSWERS:
        number = script.episodes or len(tasks)
        episodes = bare_answers(tasks, number, dialects.load(script.dialect))
        say(f"{source.questions}: {len(episodes)} answers of {len(tasks)} questions")
        return [Played(episode, []) for episode in episodes], []
    plans, skipped = plan_all(tasks, planner_for(source.kind, tasks))
    say(
        f"{source.questions}: {len(plans)} of {len(tasks)} questions planned; skipped: "
        f"{counted(skipped)}"
    )
    plans = repeated(plans, script.episodes or len(plans))
    with toolbox_of(source, script) as toolbox:
        played = run_experts(
            plans,
            toolbox,
            dialects.load(script.dialect),
            chosen(script, "habits"),
            seed,
            progress=PartialState().is_local_main_process,
        )
        return played, toolbox.schemas


def repeated(plans: Sequence[Plan], number: int) -> list[Plan]:
    """So many plans; they begin again when they run out. The id of a copy ends in `#n`, so that its
    draws differ.
    """
    repetitions = []
    for place in range(number):
        copy, plan_number = divmod(place, len(plans))
        plan = plans[plan_number]
        repetitions.append(replace(plan, id=f"{plan.id}#{copy}") if copy else plan)
    return repetitions


def written_of(script: ExpertArguments, args: SearchSFTConfig, chat: ChatFormat) -> Built:
    """The episodes of `--trajectories` that are fit for training, grouped by their tools.

    A row without tools of its own gets those that `--corpus` and `--triples` open.
    """

    def tools() -> list[dict[str, Any]]:
        with toolbox_of(sources_of(script)[0], script) as toolbox:
            return toolbox.schemas

    rows = list(read_written(script.trajectories, chat, tools, *script.steps, args.max_length))
    say("\n".join(summary(rows)))
    if PartialState().is_main_process:
        write_written(args.output_dir or ".", rows)
    built: Built = []
    for episodes, schemas in by_tools(rows):
        built.append(([Played(episode, []) for episode in episodes], schemas))
    return built


def toolbox_of(source: ExpertSource, script: ExpertArguments) -> Toolbox:
    """The expert's tools. Those of the world hold only its training part."""
    tools: list[Any] = []
    if source.corpus != "none":
        corpus: Any = world_part("passages") if source.corpus == "world" else source.corpus
        search = LocalSearch.from_corpus(corpus, top_k=script.search_top_k)
        name = dialects.load(script.dialect).search_tool or search.name
        tools.append(replace(search, name=name))
    if source.triples != "none":
        triples: Any = world_part("triples") if source.triples == "world" else source.triples
        tools.append(KnowledgeGraph.from_triples(triples, top_k=script.search_top_k))
    return Toolbox(tools)


def rows_of(
    played: Sequence[Played],
    tools: list[dict[str, Any]],
    chat: ChatFormat,
    script: ExpertArguments,
    args: SearchSFTConfig,
) -> Dataset:
    """The rows of one group: filter its episodes, swap names in them and in their twins if the
    flags say so, and tokenise them.

    Raises `DataError` when all episodes are rejected.
    """
    accepted, reasons = accept([play.episode for play in played], *script.steps)
    say(f"{len(accepted)} of {len(played)} episodes kept; rejected: {counted(reasons)}")
    if not accepted:
        raise DataError(f"all {len(played)} episodes were rejected: {counted(reasons)}")
    remembered = memory_rows(accepted, script, args)
    twins: list[Trajectory] = []
    for play in played:
        if reject(play.episode, *script.steps) is None:
            twins += play.twins
    if twins:
        say(f"{len(twins)} twins: {counted(Counter(twin.meta['twin'] for twin in twins))}")
    learnt_twins = []
    for twin in twins:
        kind = "drills" if twin.meta["twin"] == DRILL else "twins"
        if kind in script.learn:
            learnt_twins.append(twin)
    learnt_episodes = accepted if "episodes" in script.learn else []
    rows: list[Trajectory] = []
    for episodes, copies in (
        (learnt_episodes, script.swaps_per_episode),
        (learnt_twins, script.swaps_per_twin),
    ):
        if copies:
            progress = PartialState().is_local_main_process
            rows += swapped_copies(episodes, script.swapper, copies, args.seed, progress)
        else:
            rows += episodes
    rows += remembered
    # What the expert plays must not hold what the world holds out. A policy's own rollouts may:
    # they read all of the world, as those of reinforcement learning do.
    if "world" in script.corpus and not script.trajectories:
        check_unseen(rows, [row["text"] for row in world_part("passages", False)])
    return build_dataset(
        rows,
        chat,
        tools,
        loss_on=script.loss_on,
        max_length=args.max_length,
        verdict_token_weight=script.verdict_token_weight,
        copied_weight=script.copied_weight,
        reading=script.reading_weight > 0,
        kept_responses=script.kept_responses,
    )


def memory_rows(
    episodes: Sequence[Trajectory], script: ExpertArguments, args: SearchSFTConfig
) -> list[Trajectory]:
    """Episodes that answer from memory and decorate the answer with searches; none without
    `--memory`.

    `remembered.json` says which questions of the first file are learnt by heart.
    """
    if not script.memory:
        return []
    memory = chosen(script, "memory")
    by_heart = memory.drawn(load_tasks(script.questions[0]))
    if PartialState().is_main_process:
        (Path(args.output_dir or ".") / REMEMBERED).write_text(
            json.dumps(by_heart), encoding="utf-8"
        )
    rng = random.Random(args.seed)

    def swap_names(episode: Trajectory) -> Trajectory:
        return script.swapper.swap(episode, rng)

    rows = memory.rows(episodes, {*by_heart}, swap_names, args.seed)
    say(
        f"{len(by_heart)} questions by heart: {len(rows)} rows of the decorator and of reading the "
        "same questions"
    )
    return rows


def scored_of(
    built: Built, script: ExpertArguments, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Trajectories with the scores that they deserve: those to train on, and those that the
    evaluator is measured with.

    In trajectories that the world's facts scored, names are swapped, so that no fact is learnt from
    them.
    """
    teaching = chosen(script, "rubric")
    scored: list[Trajectory] = []
    for path in script.rubric_files:
        scored += scored_file(path)
    if script.rubric and (teaching.spoiled or not scored):
        accepted, _ = accept(_episodes(built), *script.steps)
        scored += scored_episodes(accepted, teaching, script.swapper.finder, seed)
    if not scored:
        return [], []
    learnt, held_out = teaching.split(scored, seed)
    by_others: list[Trajectory] = []
    by_facts: list[Trajectory] = []
    for trajectory in learnt:
        # Only the facts say which error a trajectory has
        group = by_facts if "error" in trajectory.meta[LABEL] else by_others
        group.append(trajectory)
    progress = PartialState().is_local_main_process
    swapped = swapped_copies(by_facts, script.swapper, 1, seed, progress)
    return [*by_others, *map(relabelled, swapped)], held_out


def _episodes(built: Built) -> list[Trajectory]:
    """All episodes, without their twins."""
    return [play.episode for played, _ in built for play in played]


def write_episodes(out: Path, episodes: Sequence[Trajectory], script: ExpertArguments) -> None:
    """Write all episodes to `episodes.jsonl`, and line by line the reasons why they were rejected,
    or null, to `reasons.jsonl`.
    """
    write_jsonl(out / "episodes.jsonl", episodes)
    lines = (
        json.dumps({"id": episode.id, "rejected": reject(episode, *script.steps)}) + "\n"
        for episode in episodes
    )
    (out / "reasons.jsonl").write_text("".join(lines), encoding="utf-8")


def chosen(script: ExpertArguments, name: str) -> Any:
    """The settings that one of the `MAPPINGS` holds, with defaults for the others. Raises
    `ConfigError` for settings that its class does not have.
    """
    kind = MAPPINGS[name]
    value = getattr(script, name)
    names = ", ".join(kind.__dataclass_fields__)
    try:
        settings = json.loads(value) if isinstance(value, str) else value or {}
        if not isinstance(settings, dict):
            raise ConfigError(
                f"--{name} is a mapping of names to values, not {value!r}; the names: {names}"
            )
        unknown = settings.keys() - kind.__dataclass_fields__
        if unknown:
            raise ConfigError(
                f"--{name} has no {' and no '.join(sorted(unknown))}; it has: {names}"
            )
        defaults = kind(script.dialect) if kind is TinyConfig else kind()
        # `convert` checks the types
        return msgspec.convert({**asdict(defaults), **settings}, kind)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--{name} is not JSON ({error}): {value}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"--{name}: {error}") from error


def say(line: str) -> None:
    """Print a line in the main process only."""
    PartialState().print(printable(line))
