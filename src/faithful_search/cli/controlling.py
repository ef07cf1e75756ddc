"""`faithful-search controls`: does an agent need its evidence?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs, to_builtins

from ..errors import ConfigError, DataError, FaithfulSearchError
from .asking import environment_as_trained, environment_of
from .options import AT_LEAST_1, FOLDER, UNFINISHED, config, echo, trust_remote_code

if TYPE_CHECKING:
    from ..measure.controls import Study
    from ..rollout import Engine, ServedAgent
    from ..rollout.arguments import EnvironmentArguments
    from ..tasks import Task
    from ..tools import Toolbox
    from ..trajectory import Evidence

_CHARACTERS = 4  # of a token, about, in English
_USUAL = 3  # requests that an episode usually takes
_PASSAGE = 600  # characters of a passage, where the corpus cannot be read


@click.command()
@click.argument("policy")
@click.option("--url", help="POLICY is a model served there: the base URL of an OpenAI-compatible endpoint.")
@click.option("--questions", default="world", help="'world', a file or a Hub dataset.")
@click.option("--split", default="validation", help="Split of the questions.")
@click.option("--limit", type=AT_LEAST_1, default=100, help="How many questions.")
@click.option("--seed", type=int, help="Draw the questions at random; by default the first ones are asked.")
@click.option("--corpus", default="world", help="What local_search searches, as in the recipes.")
@click.option("--triples", help="Facts of knowledge_graph; by default the world's with the world's corpus, else none.")
@click.option("--top-k", type=AT_LEAST_1, default=3, help="Passages a search returns.")
@click.option("--dialect", help="How the policy writes; default: as it was trained. Always openai for a served model.")
@click.option(
    "--conditions", default="closed,blocked,changed", help="Asked in addition to the open one, comma-separated."
)
@click.option(
    "--match",
    type=click.Choice(["exact", "contains"]),
    help="When an answer is right; by default exact, for a served model contains: it holds a gold answer.",
)
@click.option("--turns", type=AT_LEAST_1, default=10, help="Turns of an episode.")
@click.option("--turn-tokens", type=AT_LEAST_1, default=256, help="Tokens of a turn or reply.")
@click.option("--total-tokens", type=AT_LEAST_1, default=2048, help="Tokens of an episode; not for a served model.")
@click.option("--concurrency", type=AT_LEAST_1, default=16, help="Requests to the endpoint at once.")
@click.option("--yes", is_flag=True, help="Ask the endpoint without asking me first.")
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-controls here.")
@click.option("--overwrite", is_flag=True, help="Start over and replace what the folder holds.")
@trust_remote_code
@config
def controls(policy: str, out: Path | None, overwrite: bool, **given: Any) -> None:
    """Ask POLICY questions with its evidence, without it, and with other evidence: does the answer depend on it?

    POLICY is a directory, a Hub id, 'tiny' or 'tiny_memory' (bundled), or with --url a served model's name. Tools
    return nothing (closed), all but the gold passages (blocked: those of supporting_ids or supporting_titles, else
    those that hold the answer), or changed facts (changed). Run the same command again to go on after an interruption.
    """
    from ..hub.models import weights_of
    from ..measure.controls import CHANGED, kept, plan, run_study
    from ..tasks import WORLD, load_tasks
    from ..text import exact_match, sub_exact_match
    from ..wire.cache import key_of

    folder = out or Path(f"{policy.rstrip('/').rsplit('/', 1)[-1] or 'policy'}-controls")
    url, questions, corpus = given["url"], given["questions"], given["corpus"]
    seen = {"dialect": "openai"} if url else environment_as_trained(given, policy)
    environment = environment_of(given, corpus=corpus, **seen)
    drawn = load_tasks(questions, given["split"], given["limit"], seed=given["seed"])
    tasks = [structs.replace(task, id=str(task.id)) for task in drawn]
    if questions in WORLD and corpus != "world":
        raise ConfigError(f"the world's questions cannot be answered from {corpus!r}: give --questions, too")
    conditions = [name.strip() for name in given["conditions"].split(",")]
    # Changes and gold passages are worked out only for their conditions: both may read the whole corpus
    changes = _changes(questions, given["split"], environment) if CHANGED in conditions else None
    found = plan(tasks, conditions, partial(_passages, environment), changes)
    # A chat model answers in sentences, a trained policy with the answer alone
    match = given["match"] or ("contains" if url else "exact")
    settings = {
        "policy": policy,
        **{name: given[name] for name in ("url", "corpus", "top_k", "turns", "turn_tokens", "total_tokens")},
        "triples": environment.triples,
        **{name: value for name, value in seen.items() if value},
        # whole: what is blocked and changed follows from a question's annotations and the passages
        "questions": key_of(tasks=[structs.astuple(task) for task in tasks])[:16],
        "passages": environment.corpus_digest(),
        "match": match,
        "weights": weights_of(policy),
    }
    done = set() if overwrite else kept(folder, settings)
    with environment.toolbox() as toolbox:
        if url:
            due = [task.question for task in found.asked if task.id not in done]
            echo(_cost(due, environment, toolbox, url))
            if not given["yes"] and sys.stdin.isatty():  # a script has nobody to answer
                click.confirm("Ask the endpoint?", abort=True)
        agents = _agents(policy, given, environment, toolbox)
        right = exact_match if match == "exact" else sub_exact_match
        study = run_study(agents, found, folder, settings, right, overwrite)
    _show(study, folder)
    if study.failed:
        why = next(iter(study.failed.values()))
        echo(f"{len(study.failed)} rollouts failed and count nowhere; the same command tries again: {why}", err=True)
        raise click.exceptions.Exit(UNFINISHED)


def _passages(environment: EnvironmentArguments) -> Iterable[Evidence]:
    """All passages that the tools may return, so that the gold ones can be blocked."""
    if environment.corpus == "world":
        from ..world import bundled_world

        return [item.evidence for item in bundled_world().statements]
    if environment.triples != "none":
        raise ConfigError(f"the facts of {environment.triples!r} cannot be blocked; leave --triples out")
    return environment.corpus_passages()


def _changes(questions: str, split: str, environment: EnvironmentArguments) -> Callable[[Task], Task | None] | None:
    """What changes the questions' facts: the bundled world, or what the questions of a split are annotated with."""
    from ..counterfactual import CounterfactualWorld
    from ..tasks import WORLD, load_tasks
    from ..world import bundled_world

    if questions in WORLD:
        return CounterfactualWorld(bundled_world()).change
    try:
        return CounterfactualWorld.annotated(load_tasks(questions, split), _passages(environment)).change
    except (ConfigError, DataError):  # not annotated, or a server's passages
        return None


