"""`faithful-search controls`: does an agent need its evidence?"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs, to_builtins

from .. import suites
from ..errors import ConfigError, DataError
from .agents import agent_of, environment_of, episode_flags, served_cost
from .options import AT_LEAST_1, FOLDER, config, echo, exit_unfinished, old_name, say

FIGURE = "controls.png"

if TYPE_CHECKING:
    from ..rollout.arguments import EnvironmentArguments
    from ..tasks import Task
    from ..trajectory import Evidence


@click.command()
@click.argument("policy", metavar="MODEL")
@click.option(
    "--endpoint",
    "url",
    help="Base URL of an OpenAI-compatible server that serves MODEL.",
)
@old_name("--url", "--endpoint")
@click.option(
    "--questions",
    default="world",
    help="Questions to ask: 'world', a file, or a dataset on the Hub.",
)
@click.option("--split", default="validation", help="Split of the questions to use.")
@click.option("--limit", type=AT_LEAST_1, default=100, help="Number of questions to ask.")
@click.option(
    "--sample-seed",
    type=int,
    help="Random seed for drawing the questions. By default the first ones are asked.",
)
@old_name("--seed", "--sample-seed")
@episode_flags("world", 256)
@click.option(
    "--conditions",
    default="closed,blocked,changed",
    help="Conditions to ask under beside the open one, separated by commas.",
)
@click.option(
    "--match",
    type=click.Choice(["exact", "contains"]),
    help="How an answer is compared with gold answers. By default exact, and contains for a served "
    "model, which answers in sentences.",
)
@click.option(
    "--total-tokens",
    type=AT_LEAST_1,
    default=2048,
    help="Maximum number of tokens in an episode. Not used for a served model.",
)
@click.option(
    "--concurrency",
    type=AT_LEAST_1,
    default=16,
    help="Maximum number of simultaneous requests to the endpoint.",
)
@click.option("--yes", is_flag=True, help="Send the requests without asking for confirmation.")
@click.option(
    "--out",
    type=FOLDER,
    help="Folder to write the results to. By default NAME-controls in the current folder.",
)
@click.option("--overwrite", is_flag=True, help="Delete earlier results in the folder.")
@config
def controls(out: Path | None, overwrite: bool, **options: Any) -> None:
    """Test whether a policy's answers depend on its evidence.

    The same questions are asked with the evidence as it is (open), and under other conditions. In
    the closed condition the tools return nothing. In the blocked condition they return everything
    but the gold passages: those named by supporting_ids or supporting_titles, else those that hold
    the answer. In the changed condition the passages state other facts.

    MODEL is a directory, a Hub id, 'tiny' or 'tiny_memory' (bundled), or with --endpoint the name
    of a served model. To continue after an interruption, run the same command again.
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
        finished_rollouts,
        plan,
        run_study,
    )
    from ..measure.scores import open_policy
    from ..tasks import load_tasks
    from ..text import exact_match, sub_exact_match
    from ..wire.cache import key_of

    policy, url, questions = options["policy"], options["url"], options["questions"]
    name = policy.rstrip("/").rsplit("/", 1)[-1] or "policy"
    folder = out or Path(f"{name}-controls")
    environment = environment_of(options)
    _check_corpus(questions, environment.corpus)
    drawn = load_tasks(questions, options["split"], options["limit"], seed=options["sample_seed"])
    tasks = [structs.replace(task, id=str(task.id)) for task in drawn]
    conditions = [condition.strip() for condition in options["conditions"].split(",")]
    # Changes and gold passages are worked out only for their conditions: both may read the whole
    # corpus
    changes = _changes(questions, options["split"], environment) if CHANGED in conditions else None
    study_plan = plan(tasks, conditions, partial(_passages, environment), changes)
    # A chat model answers in sentences, a trained policy with the answer alone
    match = options["match"] or ("contains" if url else "exact")
    settings = {
        **{name: options[name] for name in ("policy", "url", "total_tokens")},
        **{name: value for name, value in asdict(environment).items() if value},
        # whole tasks: their annotations decide what is blocked and changed
        "questions": key_of(tasks=[structs.astuple(task) for task in tasks])[:16],
        "passages": environment.corpus_digest(),
        "match": match,
        "weights": weights_of(policy),
    }
    done = set() if overwrite else finished_rollouts(folder, settings)
    with environment.toolbox() as toolbox:
        generator = None
        if url:
            episodes = sum(task.id not in done for task in study_plan.tasks)
            echo(served_cost(episodes, environment, toolbox, url))
            if not options["yes"] and sys.stdin.isatty():  # a script has nobody to answer
                click.confirm("Ask the endpoint?", abort=True)
        else:
            source = bundled_policy(policy, environment.dialect)
            generator = open_policy(source, "a policy of your own", options["trust_remote_code"])
        concurrency = options["concurrency"]  # a local policy takes none
        usual = agent_of(options, environment, toolbox, generator, concurrency=concurrency)
        closed = agent_of(options, environment, Closed(toolbox), generator, concurrency=concurrency)
        agents = {OPEN: usual, BLOCKED: usual, CHANGED: usual, CLOSED: closed}
        right = exact_match if match == "exact" else sub_exact_match
        study = run_study(
            agents=agents,
            study_plan=study_plan,
            folder=folder,
            settings=settings,
            right=right,
            anew=overwrite,
        )
    files = [RESULTS, ROLLOUTS]
    evaluations = {condition: {"rows": to_builtins(rows)} for condition, rows in study.rows.items()}
    results = ("right", "same_answer", "memory_share", "decorated")
    try:
        bars(evaluations, results, folder / FIGURE, title="With its evidence and without")
        files.append(FIGURE)
    except ConfigError as error:  # matplotlib is missing
        say(f"no {FIGURE}: {error}", err=True)
    echo(f"{study}\n")
    say(f"{', '.join(files)} in {folder}")
    if study.failed:
        first_reason = next(iter(study.failed.values()))
        exit_unfinished(
            [
                f"{len(study.failed)} rollouts failed and count nowhere; the same command tries "
                f"again: {first_reason}"
            ]
        )


