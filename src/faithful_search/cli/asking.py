"""`faithful-search ask`: one question, answered with its sources; and the agent that options name, for `controls`."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from ..bundled import BUNDLED, bundled_policy
from ..errors import ConfigError, needs
from ..text import printable, shortened
from .options import (
    AT_LEAST_1,
    FILE,
    F,
    config,
    echo,
    judge_flags,
    judge_of,
    together,
    trust_remote_code,
)

if TYPE_CHECKING:
    from ..judges import Writer
    from ..measure.claims import Claim
    from ..rollout import Engine, ServedAgent
    from ..rollout.arguments import EnvironmentArguments
    from ..rollout.threads import Research
    from ..tasks import Task
    from ..tools import Toolbox
    from ..trajectory import Evidence, Step, Trajectory

    Agent = Engine | ServedAgent

_SUMMARY_TOKENS = 1024
_TOTAL_TOKENS = 16_384  # of an episode, where the model takes more: a local model of 7 billion parameters copes with it
_SEVERAL = 0.7  # the temperature at which several threads differ, PokeeResearch's own
_LONGEST = 300  # characters of a line


def episode_flags(corpus: str | None, turn_tokens: int) -> Callable[[F], F]:
    """The options that `environment_of` reads, with a command's own defaults."""
    return together(
        click.option(
            "--corpus",
            default=corpus,
            help="What local_search searches; by default world, with web tools none.",
        ),
        click.option(
            "--triples",
            help="Facts of knowledge_graph; by default the world's with the world's corpus.",
        ),
        click.option("--top-k", type=AT_LEAST_1, default=3, help="Passages a search returns."),
        click.option(
            "--dialect",
            help="How it writes; default: as it was trained, or openai where it is served.",
        ),
        click.option("--turns", type=AT_LEAST_1, default=10, help="Turns of an episode."),
        click.option(
            "--turn-tokens", type=AT_LEAST_1, default=turn_tokens, help="Tokens of a turn or reply."
        ),
        trust_remote_code,
    )


def environment_of(given: Mapping[str, Any]) -> "EnvironmentArguments":
    """The tools and limits that the options name.

    A local policy writes and sees as it was trained, where that is known. Another `--dialect` leaves nothing of that.
    """
    from .. import dialects
    from ..hub.models import trained_with
    from ..rollout.arguments import EnvironmentArguments

    own: dict[str, Any] = {"dialect": "openai" if given["url"] else "pou"}
    if not given["url"]:
        own |= trained_with(bundled_policy(given["policy"], given["dialect"] or "pou"))
    if given["dialect"] not in (None, own["dialect"]):
        own = {"dialect": given["dialect"]}
    own |= {name: given[name] for name in ("turns", "turn_tokens")}
    own |= {
        name: given[name]
        for name in ("web_search", "searxng_url", "browse", "verify")
        if given.get(name)
    }
    # Asked to search the web, nobody wants answers about the bundled world
    corpus = given["corpus"] or ("none" if {"web_search", "browse"} & own.keys() else "world")
    # The world's facts go with the world's corpus, except where the dialect can only search
    alone = corpus != "world" or dialects.load(own["dialect"]).search_tool is not None
    triples = given["triples"] or ("none" if alone else "world")
    return EnvironmentArguments(corpus=corpus, triples=triples, search_top_k=given["top_k"], **own)


def agent_of(
    given: Mapping[str, Any],
    environment: "EnvironmentArguments",
    toolbox: "Toolbox",
    generator: Any,
    **served: Any,
) -> "Agent":
    """The agent with these tools: a generator's policy, or without one the model that is served at the URL."""
    from ..inference.base import Sampling
    from ..rollout import Engine, ServedAgent

    temperature = given.get("temperature", 0.0)
    if generator is not None:
        limits, sampling = (
            environment.limits(given["total_tokens"]),
            Sampling(temperature=temperature),
        )
        return Engine(generator, toolbox, environment.dialect, limits, sampling)
    served |= {name: getattr(environment, name) for name in ("turns", "dialect", "verify")}
    tokens = environment.turn_tokens
    return ServedAgent(
        given["policy"], given["url"], toolbox, max_tokens=tokens, temperature=temperature, **served
    )


