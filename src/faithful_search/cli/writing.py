"""`faithful-search write-episodes`: a served model writes expert episodes for the cold start."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .. import suites
from ..errors import ConfigError
from .agents import agent_of, environment_of, episode_flags, served_cost, web_flags
from .options import AT_LEAST_1, FILE, config, echo, exit_unfinished, say


@click.command()
@click.argument("questions")
@click.option(
    "--endpoint",
    "url",
    required=True,
    help="Base URL of an OpenAI-compatible server.",
)
@click.option("--model", "policy", required=True, help="Name of the served model.")
@click.option("--split", default="train", help="Split of the questions to use.")
@click.option("--limit", type=AT_LEAST_1, help="Number of questions to ask. By default all.")
@click.option(
    "--sample-seed",
    type=int,
    help="Random seed for drawing the questions. By default the first ones are asked.",
)
@click.option("--samples", type=AT_LEAST_1, default=1, help="Number of episodes for each question.")
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.7, help="Sampling temperature."
)
@click.option("--seed", type=int, default=0, help="Random seed of the sampling.")
@episode_flags(None, 1024, dialect="pou")
@web_flags
@click.option(
    "--min-steps",
    type=AT_LEAST_1,
    default=3,
    help="Minimum number of steps in an episode that counts as fit.",
)
@click.option(
    "--max-steps",
    type=AT_LEAST_1,
    default=10,
    help="Maximum number of steps in an episode that counts as fit.",
)
@click.option(
    "--concurrency",
    type=AT_LEAST_1,
    default=16,
    help="Maximum number of simultaneous requests to the endpoint.",
)
@click.option("--yes", is_flag=True, help="Send the requests without asking for confirmation.")
@click.option(
    "--out", type=FILE, default=Path("episodes.jsonl"), help="File to write the episodes to."
)
@click.option("--overwrite", is_flag=True, help="Delete earlier episodes in the file.")
@config
def write_episodes(questions: str, out: Path, overwrite: bool, **options: Any) -> None:
    """Let a served model write episodes for the cold start.

    The tools are real. QUESTIONS are 'world', a file, or a dataset on the Hub. Episodes are kept as
    they end. To continue after an interruption, to ask again for those that the endpoint did not
    finish, or to add questions or samples, run the command again.

    At the end it says how many episodes are fit for the cold start (`faithful-search train sft
    --trajectories`), and why the others are not. All are kept: the cold start filters them itself.
    """
    from ..coldstart import writing
    from ..measure.ledger import same_settings
    from ..measure.writing import write_metrics
    from ..rollout.served import FAILED
    from ..tasks import load_tasks

    environment = environment_of(options)
    _check_corpus(questions, environment.corpus, options["corpus"])
    drawn = load_tasks(questions, options["split"], options["limit"], seed=options["sample_seed"])
    tasks = [task for task in drawn for _ in range(options["samples"])]
    # The address is left out: the same model may be served elsewhere the next time
    settings = {
        **{name: options[name] for name in ("policy", "temperature", "seed", "split")},
        **{name: value for name, value in asdict(environment).items() if value},
        "questions": questions,
        "passages": environment.corpus_digest(),
    }
    settings_file = out.with_suffix(".settings.json")
    if overwrite:
        out.unlink(missing_ok=True)
    same_settings(settings_file, settings, "give another --out, or --overwrite", ledger=out)
    missing = len(tasks) - len(writing.written_ids(tasks, out))
    with environment.toolbox() as toolbox:
        agent = agent_of(
            options,
            environment,
            toolbox,
            None,
            seed=options["seed"],
            concurrency=options["concurrency"],
        )
        if missing:
            echo(served_cost(missing, environment, toolbox, options["url"]))
            if not options["yes"] and sys.stdin.isatty():  # a script has nobody to answer
                click.confirm("Ask the endpoint?", abort=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_metrics(settings_file, settings)
        episodes = writing.write_episodes(agent, toolbox.schemas, tasks, out)
    failed = [episode for episode in episodes if episode.stop_reason == FAILED]
    finished = [episode for episode in episodes if episode.stop_reason != FAILED]
    steps = options["min_steps"], options["max_steps"]
    fitness = writing.Fitness.of(finished, environment.dialect, *steps)
    say(*fitness.lines())
    if fitness.fit:
        say(f"next: {_training(out, environment.dialect, *steps)}")
    if failed:
        why = failed[0].meta.get("why", "")
        exit_unfinished(
            [f"{len(failed)} episodes were not finished; the same command asks again: {why}"]
        )


def _check_corpus(questions: str, corpus: str, chosen: str | None) -> None:
    """Raise `ConfigError` for questions of a bundled source that are asked of another corpus, and
    for others that are asked of the bundled world because no corpus was chosen.
    """
    source, searched = suites.with_corpus(questions), suites.with_corpus(corpus)
    problem = f"the questions {questions!r} cannot be answered from {corpus!r}"
    if source is not None and searched is not source:
        raise ConfigError(f"{problem}: leave --corpus out")
    if source is None and searched is not None and chosen is None:
        raise ConfigError(f"{problem}: give --corpus, too")


def _training(out: Path, dialect: str, min_steps: int, max_steps: int) -> str:
    """The command that trains on the episodes."""
    flags = [f"--trajectories {shlex.quote(str(out))}", f"--dialect {dialect}"]
    if min_steps != 3:
        flags.append(f"--min_episode_steps {min_steps}")
    if max_steps != 10:
        flags.append(f"--max_episode_steps {max_steps}")
    return f"faithful-search train sft {' '.join(flags)} --model_name_or_path MODEL"
