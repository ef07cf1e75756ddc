"""`faithful-search controls`: does an agent need its evidence?"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    from ..measure.controls import Study, StudyPlan
    from ..rollout import Agent
    from ..rollout.arguments import EnvironmentArguments
    from ..tasks import Task
    from ..tools import Toolbox
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
    from ..measure.controls import finished_rollouts, run_study
    from ..text import exact_match, sub_exact_match

    folder = out or Path(f"{_name_of(options['policy'])}-controls")
    environment = environment_of(options)
    _check_corpus(options["questions"], environment.corpus)
    tasks = _questions(options)
    study_plan = _plan(tasks, options, environment)
    # A chat model answers in sentences, a trained policy with the answer alone
    match = options["match"] or ("contains" if options["url"] else "exact")
    settings = _settings_of_rollouts(tasks, options, environment, match)
    finished = set() if overwrite else finished_rollouts(folder, settings)
    episodes = sum(task.id not in finished for task in study_plan.tasks)
    with environment.toolbox() as toolbox:
        if options["url"]:
            _confirm_cost(episodes, options, environment, toolbox)
        study = run_study(
            agents=_agents(options, environment, toolbox),
            study_plan=study_plan,
            folder=folder,
            settings=settings,
            right=exact_match if match == "exact" else sub_exact_match,
            anew=overwrite,
        )
    _report(study, folder)


def _name_of(policy: str) -> str:
    """The last part of a directory or Hub id."""
    return policy.rstrip("/").rsplit("/", 1)[-1] or "policy"


def _questions(options: Mapping[str, Any]) -> "list[Task]":
    """The questions that are asked, each with an id that is text."""
    from ..tasks import load_tasks

    drawn = load_tasks(
        options["questions"], options["split"], options["limit"], seed=options["sample_seed"]
    )
    return [structs.replace(task, id=str(task.id)) for task in drawn]


def _plan(
    tasks: "Sequence[Task]", options: Mapping[str, Any], environment: "EnvironmentArguments"
) -> "StudyPlan":
    """What is asked under each condition."""
    from ..measure.controls import CHANGED, plan

    conditions = [condition.strip() for condition in options["conditions"].split(",")]
    changes = None
    # Changes and gold passages are worked out only for their conditions: both may read the whole
    # corpus
    if CHANGED in conditions:
        changes = _changes(options["questions"], options["split"], environment)
    return plan(tasks, conditions, partial(_passages, environment), changes)


def _settings_of_rollouts(
    tasks: "Sequence[Task]",
    options: Mapping[str, Any],
    environment: "EnvironmentArguments",
    match: str,
) -> dict[str, Any]:
    """What the rollouts in the folder depend on."""
    from ..hub.models import weights_of
    from ..wire.cache import key_of

    return {
        **{name: options[name] for name in ("policy", "url", "total_tokens")},
        **{name: value for name, value in asdict(environment).items() if value},
        # whole tasks: their annotations decide what is blocked and changed
        "questions": key_of(tasks=[structs.astuple(task) for task in tasks])[:16],
        "passages": environment.corpus_digest(),
        "match": match,
        "weights": weights_of(options["policy"]),
    }


def _confirm_cost(
    episodes: int,
    options: Mapping[str, Any],
    environment: "EnvironmentArguments",
    toolbox: "Toolbox",
) -> None:
    """Say what the endpoint will be asked, and ask whether to go on. Raises `Abort` for a no."""
    echo(served_cost(episodes, environment, toolbox, options["url"]))
    if not options["yes"] and sys.stdin.isatty():  # a script has nobody to answer
        click.confirm("Ask the endpoint?", abort=True)


def _agents(
    options: Mapping[str, Any], environment: "EnvironmentArguments", toolbox: "Toolbox"
) -> "dict[str, Agent]":
    """Who answers under each condition: the policy with its tools, or with closed ones."""
    from ..bundled import bundled_policy
    from ..measure.controls import BLOCKED, CHANGED, CLOSED, OPEN, Closed
    from ..measure.scores import open_policy

    generator = None
    if not options["url"]:
        source = bundled_policy(options["policy"], environment.dialect)
        generator = open_policy(source, "a policy of your own", options["trust_remote_code"])
    concurrency = options["concurrency"]  # a local policy takes none
    usual = agent_of(options, environment, toolbox, generator, concurrency=concurrency)
    closed = agent_of(options, environment, Closed(toolbox), generator, concurrency=concurrency)
    return {OPEN: usual, BLOCKED: usual, CHANGED: usual, CLOSED: closed}


def _report(study: "Study", folder: Path) -> None:
    """Draw and print the results. Ends the process with another status where rollouts failed."""
    from ..measure.controls import RESULTS, ROLLOUTS

    files = [RESULTS, ROLLOUTS]
    try:
        _draw(study, folder / FIGURE)
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


def _draw(study: "Study", file: Path) -> None:
    """Bars of each condition. Raises `ConfigError` without matplotlib."""
    from ..analysis.figures import bars

    evaluations = {condition: {"rows": to_builtins(rows)} for condition, rows in study.rows.items()}
    results = []
    for name in ("right", "same_answer", "memory_share", "follow_rate", "decorated"):
        if any(name in rows for rows in study.rows.values()):
            results.append(name)
    bars(evaluations, results, file, title="With its evidence and without")


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