def _agents(
    policy: str, given: Mapping[str, Any], environment: EnvironmentArguments, toolbox: Toolbox
) -> dict[str, Engine | ServedAgent]:
    """The agent for each condition: the same policy, with tools that return nothing in the closed one."""
    from ..measure.controls import BLOCKED, CHANGED, CLOSED, OPEN, Closed

    agents: list[Any]  # with all tools, and with tools that return nothing
    if given["url"]:
        from ..rollout import ServedAgent

        how = {name: given[name] for name in ("turns", "concurrency")} | {"max_tokens": given["turn_tokens"]}
        agents = [ServedAgent(policy, given["url"], tools, **how) for tools in (toolbox, Closed(toolbox))]
    else:
        from ..bundled import bundled_policy
        from ..inference.base import Sampling
        from ..measure.scores import open_policy
        from ..rollout import Engine

        source = bundled_policy(policy, environment.dialect)
        generator = open_policy(source, "a policy of your own", given["trust_remote_code"])
        how = {"limits": environment.limits(given["total_tokens"]), "sampling": Sampling(temperature=0.0)}
        agents = [Engine(generator, tools, environment.dialect, **how) for tools in (toolbox, Closed(toolbox))]
    return {OPEN: agents[0], BLOCKED: agents[0], CHANGED: agents[0], CLOSED: agents[1]}


def _cost(due: Sequence[str], environment: EnvironmentArguments, toolbox: Toolbox, url: str) -> str:
    """About what these questions will take, told before the first request."""
    try:
        lengths = [len(item.title) + len(item.text) for item in islice(environment.corpus_passages(), 100)]
        passage = sum(lengths) / len(lengths)
    except FaithfulSearchError:
        passage = _PASSAGE
    start = (len(str(toolbox.schemas)) + sum(map(len, due)) / max(1, len(due)) + 200) / _CHARACTERS
    response = environment.search_top_k * passage / _CHARACTERS + 60

    def prompts(requests: int) -> str:  # each request carries all that came before it in its episode
        return f"{len(due) * (requests * start + requests * (requests - 1) / 2 * response):,.0f}"

    most, usual = environment.turns, min(_USUAL, environment.turns)
    return (
        f"{len(due)} episodes with {url}, up to {environment.turn_tokens} tokens a reply: about "
        f"{len(due) * usual:,} requests with {prompts(usual)} prompt tokens, at most {len(due) * most:,} requests with "
        f"{prompts(most)} (estimated at {_CHARACTERS} characters a token)"
    )


def _show(study: Study, folder: Path) -> None:
    from ..analysis.figures import bars
    from ..measure.controls import RESULTS, ROLLOUTS

    written = [RESULTS, ROLLOUTS]
    try:
        metrics = ("right", "same_answer", "memory_share", "decorated")
        shown = {name: {"rows": to_builtins(rows)} for name, rows in study.rows.items()}
        bars(shown, metrics, folder / "controls.png", title="With its evidence and without")
        written.append("controls.png")
    except ConfigError as error:
        echo(f"no controls.png: {error}", err=True)
    echo(f"{study}\n\n{', '.join(written)} in {folder}")
