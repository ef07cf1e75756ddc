"""`faithful-search controls`: does an agent need its evidence?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import ConfigError, DataError, FaithfulSearchError
from .auditing import UNFINISHED
from .options import FOLDER, config, debug, echo, trust_remote_code

if TYPE_CHECKING:
    from ..measure.control_study import Agent, Plan, Study
    from ..measure.controls import Changes
    from ..rollout.arguments import EnvironmentArguments
    from ..tools import Toolbox
    from ..trajectory import Evidence

_AT_LEAST_1 = click.IntRange(min=1)
_CHARACTERS = 4
"""A token's, about, in English."""
_USUAL = 3
"""Requests that an episode usually takes."""
_PASSAGE = 600
"""Characters of a passage, where the corpus cannot be read."""


@click.command()
@click.argument("policy")
@click.option("--url", help="POLICY is a model served there: the base URL of an OpenAI-compatible endpoint.")
@click.option("--questions", default="world", show_default=True, help="'world', a file or a Hub dataset.")
@click.option("--split", default="validation", show_default=True, help="Split of the questions.")
@click.option("--limit", type=_AT_LEAST_1, default=100, show_default=True, help="How many questions.")
@click.option("--seed", type=int, help="Draws them at random; by default they are the first ones.")
@click.option("--corpus", default="world", show_default=True, help="What local_search searches, as in the recipes.")
@click.option("--triples", help="Facts of knowledge_graph; by default the world's with the world's corpus, else none.")
@click.option("--top-k", type=_AT_LEAST_1, default=3, show_default=True, help="Passages a search returns.")
@click.option("--dialect", default="pou", show_default=True, help="How the policy writes; a served one: openai.")
@click.option(
    "--conditions", default="closed,blocked,changed", show_default=True, help="Asked besides the open one, by commas."
)
@click.option(
    "--match",
    type=click.Choice(["exact", "contains"]),
    help="When an answer is right; by default exact, for a served model contains: it holds a gold answer.",
)
@click.option("--turns", type=_AT_LEAST_1, default=10, show_default=True, help="Of an episode.")
@click.option("--turn-tokens", type=_AT_LEAST_1, default=256, show_default=True, help="Of a turn or reply.")
@click.option("--total-tokens", type=_AT_LEAST_1, default=2048, show_default=True, help="Of an episode; not if served.")
@click.option(
    "--concurrency", type=_AT_LEAST_1, default=16, show_default=True, help="Requests to the endpoint at once."
)
@click.option("--yes", is_flag=True, help="Ask the endpoint without asking me first.")
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-controls here.")
@click.option("--overwrite", is_flag=True, help="Begin anew and replace what the folder holds.")
@trust_remote_code
@config
@debug
@click.pass_context
def controls(ctx: click.Context, policy: str, out: Path | None, overwrite: bool, **given: Any) -> None:
    """Ask POLICY questions with its evidence, without it, and with other evidence: does the answer depend on it?

    POLICY is a directory, a Hub id, 'tiny' or 'tiny_memory' (bundled), or with --url a served model's name. Tools
    return nothing (closed), all but the gold passages (blocked: those of supporting_ids or supporting_titles, else
    those that hold the answer), or changed facts (changed). Run the same command again to go on after an interruption.
    """
    from ..measure.control_study import ROLLOUTS, SETTINGS, kept, plan, run_study
    from ..measure.controls import CHANGED
    from ..tasks import WORLD, load_tasks
    from ..text import exact_match, sub_exact_match

    folder = out or Path(f"{policy.rstrip('/').rsplit('/', 1)[-1] or 'policy'}-controls")
    if overwrite:
        for name in (SETTINGS, ROLLOUTS):
            (folder / name).unlink(missing_ok=True)
    environment = _environment(given)
    tasks = [
        msgspec.structs.replace(task, id=str(task.id))
        for task in load_tasks(given["questions"], given["split"], given["limit"], seed=given["seed"])
    ]
    if given["questions"] in WORLD and given["corpus"] != "world":
        raise ConfigError(f"the world's questions cannot be answered from {given['corpus']!r}: give --questions, too")
    conditions = [name.strip() for name in given["conditions"].split(",")]
    changes = _changes(given, environment) if CHANGED in conditions else None
    found = plan(tasks, conditions, partial(_passages, environment), changes)
    settings = _settings(policy, given, environment, tasks)
    there = kept(folder, settings)
    with environment.toolbox() as toolbox:
        if given["url"]:
            echo(_cost(found, there, environment, toolbox, given))
            if not given["yes"] and sys.stdin.isatty():
                click.confirm("Ask the endpoint?", abort=True)
        agents = _agents(policy, given, environment, toolbox)
        matches = {"exact": exact_match, "contains": sub_exact_match}
        study = run_study(agents, found, folder, settings, matches[settings["match"]])
    _show(study, folder)
    if study.failed:
        why = next(iter(study.failed.values()))
        echo(f"{len(study.failed)} rollouts failed and count nowhere; the same command tries again: {why}", err=True)
        ctx.exit(UNFINISHED)


def _environment(given: Mapping[str, Any]) -> EnvironmentArguments:
    from .. import dialects
    from ..rollout.arguments import EnvironmentArguments

    dialect = "openai" if given["url"] else given["dialect"]
    alone = given["corpus"] != "world" or dialects.load(dialect).search_tool is not None
    return EnvironmentArguments(
        corpus=given["corpus"],
        triples=given["triples"] or ("none" if alone else "world"),
        search_top_k=given["top_k"],
        dialect=dialect,
        turns=given["turns"],
        turn_tokens=given["turn_tokens"],
    )