def _check_corpus(questions: str, corpus: str) -> None:
    """Raise `ConfigError` for questions that need a corpus of their own, and another corpus."""
    question_source = suites.with_corpus(questions)
    if question_source is not None and suites.with_corpus(corpus) is not question_source:
        problem = f"the questions {questions!r} cannot be answered from {corpus!r}"
        raise ConfigError(f"{problem}: give --questions, too")


def _passages(environment: "EnvironmentArguments") -> "Iterable[Evidence]":
    """All passages that the tools may return, among which the gold ones are looked for.

    Raises `ConfigError` where they cannot be listed: facts of a graph, passages of a server.
    """
    if environment.corpus == "world":
        from ..world import bundled_world

        return [statement.evidence for statement in bundled_world().statements]
    if environment.triples != "none":
        raise ConfigError(
            f"the facts of {environment.triples!r} cannot be blocked; leave --triples out"
        )
    return environment.corpus_passages()


def _changes(
    questions: str, split: str, environment: "EnvironmentArguments"
) -> "Callable[[Task], Task | None] | None":
    """A function that gives a question in a world where a fact that it rests on has changed. The
    facts are those of the questions' source, or else those that the questions are annotated with.
    `None` if neither are known.
    """
    from ..counterfactual import CounterfactualWorld
    from ..tasks import load_tasks

    if suites.facts_are_known(questions):
        return CounterfactualWorld.bundled().change
    try:
        tasks = load_tasks(questions, split)
        return CounterfactualWorld.annotated(tasks, _passages(environment)).change
    except (ConfigError, DataError):  # not annotated, or a server's passages
        return None