@click.command()
@click.argument("question")
@click.option(
    "--model", "policy", default="tiny", help="A directory, a Hub id, a bundled policy, or NAME."
)
@click.option(
    "--endpoint", "url", help="Base URL of an OpenAI-compatible server that serves --model NAME."
)
@episode_flags(None, 512)
@click.option(
    "--web-search", type=click.Choice(["ddgs", "searxng", "serper"]), help="Search the web, too."
)
@click.option("--searxng-url", help="Your SearXNG server, for --web-search searxng.")
@click.option("--browse", type=click.Choice(["fetch", "jina"]), help="Read web pages, too.")
@click.option(
    "--threads",
    type=AT_LEAST_1,
    default=1,
    help="How many times the question is researched at once.",
)
@click.option("--verify", is_flag=True, help="The model checks its answers (dialect pokee).")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    help="By default 0, and 0.7 with several threads.",
)
@click.option("--seed", type=int, default=0, help="Seed of the sampling.")
@click.option(
    "--total-tokens", type=AT_LEAST_1, help="Of a local thread; default: what fits, up to 16,384."
)
@click.option(
    "--transcript", type=FILE, default=Path("ask.jsonl"), help="Appended to; `audit` reads it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@judge_flags
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
    judge, environment = judge_of(given), environment_of(given)
    task = Task(f"ask-{datetime.now(UTC):%Y%m%d-%H%M%S}", question.strip())
    with environment.toolbox() as toolbox:
        agent, writer, stats = _opened(task.question, environment, toolbox, given)
        begun = time.monotonic()
        tasks = [task] * given["threads"]
        found = _researched(agent, writer, tasks, environment.dialect, transcript, as_json)
    steps = [step for thread in found.threads for step in thread.steps]
    cost = {
        "requests": sum(one.calls for one in stats),  # one is a turn or text that was asked for
        "tool_calls": sum(
            bool(step.evidence or step.note) for step in steps
        ),  # an answer has neither
        "tokens_read": sum(one.prompt_tokens for one in stats),
        "tokens_written": sum(one.completion_tokens for one in stats),
        "seconds": round(time.monotonic() - begun, 2),
    }
    claims = claims_of(found.trajectory, judge)
    if as_json:
        about = {
            "model": given["policy"],
            "dialect": environment.dialect,
            "cost": cost,
            "transcript": str(transcript),
        }
        click.echo(json.dumps(_as_json(found, claims) | about, ensure_ascii=False, indent=1))
    else:
        _tell_answer(found, claims, cost)
        _say(f"transcript: {transcript} (faithful-search audit {transcript})", dim=True)
    if found.trajectory.answer is None:
        from ..rollout.episode import END_REASONS

        first = found.threads[0]
        why = first.meta.get("why") or END_REASONS.get(first.stop_reason or "", first.stop_reason)
        echo(f"no answer: {why}", err=True)
        raise click.exceptions.Exit(1)


def _opened(
    question: str, environment: "EnvironmentArguments", toolbox: "Toolbox", given: dict[str, Any]
) -> "tuple[Agent, Writer | None, Sequence[Any]]":
    """The agent, who puts its threads together, and what counts the requests and tokens of both."""
    policy = given["policy"]
    if given["temperature"] is None:
        given["temperature"] = _SEVERAL if given["threads"] > 1 else 0.0
    if given["url"]:
        from ..judges.endpoint import EndpointJudge

        if policy in BUNDLED:
            raise ConfigError("--endpoint needs the served model's name: give --model NAME")
        agent: Any = agent_of(given, environment, toolbox, None, seed=given["seed"])
        # Summaries are of rollouts that were sampled just now, so a cache would never be read
        served = EndpointJudge(policy, given["url"], cache=None, write_tokens=_SUMMARY_TOKENS)
        return agent, served, (agent.stats, served.stats)
    with needs("a model here", "train"):
        from ..inference.loading import max_tokens, open_generator, sample_alike
    from .. import dialects
    from ..inference.chat import ChatFormat
    from ..judges.generator import GeneratorJudge
    from ..rollout.threads import Metered

    sample_alike(given["seed"])
    source = bundled_policy(policy, environment.dialect)
    generator = open_generator(source, trust_remote_code=given["trust_remote_code"])
    # An episode must fit into the model with its prompt, which has the question and the tools' schemas
    fits = max_tokens(generator.model, generator.tokenizer) or _TOTAL_TOKENS
    chat = ChatFormat.of(generator.tokenizer, dialects.load(environment.dialect))
    room = fits - len(chat.prompt_ids(question, toolbox.schemas))
    if room < 1:
        raise ConfigError(
            f"the question and the tools' descriptions leave none of the model's {fits} tokens"
        )
    metered, given["total_tokens"] = (
        Metered(generator),
        min(given["total_tokens"] or _TOTAL_TOKENS, room),
    )
    agent = agent_of(given, environment, toolbox, metered)
    if policy in BUNDLED:  # they cannot write a summary: their threads vote
        return agent, None, (metered,)
    return (
        agent,
        GeneratorJudge(metered, source, window=fits, max_new_tokens=_SUMMARY_TOKENS),
        (metered,),
    )


def _researched(
    agent: "Agent",
    writer: "Writer | None",
    tasks: "list[Task]",
    dialect: str,
    transcript: Path,
    quiet: bool,
) -> "Research":
    """Show the steps as they come, and append what was done to the transcript, also when it is interrupted."""
    from ..rollout.threads import synthesise
    from ..trajectory import Trajectory

    steps: dict[str, list[Step]] = {}
    done: dict[str, Trajectory] = {}

    def show(name: str, step: "Step") -> None:
        own = steps.setdefault(name, [])
        own.append(step)
        thread = f"{int(name.partition('#')[2] or 0) + 1}." if len(tasks) > 1 else ""
        if not quiet:
            tell_step(f"[{thread}{len(own)}]", step)

    try:
        found = synthesise(agent.run(tasks, on_step=show), writer)
        done = {one.id: one for one in (*found.threads, found.trajectory)}
        return found
    except BaseException as error:
        for name, own in steps.items():
            answer = next((step.answer for step in reversed(own) if step.answer is not None), None)
            done[name] = Trajectory(
                tuple(own), tasks[0].question, answer, "interrupted", dialect, name
            )
        if done and isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(
                f"interrupted; what was done until then is in {transcript}"
            ) from None
        raise
    finally:
        try:
            if done:
                with transcript.open("a", encoding="utf-8") as file:
                    file.writelines(f"{one.to_json()}\n" for one in done.values())
        except OSError as error:  # the answer is worth more than its transcript
            echo(f"no transcript: {transcript} cannot be written: {error.strerror}", err=True)


def _as_json(found: "Research", claims: "Sequence[Claim]") -> dict[str, Any]:
    def told(one: "Trajectory") -> dict[str, Any]:
        own = {name: getattr(one, name) for name in ("id", "question", "answer", "stop_reason")}
        return own | {
            "steps": len(one.steps),
            "verified": one.steps[-1].verified if one.steps else None,
        }

    sources = [{**to_builtins(item), "cited": cited} for item, cited in _sources(found, claims)]
    about = {
        "claims": to_builtins(claims),
        "sources": sources,
        "by": found.by,
        "replaced": list(found.replaced),
    }
    return {**told(found.trajectory), **about, "threads": [told(one) for one in found.threads]}


# What is shown: control characters of files and servers are spelled out


def _say(text: str, **style: Any) -> None:
    click.secho(printable(text), **style)


def tell_step(label: str, step: "Step") -> None:
    """Print a turn: what was thought, called and found."""
    thought = step.think or ""
    if step.verified is not None:
        thought = f"checks: {thought} -> {'CORRECT' if step.verified else 'INCORRECT'}"
    if step.helpful is not None:
        thought = f"({'uses ' + ', '.join(step.refs) if step.helpful else 'nothing there helps'}) {thought}"
    _say(f"{label} {_line(thought)}")
    if step.call is not None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in step.call.arguments.items())
        _say(f"    {step.call.name}({_line(arguments)})", fg="cyan")
    for item in step.evidence:
        _say(f"      {_source(item)}", dim=True)
    if step.note:
        _say(f"      {_line(step.note)}", fg="yellow")


