"""The agent that a command's options name: a policy here, or a model behind an endpoint."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..bundled import BUNDLED, bundled_policy
from ..errors import ConfigError, needs
from .options import AT_LEAST_1, F, old_name, together, trust_remote_code

if TYPE_CHECKING:
    from ..agents import ChatModel
    from ..judges import Writer
    from ..rollout import Agent
    from ..rollout.arguments import EnvironmentArguments
    from ..tools import Toolbox

_SUMMARY_TOKENS = 1024
_TURNS = 10
_TOTAL_TOKENS = 16_384
"""The limit of an episode, where the model's own is higher: a local model of 7 billion parameters
can be run with it.
"""
_THREADS_TEMPERATURE = 0.7
"""The default temperature of several threads, so that they differ; PokeeResearch uses it."""
# What an estimate rests on
CHARACTERS_PER_TOKEN = 4  # about, in English
USUAL_REQUESTS = 3  # of an episode
PASSAGE_CHARACTERS = 600
PROMPT_TOKENS = 100  # beside the schemas of the tools
CALL_TOKENS = 60  # of a call and what stands around its response


def episode_flags(
    corpus: str | None, turn_tokens: int, dialect: str | None = None
) -> Callable[[F], F]:
    """The options that `environment_of` reads, with a command's own defaults."""
    usual_dialect = (
        "" if dialect else (" By default the one it was trained in, and openai for a served model.")
    )
    return together(
        click.option(
            "--corpus",
            default=corpus,
            help="Corpus or index that local_search searches. By default 'world', and 'none' with "
            "web tools.",
        ),
        click.option(
            "--triples",
            help="Facts of the tool knowledge_graph. By default the world's with its corpus, else "
            "none.",
        ),
        click.option(
            "--search-top-k",
            type=AT_LEAST_1,
            default=3,
            help="Number of passages that a search returns.",
        ),
        old_name("--top-k", "--search-top-k"),
        click.option(
            "--dialect",
            default=dialect,
            help=f"Dialect that the model writes.{usual_dialect}",
        ),
        click.option(
            "--turns",
            type=AT_LEAST_1,
            help=f"Maximum number of turns in an episode. By default {_TURNS}, or the number of "
            "--agent where there is that option.",
        ),
        click.option(
            "--turn-tokens",
            type=AT_LEAST_1,
            default=turn_tokens,
            help="Maximum number of tokens in a turn, or in a reply of a served model.",
        ),
        trust_remote_code,
    )


web_flags = together(
    click.option(
        "--web-search",
        type=click.Choice(["ddgs", "searxng", "serper"]),
        help="Service for a web search tool. By default the agent does not search the web.",
    ),
    click.option("--searxng-url", help="URL of the SearXNG server for --web-search searxng."),
    click.option(
        "--browse",
        type=click.Choice(["fetch", "jina"]),
        help="Reader for a tool that opens web pages. By default the agent opens none.",
    ),
)
"""The options of web tools, which `environment_of` reads, too."""


def environment_of(options: Mapping[str, Any]) -> "EnvironmentArguments":
    """The tools and limits that the options name.

    A local policy gets the dialect and the settings that it was trained with, where they are known.
    With another `--dialect` none of them is used.
    """
    from .. import dialects
    from ..hub.models import settings_to_run
    from ..rollout.arguments import EnvironmentArguments

    dialect = options["dialect"]
    settings: dict[str, Any]
    if options["url"]:
        settings = {"dialect": dialect or "openai"}
    else:
        settings = settings_to_run(bundled_policy(options["policy"], dialect or "pou"), dialect)
    settings["turns"] = options["turns"] or _TURNS
    settings["turn_tokens"] = options["turn_tokens"]
    settings |= {
        name: options[name]
        for name in ("web_search", "searxng_url", "browse", "verify")
        if options.get(name)
    }
    # Whoever searches the web does not ask about the bundled world
    on_the_web = "web_search" in settings or "browse" in settings
    corpus = options["corpus"] or ("none" if on_the_web else "world")
    # The world's facts go with the world's corpus, except where the dialect can only search
    searches_only = dialects.load(settings["dialect"]).search_tool is not None
    has_facts = corpus == "world" and not searches_only
    triples = options["triples"] or ("world" if has_facts else "none")
    return EnvironmentArguments(
        corpus=corpus, triples=triples, search_top_k=options["search_top_k"], **settings
    )


