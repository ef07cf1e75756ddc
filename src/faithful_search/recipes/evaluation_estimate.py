"""`faithful-search eval --estimate`: what an evaluation would ask of endpoints, and what it would
cost. Nothing is asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from .. import agents, suites
from ..agents import ModelReply, ServedModel, open_agent, untrained
from ..errors import ConfigError
from ..escape import as_line
from ..flags import prices_of
from ..judges.endpoint import EndpointJudge
from ..measure.controls import control_tasks
from ..measure.evaluating import default_rewards
from ..measure.expected import (
    CHARACTERS_PER_TOKEN,
    PASSAGE_CHARACTERS,
    AssumedPassages,
    Expected,
    StandIn,
    expected_of_played,
    expected_of_turns,
    stand_in_episode,
    tokens_of,
    total,
)
from ..measure.report import aligned
from ..tasks import Task
from .evaluation_models import REPLY_TOKENS, agent_settings
from .evaluation_run import toolbox_of
from .evaluation_settings import UNTRAINED, EvaluationArguments

PLAYED = 5
"""How many questions of each set an estimate rests on."""
_ALL = "all"


def estimate(
    scripts: dict[str, EvaluationArguments],
    tasks: dict[str, Sequence[Task]],
    left_out: Sequence[str] = (),
) -> str:
    """What the evaluations would ask, in words and a table.

    Args:
        scripts: the flags of each evaluation, by the name of its question set.
        tasks: the questions of each, by the same names.
        left_out: a line for each set that would not be measured.

    Raises `ConfigError` where no endpoint would be asked.
    """
    script = next(iter(scripts.values()))
    judge = script.load_judge()
    parts = []
    if script.endpoint is not None:
        parts.append(_of_the_model(scripts, tasks))
    if isinstance(judge, EndpointJudge):
        parts.append(_of_the_judge(scripts, tasks, judge))
    if not parts:
        raise ConfigError(
            "--estimate is of what endpoints would be asked, and none would: give --endpoint, or "
            "--judge endpoint"
        )
    basis = (
        f"Nothing was asked. Measured on {PLAYED} questions of each set at most, "
        f"{CHARACTERS_PER_TOKEN} "
        f"characters a token; a passage is taken to have {PASSAGE_CHARACTERS} characters."
    )
    if left_out:
        parts.append("\n".join(as_line(f"left out: {line}") for line in left_out))
    return "\n\n".join([*parts, basis])


def _of_the_model(scripts: dict[str, EvaluationArguments], tasks: dict[str, Sequence[Task]]) -> str:
    """What the model behind `--endpoint` would be asked: a row for each set, and one for all."""
    expected = {name: _expected(script, tasks[name]) for name, script in scripts.items()}
    together = total(expected.values())
    if len(expected) > 1:
        expected[_ALL] = together
    script = next(iter(scripts.values()))
    header = ["set", "episodes", "requests", "prompt tokens", "reply tokens"]
    rows = [header]
    for name, part in expected.items():
        rows.append(
            [
                name,
                f"{part.episodes:,}",
                _between(part.least_requests, part.most_requests),
                _between(part.least_prompt_tokens, part.most_prompt_tokens),
                f"at most {part.most_completion_tokens:,}",
            ]
        )
    cost = "its cost is unknown without --prices"
    if script.prices is not None:
        most = together.cost(prices_of(script.prices, "--prices"))
        cost = f"it costs at most {most:.4f}"
    return f"{script.subject} at {script.endpoint}: {cost}\n\n{aligned(rows)}"


def _expected(script: EvaluationArguments, tasks: Sequence[Task]) -> Expected:
    """What the agent would ask on one set."""
    settings = agent_settings(script)
    name = cast(str, script.agent_name)
    with toolbox_of(script) as toolbox:
        played = _played(tasks)
        episodes = _with_controls(script, tasks)
        unasked_tools = AssumedPassages(toolbox, cast(int, script.search_top_k))
        if name == UNTRAINED:
            served = ServedModel(script.model, script.endpoint)
            agent = open_agent(name, served, unasked_tools, settings)
            return _expected_of_served(agent, played, episodes, script)
        model = StandIn(tokens_of, lambda text: ModelReply(text))
        agent = open_agent(name, model, unasked_tools, settings)
        return expected_of_played(
            agent, model, episodes, played, settings.max_tokens, settings.total_tokens
        )


def _expected_of_served(
    agent: Any, played: Sequence[Task], episodes: Sequence[Task], script: EvaluationArguments
) -> Expected:
    """What the untrained agent would ask. No stand-in can play it, since its calls are read by the
    server: its requests are computed from its first prompt and one tool response.
    """
    dialect = agent.dialect
    schemas = agent.toolbox.schemas
    prompts = []
    for task in played:
        texts = [str(message["content"]) for message in dialect.prompt(task.question, schemas)]
        if dialect.name == untrained.SERVED:  # it sends the schemas beside the messages
            texts.append(str(schemas))
        prompts.append(tokens_of("".join(texts)))
    top_k = cast(int, script.search_top_k)
    episode = stand_in_episode(
        played[0], passages=top_k, turns=1, max_tokens=1, dialect=dialect.name
    )
    search = episode.steps[0]
    response = dialect.render_observation(search.evidence)
    max_tokens = agent_settings(script).max_tokens
    return expected_of_turns(prompts, tokens_of(response), episodes, agent.turns, max_tokens)


def _of_the_judge(
    scripts: dict[str, EvaluationArguments],
    tasks: dict[str, Sequence[Task]],
    judge: EndpointJudge,
) -> str:
    """What the judge would be asked, were all turns used for searches and all answers wrong."""
    requests = prompt_tokens = reply_tokens = 0
    for name, script in scripts.items():
        # Asks nothing, and counts in `stats` what it would ask
        dry = replace(judge, dry=True, cache=None, on_progress=None)
        facts = suites.facts_are_known(script.questions)
        dialect = cast(str, script.dialect)
        rewards = default_rewards(dialect, dry, facts=facts, tasks=tasks[name])
        turns = _turns(script)
        top_k = cast(int, script.search_top_k)
        max_tokens = script.turn_tokens or REPLY_TOKENS
        played = _played(tasks[name])
        episodes = [stand_in_episode(task, top_k, turns, max_tokens, dialect) for task in played]
        for reward in rewards.values():
            if not reward.needs_policy:
                reward.score_batch(episodes)  # for the counts of `dry`: these scores mean nothing
        scale = len(tasks[name]) / len(played)
        requests += round(dry.stats.calls * scale)
        prompt_tokens += round(dry.stats.prompt_tokens * scale)
        reply_tokens += round(dry.stats.completion_tokens * scale)
        dry.close()
    cost = "its cost is unknown without --judge_prices"
    if judge.prices is not None:
        prompt_price, reply_price = judge.prices
        most = (prompt_tokens * prompt_price + reply_tokens * reply_price) / 1_000_000
        cost = f"it costs at most {most:.4f}"
    return (
        f"the judge {judge.name}: at most {requests:,} requests with {prompt_tokens:,} prompt "
        f"tokens and {reply_tokens:,} reply tokens; {cost}"
    )


def _turns(script: EvaluationArguments) -> int:
    """How many searches an episode may have."""
    if not script.needs_tools:
        return 0
    if script.agent_name is None:
        return cast(int, script.turns)  # `as_trained` has filled it in
    # `untrained` has none, nor need an agent of somebody else's
    own_turns = getattr(agents.load(script.agent_name), "own_turns", None)
    return script.turns or own_turns or untrained.TURNS


def _played(tasks: Sequence[Task]) -> list[Task]:
    """The first questions, each once, though it may be asked for several samples."""
    distinct = {task.id: task for task in tasks}
    return list(distinct.values())[:PLAYED]


def _with_controls(script: EvaluationArguments, tasks: Sequence[Task]) -> list[Task]:
    """The episodes of an evaluation: one for each task, and those of its controls."""
    controls = control_tasks(tasks, script.controls) if script.needs_tools else []
    return [*tasks, *controls]


def _between(least: int, most: int) -> str:
    """The range as a table shows it; one number where both ends are the same."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
