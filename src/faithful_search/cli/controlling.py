"""`faithful-search controls`: does an agent need its evidence?"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs, to_builtins

from ..errors import ConfigError, DataError
from .asking import agent_of, environment_of, episode_flags
from .options import AT_LEAST_1, FOLDER, config, echo, unfinished

if TYPE_CHECKING:
    from ..rollout.arguments import EnvironmentArguments
    from ..tasks import Task
    from ..tools import Toolbox
    from ..trajectory import Evidence

_CHARACTERS = 4  # of a token, about, in English
_USUAL = 3  # requests that an episode usually takes
_PASSAGE = 600  # characters


@click.command()
@click.argument("policy")
@click.option(
    "--url", help="POLICY is a model served there: the base URL of an OpenAI-compatible endpoint."
)
@click.option("--questions", default="world", help="'world', a file or a Hub dataset.")
@click.option("--split", default="validation", help="Split of the questions.")
@click.option("--limit", type=AT_LEAST_1, default=100, help="How many questions.")
@click.option(
    "--seed", type=int, help="Draw the questions at random; by default the first ones are asked."
)
@episode_flags("world", 256)
@click.option(
    "--conditions",
    default="closed,blocked,changed",
    help="Asked beside the open one, comma-separated.",
)
@click.option(
    "--match",
    type=click.Choice(["exact", "contains"]),
    help="Default: exact, for a served model contains.",
)
@click.option(
    "--total-tokens",
    type=AT_LEAST_1,
    default=2048,
    help="Tokens of an episode; not for a served model.",
)
@click.option(
    "--concurrency", type=AT_LEAST_1, default=16, help="Requests to the endpoint at once."
)
@click.option("--yes", is_flag=True, help="Ask the endpoint without asking me first.")
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-controls here.")
@click.option("--overwrite", is_flag=True, help="Start over and replace what the folder holds.")
@config
def controls(out: Path | None, overwrite: bool, **given: Any) -> None:
    """Ask POLICY questions with its evidence, without it, and with other evidence: does the answer depend on it?

    POLICY is a directory, a Hub id, 'tiny' or 'tiny_memory' (bundled), or with --url a served model's name. Tools
    return nothing (closed), all but the gold passages (blocked: those of supporting_ids or supporting_titles, else
    those that hold the answer), or changed facts (changed). Run the same command again to go on after an interruption.
    """
    from ..analysis.figures import bars
    from ..bundled import bundled_policy
    from ..hub.models import weights_of
    from ..measure.controls import (
        BLOCKED,
        CHANGED,
        CLOSED,
        OPEN,
        RESULTS,
        ROLLOUTS,
        Closed,
        kept,
        plan,
        run_study,
    )
    from ..measure.scores import open_policy
    from ..tasks import WORLD, load_tasks
    from ..text import exact_match, sub_exact_match
    from ..wire.cache import key_of

    policy, url, questions = given["policy"], given["url"], given["questions"]
    folder = out or Path(f"{policy.rstrip('/').rsplit('/', 1)[-1] or 'policy'}-controls")
    environment = environment_of(given)
    drawn = load_tasks(questions, given["split"], given["limit"], seed=given["seed"])
    tasks = [structs.replace(task, id=str(task.id)) for task in drawn]
    if questions in WORLD and environment.corpus != "world":
        told = f"the world's questions cannot be answered from {environment.corpus!r}"
        raise ConfigError(f"{told}: give --questions, too")
    conditions = [name.strip() for name in given["conditions"].split(",")]
    # Changes and gold passages are worked out only for their conditions: both may read the whole corpus
    changes = _changes(questions, given["split"], environment) if CHANGED in conditions else None
    found = plan(tasks, conditions, partial(_passages, environment), changes)
    # A chat model answers in sentences, a trained policy with the answer alone
    match = given["match"] or ("contains" if url else "exact")
    settings = {
        **{name: given[name] for name in ("policy", "url", "total_tokens")},
        **{name: value for name, value in asdict(environment).items() if value},
        # whole: what is blocked and changed follows from a question's annotations and the passages
        "questions": key_of(tasks=[structs.astuple(task) for task in tasks])[:16],
        "passages": environment.corpus_digest(),
        "match": match,
        "weights": weights_of(policy),
    }
    done = set() if overwrite else kept(folder, settings)
    with environment.toolbox() as toolbox:
        generator, served = None, {"concurrency": given["concurrency"]}
        if url:
            due = sum(task.id not in done for task in found.asked)
            echo(_cost(due, environment, toolbox, url))
            if not given["yes"] and sys.stdin.isatty():  # a script has nobody to answer
                click.confirm("Ask the endpoint?", abort=True)
        else:
            source = bundled_policy(policy, environment.dialect)
            generator = open_policy(source, "a policy of your own", given["trust_remote_code"])
        usual = agent_of(given, environment, toolbox, generator, **served)
        closed = agent_of(given, environment, Closed(toolbox), generator, **served)
        agents = {OPEN: usual, BLOCKED: usual, CHANGED: usual, CLOSED: closed}
        right = exact_match if match == "exact" else sub_exact_match
        study = run_study(agents, found, folder, settings, right, overwrite)
    written = [RESULTS, ROLLOUTS, "controls.png"]
    try:
        shown = {name: {"rows": to_builtins(rows)} for name, rows in study.rows.items()}
        metrics, title = (
            ("right", "same_answer", "memory_share", "decorated"),
            "With its evidence and without",
        )
        bars(shown, metrics, folder / "controls.png", title=title)
    except ConfigError as error:
        echo(f"no {written.pop()}: {error}", err=True)
    echo(f"{study}\n\n{', '.join(written)} in {folder}")
    if study.failed:
        why = next(iter(study.failed.values()))
        unfinished(
            [
                f"{len(study.failed)} rollouts failed and count nowhere; the same command tries again: {why}"
            ]
        )


def _passages(environment: "EnvironmentArguments") -> "Iterable[Evidence]":
    """All passages that the tools may return, so that the gold ones can be blocked."""
    if environment.corpus == "world":
        from ..world import bundled_world

        return [item.evidence for item in bundled_world().statements]
    if environment.triples != "none":
        raise ConfigError(
            f"the facts of {environment.triples!r} cannot be blocked; leave --triples out"
        )
    return environment.corpus_passages()


def _changes(
    questions: str, split: str, environment: "EnvironmentArguments"
) -> "Callable[[Task], Task | None] | None":
    """What changes the questions' facts: the bundled world, or what the questions of a split are annotated with."""
    from ..counterfactual import CounterfactualWorld
    from ..tasks import WORLD, load_tasks
    from ..world import bundled_world

    if questions in WORLD:
        return CounterfactualWorld(bundled_world()).change
    try:
        return CounterfactualWorld.annotated(
            load_tasks(questions, split), _passages(environment)
        ).change
    except (ConfigError, DataError):  # not annotated, or a server's passages
        return None


def _cost(episodes: int, environment: "EnvironmentArguments", toolbox: "Toolbox", url: str) -> str:
    """About what these episodes will take, told before the first request."""
    start = len(str(toolbox.schemas)) / _CHARACTERS + 100
    response = environment.search_top_k * _PASSAGE / _CHARACTERS + 60
    told = []
    for about, requests in (
        ("about", min(_USUAL, environment.turns)),
        ("at most", environment.turns),
    ):
        # each request carries all that came before it in its episode
        tokens = episodes * (requests * start + requests * (requests - 1) / 2 * response)
        told.append(f"{about} {episodes * requests:,} requests with {tokens:,.0f} prompt tokens")
    replies = f"up to {environment.turn_tokens} tokens a reply"
    return f"{episodes} episodes with {url}, {replies}: {', '.join(told)} (estimated, at 4 characters a token)"