def _passages(environment: EnvironmentArguments) -> Iterable[Evidence]:
    """All that the tools may return, so that what is gold of it can be blocked."""
    if environment.corpus == "world":
        from ..world import bundled_world

        return [item.evidence for item in bundled_world().statements]
    if environment.triples != "none":
        raise ConfigError(f"the facts of {environment.triples!r} cannot be blocked; leave --triples out")
    return environment.corpus_passages()


def _changes(given: Mapping[str, Any], environment: EnvironmentArguments) -> Changes | None:
    """What changes the questions' facts: the bundled world, or what the questions of a split are annotated with."""
    from ..counterfactual import CounterfactualWorld
    from ..tasks import WORLD, load_tasks
    from ..world import bundled_world

    if given["questions"] in WORLD:
        return CounterfactualWorld(bundled_world())
    try:
        every = load_tasks(given["questions"], given["split"])
        return CounterfactualWorld.annotated(every, _passages(environment))
    except (ConfigError, DataError):  # not annotated, or a server's passages
        return None


def _settings(
    policy: str, given: Mapping[str, Any], environment: EnvironmentArguments, tasks: Sequence[Any]
) -> dict[str, Any]:
    """What the rollouts depend on: weights that were trained on since are another policy."""
    from ..wire.cache import key_of

    names = ("url", "corpus", "top_k", "turns", "turn_tokens", "total_tokens")
    weights = sorted(Path(policy).glob("*.safetensors")) if Path(policy).is_dir() else []
    return {
        "policy": policy,
        **{name: given[name] for name in names},
        "triples": environment.triples,
        "dialect": environment.dialect,
        "questions": key_of(tasks=[[task.id, task.question, task.answers] for task in tasks])[:16],
        "match": given["match"] or ("contains" if given["url"] else "exact"),
        "weights": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weights],
    }


def _agents(
    policy: str, given: Mapping[str, Any], environment: EnvironmentArguments, toolbox: Toolbox
) -> dict[str, Agent]:
    """Who is asked under each condition: the same policy, whose tools return nothing under the closed one."""
    from ..measure.controls import BLOCKED, CHANGED, CLOSED, OPEN, Closed

    if given["url"]:
        from ..rollout import ServedAgent

        how = {name: given[name] for name in ("turns", "concurrency")} | {"max_tokens": given["turn_tokens"]}
        served = [ServedAgent(policy, given["url"], tools, **how) for tools in (toolbox, Closed(toolbox))]
        return {OPEN: served[0], BLOCKED: served[0], CHANGED: served[0], CLOSED: served[1]}
    from ..bundled import bundled_policy
    from ..inference.base import Sampling
    from ..measure.scoring import open_policy
    from ..rollout import Engine

    source = bundled_policy(policy, environment.dialect)
    generator = open_policy(source, "a policy of your own", given["trust_remote_code"])
    limits, greedy = environment.limits(given["total_tokens"]), Sampling(temperature=0.0)
    engines = [Engine(generator, tools, environment.dialect, limits, greedy) for tools in (toolbox, Closed(toolbox))]
    return {OPEN: engines[0], BLOCKED: engines[0], CHANGED: engines[0], CLOSED: engines[1]}


def _cost(
    found: Plan,
    there: Mapping[tuple[str, str], Any],
    environment: EnvironmentArguments,
    toolbox: Toolbox,
    given: Mapping[str, Any],
) -> str:
    """What is to come, told before the first request. A request carries all that came before it in its episode."""
    due = [task for condition, own in found.asked.items() for id, task in own.items() if (condition, id) not in there]
    start = (len(str(toolbox.schemas)) + sum(len(task.question) for task in due) / max(1, len(due)) + 200) / _CHARACTERS
    response = given["top_k"] * _passage_characters(environment) / _CHARACTERS + 60

    def prompts(requests: int) -> str:
        return f"{len(due) * (requests * start + requests * (requests - 1) / 2 * response):,.0f}"

    most, usual = given["turns"], min(_USUAL, given["turns"])
    return (
        f"{len(due)} episodes with {given['url']}, up to {given['turn_tokens']} tokens a reply: about "
        f"{len(due) * usual:,} requests with {prompts(usual)} prompt tokens, at most {len(due) * most:,} requests with "
        f"{prompts(most)} (estimated at {_CHARACTERS} characters a token)"
    )


def _passage_characters(environment: EnvironmentArguments) -> float:
    """A passage's mean length, from the first hundred."""
    try:
        lengths = [len(item.title) + len(item.text) for item in islice(environment.corpus_passages(), 100)]
    except FaithfulSearchError:
        return _PASSAGE
    return sum(lengths) / len(lengths)


def _show(study: Study, folder: Path) -> None:
    from ..measure.control_study import RESULTS, ROLLOUTS

    written = [RESULTS, ROLLOUTS]
    try:
        from ..analysis import bars

        metrics = ("right", "same_answer", "memory_share", "decorated")
        shown = {name: {"rows": msgspec.to_builtins(rows)} for name, rows in study.rows.items()}
        bars(shown, metrics, folder / "controls.png", title="With its evidence and without")
        written.append("controls.png")
    except ConfigError as error:
        echo(f"no controls.png: {error}", err=True)
    echo(f"{study}\n\n{', '.join(written)} in {folder}")
