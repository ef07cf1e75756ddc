"""The flags of every training recipe, and the questions that they name."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError
from ..judges.arguments import JudgeArguments
from ..measure.controls import QUESTIONS
from ..rollout.arguments import EnvironmentArguments
from ..tasks import WORLD, Task, load_tasks
from ..world import bundled_world
from .advantages import TURN_ESTIMATORS
from .ppo import PPO, PPOSettings
from .starting import StartArguments, check_least, flag


@dataclass
class RunArguments(PPOSettings, EnvironmentArguments, JudgeArguments, StartArguments):
    """The flags of every training recipe: questions, tools and judge, and PPO's for `--advantages ppo`."""

    questions: str = flag("world", "'world' or 'world_passages' (bundled), a local file or a Hub dataset")
    eval_questions: str = flag("world", "held-out questions, likewise")
    eval_split: str = flag("validation", "split of the held-out questions")
    eval_limit: int = flag(200, "how many held-out questions; 0 skips the evaluations")
    eval_sample_seed: int | None = flag(
        None, "draws the eval_limit questions at random by this seed; none: the first ones"
    )
    eval_controls: int = flag(
        QUESTIONS, "held-out questions asked again without their evidence and in changed worlds; 0: none"
    )
    max_abstained: float = flag(0.5, "share of a step's rollouts that a judge may leave open before the run stops")
    advantages: str = flag(
        "trl", "'trl', 'group_relative', 'leave_one_out', by turn: 'turns', 'turns_leave_one_out'; 'ppo': of a value"
    )
    turn_gamma: float = flag(1.0, "by how much a turn discounts what later turns earn")
    llds: float = flag(0.0, "weight of the term that keeps what is not worse than others likely; 0.1 (LLDS)")
    uniform_groups: str = flag(
        "keep", "'drop': questions whose rollouts are all right or all wrong take no part in the update"
    )
    counterfactual: float = flag(0.0, "share of each question's rollouts in a world in which its answer is another")
    counterfactual_groups: str = flag(
        "paired", "'own': questions are changed as a whole, so that changed rollouts compare among themselves"
    )
    stale: float = flag(0.0, "share of the training questions always asked in a changed world, so that memory is wrong")
    save_merged: bool = flag(False, "with --use_peft: also the full model, merged, in output_dir/merged")
    dry_run: bool = flag(False, "two steps on a CPU with a random model of the same kind: are all settings accepted?")


def settings_of(script: RunArguments) -> dict[str, Any]:
    """The flags by name, without PPO's where another estimator made the advantages."""
    unused = () if script.advantages == PPO else [item.name for item in fields(PPOSettings)]
    return {name: value for name, value in asdict(script).items() if name not in unused}


def check_data(script: RunArguments) -> None:
    """Raise `ConfigError` for flags that nothing reads, numbers that are too small, and data that do not go together:
    the bundled world with other questions or passages, or changed worlds with tools that do not know of them."""
    if script.advantages != PPO:
        refuse_unread(script, [item.name for item in fields(PPOSettings)], "--advantages ppo")
    if script.advantages not in TURN_ESTIMATORS:
        refuse_unread(script, ["turn_gamma"], f"--advantages {' or '.join(TURN_ESTIMATORS)}")
    if not script.counterfactual:
        refuse_unread(script, ["counterfactual_groups"], "--counterfactual above 0")
    check_least(script, eval_limit=0, eval_controls=0, generation_batch=1)
    asked = [script.questions, *([script.eval_questions] if script.eval_limit else [])]
    bundled = {name in WORLD for name in (script.corpus, *asked)}
    if len(bundled) > 1:
        raise ConfigError(
            f"questions {script.questions!r}, eval_questions {script.eval_questions!r}, corpus {script.corpus!r}: "
            "the bundled world and other data are mixed; give all three"
        )
    if not 0 <= script.stale <= 1:
        raise ConfigError(f"--stale is a share of the questions, in [0, 1], not {script.stale}")
    changed = {"corpus", "negative_tool"} | ({"triples"} if script.corpus == script.triples == "world" else set())
    others = [f"--{name} {getattr(script, name)}" for name in script.given_tools if name not in changed]
    if (script.counterfactual or script.stale) and others:
        raise ConfigError(
            "--counterfactual and --stale change facts of the corpus and of the bundled world's triples; "
            f"{' and '.join(others)} would still say what was: give none"
        )


def check_choices(script: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Raise `ConfigError` if a flag, or a setting of the configuration, is none of its choices."""
    for name, known in choices.items():
        if getattr(script, name) not in known:
            raise ConfigError(f"unknown {name} {getattr(script, name)!r}; there are: {', '.join(known)}")


def refuse_unread(script: Any, names: Sequence[str], reader: str) -> None:
    """Raise `ConfigError` if a flag that only `reader` has a use for is not at its default."""
    told = [(item, getattr(script, item.name)) for item in fields(script) if item.name in names]
    given = " ".join(f"--{item.name} {value}" for item, value in told if value != item.default)
    if given:
        raise ConfigError(f"{given}: read with {reader} only; give that, or leave the default")


def counterfactual_world(script: RunArguments, tasks: list[Task], seed: int) -> CounterfactualWorld:
    """Changes the questions' world: the bundled one, or the facts that the questions of a file are annotated with."""
    if script.questions in WORLD:
        return CounterfactualWorld(bundled_world(), seed)
    return CounterfactualWorld.annotated(tasks, script.corpus_passages(), seed)


def with_stale(tasks: list[Task], world: CounterfactualWorld, share: float) -> tuple[list[Task], int]:
    """The questions with a share of them in a changed world, drawn with the world's seed; and the number of these."""
    changed: dict[int, Task] = {}
    # all in a random order, not a sample of that size: some questions have no changed world
    for number in random.Random(world.seed).sample(range(len(tasks)), len(tasks)):
        if len(changed) < round(share * len(tasks)) and (found := world.change(tasks[number])) is not None:
            changed[number] = found
    return [changed.get(number, task) for number, task in enumerate(tasks)], len(changed)


def held_out(script: RunArguments) -> list[Task]:
    """The questions of the evaluations; none without `eval_limit`."""
    many, seed = script.eval_limit, script.eval_sample_seed
    return load_tasks(script.eval_questions, script.eval_split, many, seed=seed) if many else []
