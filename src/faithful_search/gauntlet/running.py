"""Runs the gauntlet: the cheats and the honest reader make rollouts, every mix scores them, and
both are written to a folder as they are made.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import dialects
from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..measure.controls import under
from ..measure.evaluation import run_episodes
from ..measure.ledger import Ledger, Records, same_settings
from ..measure.writing import make_folder, write_metrics, write_whole
from ..rewards import Mix, Score
from ..rollout import Agent, Engine
from ..rollout.arguments import EnvironmentArguments
from ..tasks import Task, load_tasks
from ..tools import Toolbox
from ..trajectory import Trajectory
from . import page
from .believing import Believers
from .cheat import Cheat
from .mixes import Contender, reachable_settings, with_open_weights
from .playing import HONEST, CheatingAgent, HonestAgent
from .results import Gauntlet, Payment, Trial, gauntlet_of

# The names of what the folder of a run holds
SETTINGS, TRIALS, ROLLOUTS = "settings.json", "trials.jsonl", "rollouts"
RESULTS, TABLE, PAGE = "gauntlet.json", "gauntlet.md", "gauntlet.html"
POLICY_TOKENS = 2048
"""The most tokens of an episode of a policy that is the honest reader."""
Rollouts = dict[str, list[Trajectory]]
"""By the name of a player (`HONEST` or a cheat's name), its rollouts in the order of the
questions.
"""


def questions(limit: int) -> list[Task]:
    """The first `limit` validation questions of the bundled world that can be answered in every
    dialect. Some dialects can only search, so all facts of such a question stand in passages.
    """
    tasks = load_tasks("world", "validation")
    return list(filter(_is_searchable, tasks))[:limit]


def _is_searchable(task: Task) -> bool:
    return all(fact["passage"] for fact in task.meta["chain"])


def run_gauntlet(
    contenders: Sequence[Contender],
    cheats: Mapping[str, Cheat],
    tasks: Sequence[Task],
    folder: Path,
    settings: Mapping[str, Any],
    policy: Generator | None = None,
    alphas: Sequence[float] = (),
    anew: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Gauntlet:
    """Have every cheat and the honest reader answer the questions, and score each cheat beside the
    reader with every contender.

    `rollouts/DIALECT/PLAYER.jsonl` and `trials.jsonl` are written as they are made. A later run
    takes them over, except for trials in which a judge failed. `gauntlet.json`, `gauntlet.md` and
    `gauntlet.html` are written at the end.

    Args:
        contenders: the mixes or rewards.
        cheats: by name.
        tasks: the questions.
        folder: where files are written; it is made where it does not exist.
        settings: what the results depend on. A folder with other settings is refused.
        policy: the honest reader, which samples greedily. Rewards that ask the policy about its
            evidence ask it. By default the reader is the bundled world's expert, and the world's
            facts answer such rewards.
        alphas: the weights of an adaptive part that are tried; see `reachable_settings`.
        anew: delete the rollouts, trials and settings in the folder first.
        say: called with a line about each stage when it begins.

    Raises:
        ConfigError: the folder holds results of other settings, two contenders have one name, or a
            cheat has the reader's name.
        DataError: another run writes to the folder.
    """
    if len({contender.name for contender in contenders}) < len(contenders):
        raise ConfigError("two mixes have one name: rename a file")
    if HONEST in cheats:
        raise ConfigError(f"{HONEST!r} is the reader's name: rename the file of that cheat")
    make_folder(folder)
    if anew:
        # The ledger's lock keeps this from deleting the files of a run that is under way.
        with Ledger(folder / TRIALS, "gauntlet", anew):
            (folder / SETTINGS).unlink(missing_ok=True)
            shutil.rmtree(folder / ROLLOUTS, ignore_errors=True)
    trials: dict[tuple[str, str], Trial] = {}
    ledger = Records(
        folder / TRIALS,
        name="gauntlet",
        kind=Trial,
        keep=lambda trial: ((trial.mix, trial.cheat), trial),
    )
    with ledger:
        advice = "give another --out, or --overwrite"
        if ledger.count and not (folder / SETTINGS).exists():
            raise ConfigError(f"{folder} holds results, but no {SETTINGS} with them: {advice}")
        same_settings(folder / SETTINGS, settings, advice)
        write_metrics(folder / SETTINGS, settings)
        rollouts: dict[str, Rollouts] = {}
        for dialect in dict.fromkeys(contender.dialect for contender in contenders):
            say(f"playing in dialect {dialect}")
            rollouts[dialect] = play(
                cheats, tasks, dialect, folder=folder / ROLLOUTS / dialect, policy=policy
            )
        for contender in contenders:
            say(f"scoring with {contender.name}")
            for name, cheat in cheats.items():
                key = contender.name, name
                if key not in ledger.kept or ledger.kept[key].unjudged:
                    trial = try_cheat(
                        contender,
                        name=name,
                        cheat=cheat,
                        rollouts=rollouts[contender.dialect],
                        policy=policy,
                        alphas=alphas,
                    )
                    ledger.add([trial])
                trials[key] = ledger.kept[key]
    exploits = {name: cheat.exploits() for name, cheat in cheats.items()}
    result = gauntlet_of(list(trials.values()), exploits)
    write_metrics(folder / RESULTS, {**result.to_dict(), "settings": dict(settings)})
    write_whole(folder / TABLE, result.markdown().encode())
    by_mix = {contender.name: rollouts[contender.dialect] for contender in contenders}
    page.write(folder / PAGE, result, list(trials.values()), by_mix)
    return result


def play(
    cheats: Mapping[str, Cheat],
    tasks: Sequence[Task],
    dialect: str,
    folder: Path | None = None,
    policy: Generator | None = None,
) -> Rollouts:
    """The rollouts of the honest reader and of all cheats in one dialect. With a `folder` they are
    written there as `PLAYER.jsonl`, and those that it already holds are read instead of made.
    """
    if folder is not None:
        make_folder(folder)
    rollouts: Rollouts = {}
    with environment(dialect).toolbox() as toolbox:
        for name, agent in players(cheats, tasks, toolbox, dialect=dialect, policy=policy):
            rollouts[name] = run_episodes(
                agent,
                tasks=[under(name, task) for task in tasks],
                condition=name,
                file=None if folder is None else folder / f"{name}.jsonl",
                tokens=False,
            )
    return rollouts


def players(
    cheats: Mapping[str, Cheat],
    tasks: Sequence[Task],
    toolbox: Toolbox,
    dialect: str,
    policy: Generator | None = None,
) -> Iterator[tuple[str, Agent]]:
    """The honest reader (the policy, or without one the expert) and then the cheats, by name, as
    agents with these tools.
    """
    loaded_dialect = dialects.load(dialect)
    if policy is None:
        yield HONEST, HonestAgent(tasks, toolbox, loaded_dialect)
    else:
        limits = environment(dialect).limits(POLICY_TOKENS)
        greedy = Sampling(temperature=0.0)
        yield HONEST, Engine(policy, toolbox, loaded_dialect, limits=limits, sampling=greedy)
    for name, cheat in cheats.items():
        yield name, CheatingAgent(cheat, tasks, toolbox, loaded_dialect)


def environment(dialect: str) -> EnvironmentArguments:
    """The settings of the bundled world's tools: search and, where the dialect can call other
    tools, the tools of its triples.
    """
    searches_only = dialects.load(dialect).search_tool is not None
    return EnvironmentArguments(dialect=dialect, triples="none" if searches_only else "world")


def try_cheat(
    contender: Contender,
    name: str,
    cheat: Cheat,
    rollouts: Rollouts,
    policy: Generator | None = None,
    alphas: Sequence[float] = (),
) -> Trial:
    """Score the rollouts of a cheat in one batch with those of the honest reader.

    Args:
        contender: the mix or reward; a mix is tried at each of its settings (`reachable_settings`).
        name: of the cheat.
        rollouts: of all players in the contender's dialect.
        policy, alphas: as for `run_gauntlet`.
    """
    honest, cheating = rollouts[HONEST], rollouts[name]
    trajectories = [*honest, *cheating]
    reward = contender.reward.bind(policy=Believers(cheat, cheating, policy))
    if isinstance(reward, Mix):
        # A part that is held at weight 0 is not scored, but `alphas` may give it another
        scored = with_open_weights(reward) if alphas else reward
        components = scored.components(trajectories)
        settings = reachable_settings(reward, alphas)
        labels = tuple(setting.label for setting in settings)
        by_setting = [setting.mix.combine(components, setting.state) for setting in settings]
    else:
        scores = reward.score_batch(trajectories)
        if len(scores) != len(trajectories):
            raise ConfigError(
                f"{contender.name} gave {len(scores)} scores for {len(trajectories)} rollouts"
            )
        components = [{contender.name: score} for score in scores]
        labels = ("",)
        by_setting = [scores]
    payments = []
    for row, trajectory in enumerate(trajectories):
        row_scores = [scores[row] for scores in by_setting]
        payments.append(_payment(trajectory, row_scores, components[row]))
    return Trial(
        mix=contender.name,
        cheat=name,
        settings=labels,
        honest=tuple(payments[: len(honest)]),
        cheating=tuple(payments[len(honest) :]),
    )


def _payment(
    trajectory: Trajectory, scores: Sequence[Score], components: Mapping[str, Score]
) -> Payment:
    """What a rollout was paid: its `scores` by setting, and those of the mix's `components`."""
    reasons = {part: score.why for part, score in components.items() if score.why}
    if scores[0].why:
        reasons.setdefault("mix", scores[0].why)
    return Payment(
        question=trajectory.id.rpartition("@")[0],  # `under` made the id QUESTION@PLAYER
        values=tuple(score.value for score in scores),
        abstained=any(score.parts.get("abstained", False) for score in scores),
        parts={part: score.value for part, score in components.items()},
        why=reasons,
    )