def agent_of(
    options: Mapping[str, Any],
    environment: "EnvironmentArguments",
    toolbox: "Toolbox",
    generator: Any,
    **served: Any,
) -> "Agent":
    """The agent with these tools: the generator's policy, or where `generator` is `None` the model
    that is served at `options["url"]`. `served` are further arguments of `ServedAgent`.
    """
    from ..inference.base import Sampling
    from ..rollout import Engine, ServedAgent

    temperature = options.get("temperature", 0.0)
    if generator is not None:
        limits = environment.limits(options["total_tokens"])
        sampling = Sampling(temperature=temperature)
        return Engine(generator, toolbox, environment.dialect, limits, sampling)
    return ServedAgent(
        options["policy"],
        options["url"],
        toolbox,
        turns=environment.turns,
        dialect=environment.dialect,
        verify=environment.verify,
        max_tokens=environment.turn_tokens,
        temperature=temperature,
        **served,
    )


def served_cost(
    episodes: int, environment: "EnvironmentArguments", toolbox: "Toolbox", url: str
) -> str:
    """An estimate of what these episodes will take, shown before the first request.

    Each request repeats all that came before it in its episode. So the request number k of an
    episode (from 0) carries the prompt and k responses.
    """
    prompt = len(str(toolbox.schemas)) / CHARACTERS_PER_TOKEN + PROMPT_TOKENS
    passages = environment.search_top_k * PASSAGE_CHARACTERS / CHARACTERS_PER_TOKEN
    response = passages + CALL_TOKENS
    estimates = []
    for qualifier, requests in (
        ("about", min(USUAL_REQUESTS, environment.turns)),
        ("at most", environment.turns),
    ):
        responses = requests * (requests - 1) / 2
        tokens = episodes * (requests * prompt + responses * response)
        estimates.append(
            f"{qualifier} {episodes * requests:,} requests with {tokens:,.0f} prompt tokens"
        )
    return (
        f"{episodes} episodes with {url}, up to {environment.turn_tokens} tokens a reply: "
        f"{', '.join(estimates)} (estimated, at {CHARACTERS_PER_TOKEN} characters a token)"
    )


class OpenAgent(NamedTuple):
    """An agent, and what `ask` needs beside it.

    `writer` writes the final answer from the agent's threads; where it is `None`, the threads vote.
    `stats` count the requests and tokens of both.
    """

    agent: "Agent"
    writer: "Writer | None"
    stats: Sequence[Any]


def open_agent(
    question: str,
    environment: "EnvironmentArguments",
    toolbox: "Toolbox",
    options: Mapping[str, Any],
) -> OpenAgent:
    """The agent that `ask` puts the question to.

    Raises `ConfigError` where the question does not fit into the model.
    """
    options = dict(options)
    if options["temperature"] is None:
        options["temperature"] = _THREADS_TEMPERATURE if options["threads"] > 1 else 0.0
    if options["agent"]:
        return _open_prompted_agent(toolbox, options)
    if options["url"]:
        return _open_served(environment, toolbox, options)
    return _open_local(question, environment, toolbox, options)


def _open_prompted_agent(toolbox: "Toolbox", options: dict[str, Any]) -> OpenAgent:
    """The agent that `--agent` names, one of `faithful_search.agents` or of a file."""
    from .. import agents

    settings = agents.AgentSettings(
        turns=options["turns"],
        max_tokens=options["turn_tokens"],
        total_tokens=options["total_tokens"] or _TOTAL_TOKENS,
        temperature=options["temperature"],
        seed=options["seed"],
        dialect=options["dialect"],
    )
    opened = _served_model(options) if options["url"] else _model_here(options)
    agent = agents.open_agent(options["agent"], opened.model, toolbox, settings)
    return OpenAgent(agent, opened.writer, opened.stats)


