"""The flags of `faithful-search eval`: who is measured, on which questions, and who judges; and
those flags for one policy, and for one question set of a suite.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from .. import agents, dialects, suites
from ..agents import untrained
from ..bundled import BUNDLED, bundled_policy
from ..errors import ConfigError
from ..flags import check_least, flag, prices_of, refuse_unread
from ..hub.models import BOUNDS, CONTEXT_SETTINGS, trained_with
from ..judges.arguments import JudgeArguments
from ..measure.controls import QUESTIONS
from ..rollout.arguments import EnvironmentArguments
from ..suites import QuestionSet, Suite
from ..suites.reading import DATA_FOLDER
from ..training.refusing import check_dtype

OF_A_POLICY = ("observation_tokens", "force_answer", "verify", "kept_responses")
"""The flags that only the episodes of a policy have."""
REQUESTS = 16
"""Episodes that ask an endpoint at once, unless a flag says otherwise."""
UNTRAINED = "untrained"
"""The agent that `--endpoint` alone names."""


@dataclass
class PolicyArguments(EnvironmentArguments):
    """Which policy plays episodes, and how it is opened."""

    # `as_trained` fills in those of the next ten flags that are left open
    dialect: str | None = flag(  # type: ignore[assignment]
        None, "Dialect of the policy. By default the one it was trained in, else pou."
    )
    observation_tokens: int | None = flag(  # type: ignore[assignment]
        None,
        "Maximum number of tokens in a tool response; 0 for no limit. By default as the policy was "
        "trained.",
    )
    force_answer: bool | None = flag(  # type: ignore[assignment]
        None, "Force an answer after the last turn. By default as the policy was trained."
    )
    verify: bool | None = flag(  # type: ignore[assignment]
        None,
        "Let the agent check its answers (dialect pokee). By default as the policy was trained.",
    )
    kept_responses: int | None = flag(  # type: ignore[assignment]
        None,
        "Number of the last tool responses that the policy sees; 0 for all. By default as it was "
        "trained.",
    )
    turns: int | None = flag(  # type: ignore[assignment]
        None,
        "Maximum number of turns in an episode. By default as the policy was trained, else 10.",
    )
    turn_tokens: int | None = flag(  # type: ignore[assignment]
        None, "Maximum number of tokens in a turn. By default as the policy was trained, else 256."
    )
    total_tokens: int | None = flag(
        None,
        "Maximum number of tokens in an episode after the prompt. By default as the policy was "
        "trained, else 1024.",
    )
    search_top_k: int | None = flag(  # type: ignore[assignment]
        None,
        "Number of passages that a search returns. By default as the policy was trained, else 3.",
    )
    triples: str | None = flag(  # type: ignore[assignment]
        None,
        "Facts of the tool knowledge_graph: 'world', a file, 'wikidata' or 'none'. By default "
        "'world' if the dialect has the tool.",
    )
    model: str = flag(
        "tiny",
        "Policy to measure: the directory or Hub id of a model or an adapter, or 'tiny' (bundled); "
        "with --agent the agent's model, with --endpoint the name of the served one.",
    )
    seed: int = flag(0, "Random seed of the sampling.")
    dtype: str = flag("float32", "Data type of the weights.")
    threads: int = flag(0, "Number of CPU threads. 0 takes as many as there are idle cores.")
    trust_remote_code: bool = flag(False, "Allow a policy to run the Python code beside it.")


Policy = TypeVar("Policy", bound=PolicyArguments)


@dataclass
class EvaluationArguments(PolicyArguments, JudgeArguments):
    """Which policy is measured, on which questions, and who judges."""

    agent: str | None = flag(
        None,
        f"Agent to measure, which needs no training: {', '.join(agents.names())}, or the path of a "
        "file that defines one. By default the policy itself is measured, and with --endpoint "
        "untrained.",
    )
    endpoint: str | None = flag(
        None, "Base URL of an OpenAI-compatible server that serves --model, usually ending in /v1."
    )
    concurrency: int | None = flag(
        None,
        "Number of episodes of an agent that are under way at once. By default 16 with --endpoint, "
        "else --generation_batch.",
    )
    prices: str | None = flag(
        None,
        "Price of a million prompt and completion tokens of the served model, as 0.15,0.6, to "
        "report the cost.",
    )
    compare_with: str | None = flag(
        None, "Policy to compare --model with, on the same questions. By default none."
    )
    suite: str | None = flag(
        None,
        f"Suite of question sets to measure, each in a folder of its own in --out: "
        f"{', '.join(suites.suite_names())}, or a YAML file. By default --questions are asked.",
    )
    data: str | None = flag(
        None,
        "Folder of the suite's data sets. By default the one that the environment variable "
        f"{DATA_FOLDER} names, else data.",
    )
    questions: str = flag(
        "world", "Questions to ask: 'world' (bundled), a local file or a dataset on the Hub."
    )
    split: str = flag("validation", "Split of the questions to use.")
    limit: int | None = flag(
        None, "Number of questions to ask, of a suite's sets of each at most. By default all."
    )
    sample_seed: int | None = flag(
        None, "Random seed for drawing the questions. By default the first ones are asked."
    )
    controls: int = flag(
        QUESTIONS,
        "Number of questions to ask again without their evidence, and in changed worlds.",
    )
    blank: str | None = flag(
        None, "Text that replaces every title and text of the evidence. By default none does."
    )
    temperature: float = flag(0.0, "Sampling temperature. 0 is greedy.")
    samples: int = flag(1, "Number of rollouts for each question.")
    out: str = flag("outputs/evaluate", "Folder to write metrics.json and trajectories.jsonl to.")
    resume: bool = flag(False, "Continue the evaluation that was interrupted in --out.")
    overwrite: bool = flag(False, "Delete an earlier evaluation in --out.")
    estimate: bool = flag(
        False, "Say what endpoints would be asked, and what it would cost, and ask nothing."
    )

    @property
    def agent_name(self) -> str | None:
        """The agent that is measured; `None` where the policy itself is."""
        if self.agent:
            return self.agent
        return None if self.endpoint is None else UNTRAINED

    @property
    def episodes_at_once(self) -> int:
        """How many episodes of an agent are under way at once: of a model here, those of a batch,
        whose every token reads all weights once.
        """
        usual = self.generation_batch if self.endpoint is None else REQUESTS
        return self.concurrency or usual

    @property
    def subject(self) -> str:
        """The name of the policy or the agent in the results."""
        if self.agent_name is None:
            return self.model
        return f"{self.agent_name} ({self.model})"

    @property
    def needs_tools(self) -> bool:
        """Whether what is measured cannot work without a tool."""
        if self.agent_name is None:
            return True
        return bool(getattr(agents.load(self.agent_name), "needs_tools", True))


def check_script(script: EvaluationArguments) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    if script.compare_with == script.model:
        raise ConfigError(f"--compare_with {script.model} is the policy itself: name another one")
    check_least(script, limit=1, controls=0, samples=1, threads=0, generation_batch=1, seed=0)
    check_least(script, concurrency=1)
    check_dtype(script.dtype)
    _check_agent(script)
    if script.suite is None:
        refuse_unread(script, ["data"], reader="--suite")
        return
    if script.compare_with is not None:
        raise ConfigError(
            "--compare_with measures two policies on one set of questions: measure each on the "
            "suite, and then faithful-search compare the two folders"
        )
    said_by_suite = ("questions", "split", "sample_seed")
    defaults = {field.name: field.default for field in fields(EvaluationArguments)}
    changed = [f"--{name}" for name in said_by_suite if getattr(script, name) != defaults[name]]
    if changed:
        raise ConfigError(f"{', '.join(changed)}: --suite says which questions; leave one out")


def _check_agent(script: EvaluationArguments) -> None:
    """Raise `ConfigError` for flags that the agent cannot have."""
    if script.endpoint is not None and script.model in BUNDLED:
        raise ConfigError("--endpoint needs the served model's name: give --model NAME")
    refuse_unread(script, ["prices"], reader="--endpoint", has_reader=bool(script.endpoint))
    if script.prices is not None:
        prices_of(script.prices, "--prices")
    if script.agent_name is None:
        refuse_unread(script, ["concurrency"], reader="--agent")
        return
    agents.load(script.agent_name)
    if script.compare_with is not None:
        raise ConfigError(
            "--compare_with compares two policies: measure each agent, and then faithful-search "
            "compare the two folders"
        )
    refuse_unread(script, OF_A_POLICY, reader="a policy, without --agent and --endpoint")
    if script.agent_name != UNTRAINED:
        refuse_unread(script, ["dialect"], reader=f"--agent {UNTRAINED}")


def of_suite(script: EvaluationArguments, suite: Suite) -> EvaluationArguments:
    """The flags, with the suite's limits of agents in the place of those that were left open. They
    are for this machine: an endpoint has a speed of its own.
    """
    limits = suite.agents
    if script.agent_name is None or script.endpoint is not None:
        return script
    controls = script.controls
    if limits.controls is not None and controls == QUESTIONS:
        controls = limits.controls
    return replace(
        script,
        turns=script.turns or limits.turns,
        turn_tokens=script.turn_tokens or limits.turn_tokens,
        controls=controls,
    )


def of_set(script: EvaluationArguments, question_set: QuestionSet) -> EvaluationArguments:
    """The flags for one question set of the suite: its questions, its corpus, and a folder of its
    own in `--out`.

    Raises `ConfigError` for a set whose name is no name of a folder, and for one whose questions
    are not the bundled world's where no other corpus is given.
    """
    name = question_set.name
    if Path(name).name != name:
        raise ConfigError(f"the question set {name!r} is called as no folder can be: rename it")
    limits = [limit for limit in (script.limit, question_set.limit) if limit is not None]
    corpus = question_set.corpus or script.corpus
    world = suites.of("world")
    is_of_the_world = suites.of(question_set.source) is world
    if not script.needs_tools:
        corpus = "none"
    elif suites.of(corpus) is world and not is_of_the_world:
        # The default corpus, from which no question of this set can be answered
        other_tools = set(script.given_tools) - {"corpus", "triples"}
        if not other_tools:
            raise ConfigError(
                f"{name}: the suite names no corpus for these questions: give --corpus, or tools "
                "that search the web"
            )
        corpus = "none"
    triples = script.triples
    if triples is None and not is_of_the_world:
        triples = "none"
    return replace(
        script,
        suite=None,
        data=None,
        questions=question_set.source,
        split=question_set.split,
        limit=min(limits, default=None),
        sample_seed=question_set.seed,
        corpus=corpus,
        triples=triples,
        out=str(Path(script.out) / name),
    )


def as_trained(script: Policy, policy: str) -> Policy:
    """The flags with values for those that were left open: the policy's own from its training where
    they are known, else the usual ones.

    With another dialect than the policy's own, none of its own values is used.
    """
    names = (*CONTEXT_SETTINGS, *BOUNDS)
    model = bundled_policy(policy, script.dialect or "pou")
    trained = trained_with(model, names)
    if script.dialect not in (None, trained.get("dialect")):
        trained = {}
    usual = {field.name: field.default for field in fields(EnvironmentArguments)}
    usual["total_tokens"] = 1024  # `EnvironmentArguments` has no flag for it
    settings = {}
    unusual = []
    for name in names:
        if getattr(script, name) is not None:
            continue
        settings[name] = trained.get(name, usual[name])
        if name in trained and trained[name] != usual[name]:
            unusual.append(f"--{name} {trained[name]}")
    if unusual:
        print(f"as {policy} was trained: {', '.join(unusual)}")
    script = replace(script, **settings)
    if script.triples:
        return script
    # A dialect with one tool, a search, has no calls for the facts of the world
    searches_only = dialects.load(cast(str, script.dialect)).search_tool is not None
    return replace(script, triples="none" if searches_only else "world")


def for_agent(script: EvaluationArguments) -> EvaluationArguments:
    """The flags with values for those that were left open, for an agent; `turns`, `turn_tokens` and
    `total_tokens` stay open, since agents have their own.
    """
    dialect = script.dialect or dialect_of_agent(script)
    usual: dict[str, Any] = {field.name: field.default for field in fields(EnvironmentArguments)}
    settings = {name: usual[name] for name in OF_A_POLICY}
    searches_only = dialects.load(dialect).search_tool is not None
    has_facts = suites.of(script.corpus) is suites.of("world") and not searches_only
    return replace(
        script,
        dialect=dialect,
        search_top_k=script.search_top_k or usual["search_top_k"],
        triples=script.triples or ("world" if has_facts else "none"),
        **settings,
    )


def dialect_of_agent(script: EvaluationArguments) -> str:
    """The dialect in which the agent writes where no flag names one."""
    is_here = script.agent_name == UNTRAINED and script.endpoint is None
    return untrained.HERE if is_here else untrained.SERVED


def within_the_same_bounds(
    scripts: dict[str, EvaluationArguments],
) -> dict[str, EvaluationArguments]:
    """The flags of policies that are compared, with the same limits: the larger one of each."""
    widest = {}
    for name in BOUNDS:
        widest[name] = max(getattr(script, name) for script in scripts.values())
    return {policy: replace(script, **widest) for policy, script in scripts.items()}
