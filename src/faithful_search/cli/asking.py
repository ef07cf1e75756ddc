"""`faithful-search ask`: one question, answered with its sources."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..bundled import BUNDLED, bundled_policy
from ..errors import ConfigError
from .flags import judge_flags, judge_of
from .options import config, debug, echo, trust_remote_code
from .telling import Teller, cost_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..judges import Writer
    from ..rollout.arguments import EnvironmentArguments
    from ..rollout.threads import Research, Researcher
    from ..tools import Toolbox
    from ..trajectory import Step, Trajectory

_AT_LEAST_1 = click.IntRange(min=1)
_SUMMARY_TOKENS = 1024
_TOTAL_TOKENS = 16_384
"""Of an episode, where the model takes so many: what a local model of 7 billion parameters is at home with."""
_SEVERAL = 0.7
"""The temperature at which several threads differ (PokeeResearch's own)."""


@click.command()
@click.argument("question")
@click.option("--model", default="tiny", show_default=True, help="A directory, a Hub id, a bundled policy, or NAME.")
@click.option("--endpoint", help="Base URL of an OpenAI-compatible server that serves --model NAME.")
@click.option("--dialect", help="How it writes; by default as it was trained, a served model: openai.")
@click.option("--corpus", help="What local_search searches, as in the recipes; by default the bundled world, or none.")
@click.option("--triples", help="Facts of knowledge_graph; by default the world's with the world's corpus.")
@click.option("--web-search", type=click.Choice(["ddgs", "searxng", "serper"]), help="Search the web, too.")
@click.option("--searxng-url", help="Your SearXNG server.")
@click.option("--browse", type=click.Choice(["fetch", "jina"]), help="Read web pages, too.")
@click.option("--top-k", type=_AT_LEAST_1, default=3, show_default=True, help="Passages a search returns.")
@click.option("--threads", type=_AT_LEAST_1, default=1, show_default=True, help="Researched so many times at once.")
@click.option("--verify", is_flag=True, help="The model checks its answers (dialect pokee).")
@click.option("--temperature", type=click.FloatRange(min=0), help="By default 0, and 0.7 with several threads.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@click.option("--turns", type=_AT_LEAST_1, default=10, show_default=True, help="A thread may have.")
@click.option("--turn-tokens", type=_AT_LEAST_1, default=512, show_default=True, help="Of a turn or reply.")
@click.option("--total-tokens", type=_AT_LEAST_1, help="Of a thread; by default what the model takes. Not if served.")
@click.option(
    "--transcript",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("ask.jsonl"),
    show_default=True,
    help="What was done is appended here, for `audit`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@judge_flags
@trust_remote_code
@config
@debug
@click.pass_context
def ask(ctx: click.Context, question: str, transcript: Path, as_json: bool, **given: Any) -> None:
    """Answer QUESTION with tools, and show which evidence supports the answer.

    Without options the bundled tiny policy answers questions about the bundled world, such as "What is the capital of
    the country of Mount Bogong?". What the model does is shown as it comes; the transcript can be given to
    `faithful-search audit`, also after Ctrl-C.
    """
    from ..measure.claims import claims_of
    from ..rollout.threads import research
    from ..tasks import Task

    if not question.strip():
        raise click.UsageError("the question is empty")
    judge = judge_of(given)
    task = Task(f"ask-{datetime.now(UTC):%Y%m%d-%H%M%S}", question.strip())
    environment = _environment(given)
    teller = Teller(quiet=as_json, several=given["threads"] > 1)
    with environment.toolbox() as toolbox:
        with teller.working("loading"):
            asked = _asked(question, environment, toolbox, given)
        log = _Log(task.question, environment.dialect, transcript, teller)
        begun = time.monotonic()
        with log.kept(), teller.working("searching"):
            found = research(asked.agent, task, given["threads"], asked.writer, log.add)
    log.write(list({one.id: one for one in (*found.threads, found.trajectory)}.values()))
    cost = _cost(found, asked.meters, time.monotonic() - begun)
    claims = claims_of(found.trajectory, judge)
    if as_json:
        told = _told(found, claims, cost, given["model"], environment.dialect, transcript)
        click.echo(json.dumps(told, ensure_ascii=False, indent=1))
    else:
        teller.answer(found, claims)
        teller.say(cost_line(cost), "dim")
        teller.say(f"transcript: {transcript} (faithful-search audit {transcript})", "dim")
    if found.trajectory.answer is None:
        echo(f"no answer: {_why(found)}", err=True)
        ctx.exit(1)


@dataclass
class _Asked:
    """Who is asked, who puts threads together, and what counts the tokens of both."""

    agent: Researcher
    writer: Writer | None
    meters: Sequence[Any]


@dataclass
class _Log:
    """The steps as they come, so that what is interrupted leaves a transcript, too."""

    question: str
    dialect: str
    path: Path
    teller: Teller
    steps: dict[str, list[Step]] = field(default_factory=dict)

    def add(self, name: str, step: Step) -> None:
        """A step of the thread of that id, as `research` tells it."""
        own = self.steps.setdefault(name, [])
        own.append(step)
        self.teller.step(int(name.rpartition("#")[2]) + 1 if "#" in name else 1, len(own), step)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever ends the research early, what was done until then is written down."""
        try:
            yield
        except BaseException as error:
            if not self.steps:
                raise
            self.write(list(self._unfinished()))
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"interrupted; what was done until then is in {self.path}") from None
            raise

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Append them to the transcript."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(f"{trajectory.to_json()}\n" for trajectory in trajectories)
        except OSError as error:  # the answer is worth more than its transcript
            echo(f"no transcript: {self.path} cannot be written: {error.strerror}", err=True)

    def _unfinished(self) -> Iterator[Trajectory]:
        from ..trajectory import Trajectory

        for name, steps in self.steps.items():
            answer = next((step.answer for step in reversed(steps) if step.answer is not None), None)
            yield Trajectory(tuple(steps), self.question, answer, "interrupted", self.dialect, name)


def _environment(given: Mapping[str, Any]) -> EnvironmentArguments:
    """The tools that were asked for; the bundled world where none was."""
    from .. import dialects
    from ..rollout.arguments import EnvironmentArguments

    dialect = given["dialect"] or ("openai" if given["endpoint"] else _trained_in(given["model"]))
    corpus = given["corpus"] or ("none" if given["web_search"] or given["browse"] else "world")
    alone = corpus != "world" or dialects.load(dialect).search_tool is not None
    return EnvironmentArguments(
        corpus=corpus,
        triples=given["triples"] or ("none" if alone else "world"),
        web_search=given["web_search"] or "none",
        searxng_url=given["searxng_url"],
        browse=given["browse"] or "none",
        search_top_k=given["top_k"],
        dialect=dialect,
        turns=given["turns"],
        turn_tokens=given["turn_tokens"],
        verify=given["verify"],
    )


def _trained_in(model: str) -> str:
    """The dialect that a recipe's policy was trained in, from the settings beside it; else that of Proof-of-Use.

    Raises:
        ConfigError: when there is no such model on the Hub, or the Hub is out of reach.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HTTPError

    local = Path(model).is_dir() or model in BUNDLED
    if not local and find_spec("torch"):
        from ..inference.loading import check_there

        check_there(model)
    try:
        path = Path(model) / "metrics.json" if local else hf_hub_download(model, "metrics.json")
        return str(json.loads(Path(path).read_text(encoding="utf-8"))["settings"]["dialect"])
    except (OSError, ValueError, KeyError, TypeError, HTTPError):
        return "pou"


def _asked(question: str, environment: EnvironmentArguments, toolbox: Toolbox, given: Mapping[str, Any]) -> _Asked:
    temperature = given["temperature"]
    if temperature is None:
        temperature = _SEVERAL if given["threads"] > 1 else 0.0
    if given["endpoint"]:
        return _served(environment, toolbox, temperature, given)
    return _local(question, environment, toolbox, temperature, given)


def _served(
    environment: EnvironmentArguments, toolbox: Toolbox, temperature: float, given: Mapping[str, Any]
) -> _Asked:
    from ..judges.endpoint import EndpointJudge
    from ..rollout import ServedAgent

    if given["model"] in BUNDLED:
        raise ConfigError("--endpoint needs the served model's name: give --model NAME")
    agent = ServedAgent(
        given["model"],
        given["endpoint"],
        toolbox,
        turns=given["turns"],
        max_tokens=given["turn_tokens"],
        temperature=temperature,
        seed=given["seed"],
        dialect=environment.dialect,
        verify=given["verify"],
    )
    writer = EndpointJudge(given["model"], given["endpoint"], cache=None, write_tokens=_SUMMARY_TOKENS)
    return _Asked(agent, writer, (agent, writer))


def _local(
    question: str, environment: EnvironmentArguments, toolbox: Toolbox, temperature: float, given: Mapping[str, Any]
) -> _Asked:
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
    fits = max_tokens(generator.model, generator.tokenizer) or _TOTAL_TOKENS
    chat = ChatFormat.of(generator.tokenizer, dialects.load(environment.dialect))
    room = fits - len(chat.prompt_ids(question, toolbox.schemas))
    if room < 1:
        raise ConfigError(f"the question and the tools' descriptions leave none of the model's {fits} tokens")
    limits = environment.limits(min(given["total_tokens"] or _TOTAL_TOKENS, room))
    engine = Engine(policy, toolbox, environment.dialect, limits, Sampling(temperature=temperature))
    # the bundled policies know no language to sum up in: their threads vote
    bundled = given["model"] in BUNDLED
    writer = None if bundled else GeneratorJudge(policy, source, window=fits, max_new_tokens=_SUMMARY_TOKENS)
    return _Asked(engine, writer, (policy,))


def _cost(found: Research, meters: Sequence[Any], seconds: float) -> dict[str, float]:
    """What the answer took. A request is one turn or text that was asked for."""
    stats = [getattr(meter, "stats", meter) for meter in meters]
    steps = [step for thread in found.threads for step in thread.steps]
    return {
        "requests": sum(one.calls for one in stats),
        "tool_calls": sum(bool(step.evidence or step.note) for step in steps),
        "tokens_read": sum(one.prompt_tokens for one in stats),
        "tokens_written": sum(one.completion_tokens for one in stats),
        "seconds": round(seconds, 2),
    }


def _told(
    found: Research, claims: Sequence[Any], cost: Mapping[str, float], model: str, dialect: str, transcript: Path
) -> dict[str, Any]:
    from ..measure.claims import distinct
    from ..rewards import cited_evidence

    used = {source for claim in claims for source in claim.sources}
    cited = {item.id for item in cited_evidence(found.trajectory)}
    sources = [
        {**msgspec.to_builtins(item), "cited": item.id in cited}
        for item in distinct(found.trajectory)
        if item.id in used | cited
    ]
    return {
        "question": found.trajectory.question,
        "answer": found.trajectory.answer,
        "stop_reason": found.trajectory.stop_reason,
        "verified": found.trajectory.steps[-1].verified if found.trajectory.steps else None,
        "claims": msgspec.to_builtins(claims),
        "sources": sources,
        "by": found.by,
        "threads": [
            {"id": one.id, "answer": one.answer, "stop_reason": one.stop_reason, "steps": len(one.steps)}
            for one in found.threads
        ],
        "replaced": list(found.replaced),
        "model": model,
        "dialect": dialect,
        "cost": cost,
        "transcript": str(transcript),
    }


def _why(found: Research) -> str:
    from ..rollout.episode import END_REASONS

    first = found.threads[0]
    return str(first.meta.get("why") or END_REASONS.get(first.stop_reason or "", first.stop_reason))
