"""`faithful-search ask`: one question, answered with its sources."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from ..bundled import BUNDLED, bundled_policy
from ..errors import ConfigError
from .options import AT_LEAST_1, FILE, config, echo, judge_flags, judge_of, trust_remote_code
from .telling import Teller, sources_of

if TYPE_CHECKING:
    from ..judges import Writer
    from ..measure.claims import Claim
    from ..rollout import Engine, ServedAgent
    from ..rollout.arguments import EnvironmentArguments
    from ..rollout.threads import Research
    from ..tasks import Task
    from ..tools import Toolbox
    from ..trajectory import Step, Trajectory

    Agent = Engine | ServedAgent
    Asked = tuple[Agent, Writer | None, Sequence[Any]]  # the agent, who puts threads together, what counts tokens

_SUMMARY_TOKENS = 1024
_TOTAL_TOKENS = 16_384  # of an episode, where the model takes more: a local model of 7 billion parameters copes with it
_SEVERAL = 0.7  # the temperature at which several threads differ, PokeeResearch's own


@click.command()
@click.argument("question")
@click.option("--model", default="tiny", help="A directory, a Hub id, a bundled policy, or NAME.")
@click.option("--endpoint", help="Base URL of an OpenAI-compatible server that serves --model NAME.")
@click.option("--dialect", help="How the model writes; default: as it was trained, or openai for a served model.")
@click.option("--corpus", help="What local_search searches, as in the recipes; by default the bundled world, or none.")
@click.option("--triples", help="Facts of knowledge_graph; by default the world's with the world's corpus.")
@click.option("--web-search", type=click.Choice(["ddgs", "searxng", "serper"]), help="Search the web, too.")
@click.option("--searxng-url", help="Your SearXNG server, for --web-search searxng.")
@click.option("--browse", type=click.Choice(["fetch", "jina"]), help="Read web pages, too.")
@click.option("--top-k", type=AT_LEAST_1, default=3, help="Passages a search returns.")
@click.option("--threads", type=AT_LEAST_1, default=1, help="How many times the question is researched at once.")
@click.option("--verify", is_flag=True, help="The model checks its answers (dialect pokee).")
@click.option("--temperature", type=click.FloatRange(min=0), help="By default 0, and 0.7 with several threads.")
@click.option("--seed", type=int, default=0, help="Seed of the sampling.")
@click.option("--turns", type=AT_LEAST_1, default=10, help="Turns that a thread may have.")
@click.option("--turn-tokens", type=AT_LEAST_1, default=512, help="Tokens of a turn or reply.")
@click.option(
    "--total-tokens",
    type=AT_LEAST_1,
    help="Tokens of a local model's thread; default: what it takes, up to 16,384.",
)
@click.option("--transcript", type=FILE, default=Path("ask.jsonl"), help="Appended to; `audit` reads it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@judge_flags
@trust_remote_code
@config
def ask(question: str, transcript: Path, as_json: bool, **given: Any) -> None:
    """Answer QUESTION with tools, and show which evidence supports the answer.

    Without options the bundled tiny policy answers questions about the bundled world, such as "What is the capital of
    the country of Mount Bogong?". What the model does is shown as it comes; the transcript can be given to
    `faithful-search audit`, also after Ctrl-C.
    """
    from ..measure.claims import claims_of
    from ..tasks import Task

    if not question.strip():
        raise click.UsageError("the question is empty")
    judge = judge_of(given)
    task = Task(f"ask-{datetime.now(UTC):%Y%m%d-%H%M%S}", question.strip())
    served = {"dialect": given["dialect"] or "openai"}
    seen = served if given["endpoint"] else environment_as_trained(given, given["model"])
    dialect = seen.pop("dialect")
    # Asked to search the web, nobody wants answers about the bundled world
    corpus = given["corpus"] or ("none" if given["web_search"] or given["browse"] else "world")
    tools = {name: given[name] or "none" for name in ("web_search", "browse")}
    tools |= {"searxng_url": given["searxng_url"], **seen, "verify": given["verify"] or seen.get("verify", False)}
    environment = environment_of(given, dialect, corpus, **tools)
    teller = Teller(quiet=as_json, several=given["threads"] > 1)
    with environment.toolbox() as toolbox:
        teller.wait("loading")
        open_agent = _served if given["endpoint"] else _local
        agent, writer, stats = open_agent(task.question, environment, toolbox, given)
        teller.wait("searching")
        begun = time.monotonic()
        found = _researched(agent, writer, task, given["threads"], dialect, transcript, teller)
    cost = _cost(found, stats, time.monotonic() - begun)
    claims = claims_of(found.trajectory, judge)
    if as_json:
        about = {"model": given["model"], "dialect": dialect, "cost": cost, "transcript": str(transcript)}
        click.echo(json.dumps(_told(found, claims) | about, ensure_ascii=False, indent=1))
    else:
        teller.answer(found, claims, cost)
        teller.say(f"transcript: {transcript} (faithful-search audit {transcript})", "dim")
    if found.trajectory.answer is None:
        from ..rollout.episode import END_REASONS

        first = found.threads[0]
        why = first.meta.get("why") or END_REASONS.get(first.stop_reason or "", first.stop_reason)
        echo(f"no answer: {why}", err=True)
        raise click.exceptions.Exit(1)


def environment_of(given: Mapping[str, Any], dialect: str, corpus: str, **more: Any) -> EnvironmentArguments:
    """The tools and limits that the options name."""
    from .. import dialects
    from ..rollout.arguments import EnvironmentArguments

    # The world's facts go with the world's corpus, except where the dialect can only search
    alone = corpus != "world" or dialects.load(dialect).search_tool is not None
    return EnvironmentArguments(
        corpus=corpus,
        triples=given["triples"] or ("none" if alone else "world"),
        search_top_k=given["top_k"],
        dialect=dialect,
        turns=given["turns"],
        turn_tokens=given["turn_tokens"],
        **more,
    )


def environment_as_trained(given: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """How a local policy writes and sees: as it was trained where that is known, else as Proof-of-Use's do.

    Another `--dialect` than it was trained in leaves nothing of that.
    """
    from ..hub.models import trained_with

    found = trained_with(bundled_policy(policy, given["dialect"] or "pou"))
    own = {"dialect": "pou", **found}
    return own if given["dialect"] in (None, own["dialect"]) else {"dialect": given["dialect"]}


def _temperature(given: Mapping[str, Any]) -> float:
    if given["temperature"] is not None:
        return float(given["temperature"])
    return _SEVERAL if given["threads"] > 1 else 0.0


def _served(question: str, environment: EnvironmentArguments, toolbox: Toolbox, given: Mapping[str, Any]) -> Asked:
    from ..judges.endpoint import EndpointJudge
    from ..rollout import ServedAgent

    model, url = given["model"], given["endpoint"]
    if model in BUNDLED:
        raise ConfigError("--endpoint needs the served model's name: give --model NAME")
    how = {name: given[name] for name in ("turns", "seed", "verify")} | {"max_tokens": given["turn_tokens"]}
    agent = ServedAgent(model, url, toolbox, temperature=_temperature(given), dialect=environment.dialect, **how)
    # Summaries are of rollouts that were sampled just now, so a cache would never be read
    writer = EndpointJudge(model, url, cache=None, write_tokens=_SUMMARY_TOKENS)
    return agent, writer, (agent.stats, writer.stats)


def _local(question: str, environment: EnvironmentArguments, toolbox: Toolbox, given: Mapping[str, Any]) -> Asked:
    try:
        from ..inference.loading import max_tokens, open_generator, sample_alike
    except ImportError as error:
        raise ConfigError(f"a model here needs {error.name}: pip install 'faithful-search[train]'") from error
    from .. import dialects
    from ..inference.base import Sampling
    from ..inference.chat import ChatFormat
    from ..judges.generator import GeneratorJudge
    from ..rollout import Engine
    from ..rollout.threads import Metered

    sample_alike(given["seed"])
    source = bundled_policy(given["model"], environment.dialect)
    generator = open_generator(source, trust_remote_code=given["trust_remote_code"])
    policy = Metered(generator)
    # An episode must fit into the model with its prompt, which has the question and the tools' schemas
    fits = max_tokens(generator.model, generator.tokenizer) or _TOTAL_TOKENS
    chat = ChatFormat.of(generator.tokenizer, dialects.load(environment.dialect))
    room = fits - len(chat.prompt_ids(question, toolbox.schemas))
    if room < 1:
        raise ConfigError(f"the question and the tools' descriptions leave none of the model's {fits} tokens")
    limits = environment.limits(min(given["total_tokens"] or _TOTAL_TOKENS, room))
    engine = Engine(policy, toolbox, environment.dialect, limits, Sampling(temperature=_temperature(given)))
    if given["model"] in BUNDLED:  # they cannot write a summary: their threads vote
        return engine, None, (policy,)
    return engine, GeneratorJudge(policy, source, window=fits, max_new_tokens=_SUMMARY_TOKENS), (policy,)


def _researched(
    agent: Agent, writer: Writer | None, task: Task, threads: int, dialect: str, transcript: Path, teller: Teller
) -> Research:
    """Show the steps as they come, and append what was done to the transcript, also when it is interrupted."""
    from ..rollout.threads import synthesise
    from ..trajectory import Trajectory

    steps: dict[str, list[Step]] = {}

    def show(name: str, step: Step) -> None:
        own = steps.setdefault(name, [])
        own.append(step)
        teller.step(int(name.rpartition("#")[2]) + 1 if "#" in name else 1, len(own), step)

    try:
        found = synthesise(agent.run([task] * threads, on_step=show), writer)
    except BaseException as error:
        done = []
        for name, own in steps.items():
            answer = next((step.answer for step in reversed(own) if step.answer is not None), None)
            done.append(Trajectory(tuple(own), task.question, answer, "interrupted", dialect, name))
        if done:
            _append(transcript, done)
        if done and isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; what was done until then is in {transcript}") from None
        raise
    _append(transcript, {one.id: one for one in (*found.threads, found.trajectory)}.values())
    return found


def _append(path: Path, trajectories: Iterable[Trajectory]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{trajectory.to_json()}\n" for trajectory in trajectories)
    except OSError as error:  # the answer is worth more than its transcript
        echo(f"no transcript: {path} cannot be written: {error.strerror}", err=True)


def _cost(found: Research, stats: Sequence[Any], seconds: float) -> dict[str, float]:
    """What the answer took. A request is one turn or text that was asked for."""
    steps = [step for thread in found.threads for step in thread.steps]
    return {
        "requests": sum(one.calls for one in stats),
        "tool_calls": sum(bool(step.evidence or step.note) for step in steps),  # an answer has neither
        "tokens_read": sum(one.prompt_tokens for one in stats),
        "tokens_written": sum(one.completion_tokens for one in stats),
        "seconds": round(seconds, 2),
    }


def _told(found: Research, claims: Sequence[Claim]) -> dict[str, Any]:
    return {
        "question": found.trajectory.question,
        "answer": found.trajectory.answer,
        "stop_reason": found.trajectory.stop_reason,
        "verified": found.trajectory.steps[-1].verified if found.trajectory.steps else None,
        "claims": to_builtins(claims),
        "sources": [{**to_builtins(item), "cited": cited} for item, cited in sources_of(found, claims)],
        "by": found.by,
        "threads": [
            {"id": one.id, "answer": one.answer, "stop_reason": one.stop_reason, "steps": len(one.steps)}
            for one in found.threads
        ],
        "replaced": list(found.replaced),
    }