class _ModelToAsk(NamedTuple):
    """A model for an agent, with the writer of its summaries and its counters."""

    model: "ChatModel"
    writer: "Writer | None"
    stats: Sequence[Any]


def _served_model(options: Mapping[str, Any]) -> _ModelToAsk:
    from ..agents import ServedModel
    from ..judges.endpoint import EndpointJudge

    name, url = options["policy"], options["url"]
    _check_served_name(name)
    model = ServedModel(name, url)
    # A summary is of rollouts that were sampled just now: no cache could hold it
    writer = EndpointJudge(name, url, cache=None, write_tokens=_SUMMARY_TOKENS)
    return _ModelToAsk(model, writer, (model.stats, writer.stats))


def _model_here(options: Mapping[str, Any]) -> _ModelToAsk:
    with needs("a model here", "train"):
        from ..inference.loading import seed_sampling
    from ..agents import PolicyModel
    from ..judges.generator import GeneratorJudge

    seed_sampling(options["seed"])
    name = options["policy"]
    source = bundled_policy(name, options["dialect"] or "pou")
    model = PolicyModel.open(source, trust_remote_code=options["trust_remote_code"])
    if name in BUNDLED:  # they cannot write a summary: their threads vote
        return _ModelToAsk(model, None, (model.stats,))
    window = model.window or _TOTAL_TOKENS
    writer = GeneratorJudge(model.generator, source, window=window, max_new_tokens=_SUMMARY_TOKENS)
    return _ModelToAsk(model, writer, (model.stats,))


def _check_served_name(model: str) -> None:
    if model in BUNDLED:
        raise ConfigError("--endpoint needs the served model's name: give --model NAME")


def _open_served(
    environment: "EnvironmentArguments", toolbox: "Toolbox", options: dict[str, Any]
) -> OpenAgent:
    from ..judges.endpoint import EndpointJudge

    model, url = options["policy"], options["url"]
    _check_served_name(model)
    agent: Any = agent_of(options, environment, toolbox, None, seed=options["seed"])
    # A summary is of rollouts that were sampled just now: no cache could hold it
    writer = EndpointJudge(model, url, cache=None, write_tokens=_SUMMARY_TOKENS)
    return OpenAgent(agent, writer, (agent.stats, writer.stats))


def _open_local(
    question: str,
    environment: "EnvironmentArguments",
    toolbox: "Toolbox",
    options: dict[str, Any],
) -> OpenAgent:
    with needs("a model here", "train"):
        from ..inference.loading import max_tokens, open_generator, seed_sampling
    from .. import dialects
    from ..inference.chat import ChatFormat
    from ..judges.generator import GeneratorJudge
    from ..rollout.threads import Metered

    seed_sampling(options["seed"])
    source = bundled_policy(options["policy"], environment.dialect)
    generator = open_generator(source, trust_remote_code=options["trust_remote_code"])
    # The prompt, with the question and the schemas of the tools, must leave room for the episode
    window = max_tokens(generator.model, generator.tokenizer) or _TOTAL_TOKENS
    chat = ChatFormat.of(generator.tokenizer, dialects.load(environment.dialect))
    room = window - len(chat.prompt_ids(question, toolbox.schemas))
    if room < 1:
        raise ConfigError(
            f"the question and the tools' descriptions leave none of the model's {window} tokens"
        )
    options["total_tokens"] = min(options["total_tokens"] or _TOTAL_TOKENS, room)
    metered = Metered(generator)
    agent = agent_of(options, environment, toolbox, metered)
    if options["policy"] in BUNDLED:  # they cannot write a summary: their threads vote
        return OpenAgent(agent, None, (metered,))
    writer = GeneratorJudge(metered, source, window=window, max_new_tokens=_SUMMARY_TOKENS)
    return OpenAgent(agent, writer, (metered,))