def _tell_answer(found: "Research", claims: "Sequence[Claim]", cost: Mapping[str, float]) -> None:
    """Print the answer, how it was chosen, which evidence supports each of its claims, that evidence, and the cost."""
    answer = found.trajectory.answer
    _say("")
    if found.by != "thread":
        given = "; ".join(_line(one.answer or f"none ({one.stop_reason})") for one in found.threads)
        _say(f"threads: {given}", dim=True)
    if found.by != "thread" and answer is not None:
        _say(f"by {found.by}: {_line(found.trajectory.meta['research']['analysis'])}", dim=True)
    if answer is not None:
        _say(f"answer: {answer}", fg="green", bold=True)
        for claim in claims:
            style = {} if claim.supported else {"fg": "yellow", "bold": True}
            together = "the evidence together" if claim.supported else "nothing that was found"
            said = f" is supported by {', '.join(claim.sources) or together}"
            if claim.supported is None:
                said = ": the judge gave no verdict"
            _say(f'  "{claim.text}"{said}', **style)
        if not claims:
            _say("  nothing was retrieved: it comes from memory", fg="yellow", bold=True)
        sources = _sources(found, claims)
        if sources:
            _say("sources:")
        for item, cited in sources:
            _say(f"  {_source(item)}{' (cited)' if cited else ''}")
    counts = {"requests": "request", "tool_calls": "tool call"}
    told = [
        f"{cost[name]:,} {what}{'s' if cost[name] != 1 else ''}" for name, what in counts.items()
    ]
    tokens = f"{cost['tokens_read']:,} tokens read, {cost['tokens_written']:,} written"
    _say(f"{', '.join(told)}, {tokens}, {cost['seconds']:.1f} s", dim=True)


def _sources(found: "Research", claims: "Sequence[Claim]") -> "list[tuple[Evidence, bool]]":
    """The evidence that was cited or supports a claim, each passage once, and whether it was cited."""
    from ..measure.claims import distinct
    from ..rewards import cited_evidence

    cited = {item.id for item in cited_evidence(found.trajectory)}
    used = cited | {source for claim in claims for source in claim.sources}
    return [(item, item.id in cited) for item in distinct(found.trajectory) if item.id in used]


def _source(item: "Evidence") -> str:
    return f"{item.id} {' '.join(filter(None, (item.title, item.url)))}: {_line(item.text)}"


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST)
