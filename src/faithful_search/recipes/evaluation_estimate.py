"""`faithful-search eval --estimate`: what an evaluation would ask of endpoints, and what it would
cost. Nothing is asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from .. import agents, suites
from ..agents import Reply, ServedModel, open_agent, untrained
from ..errors import ConfigError
from ..flags import prices_of
from ..judges.endpoint import EndpointJudge
from ..measure.controls import control_tasks
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
from ..measure.suite import default_rewards
from ..tasks import Task
from .evaluation_models import REPLY_TOKENS, settings_of
from .evaluation_run import toolbox_of
from .evaluation_settings import UNTRAINED, EvaluationArguments

PLAYED = 5
"""How many questions of each set an estimate rests on."""
_ALL = "all"


def estimate(scripts: dict[str, EvaluationArguments], tasks: dict[str, Sequence[Task]]) -> str:
    """What the evaluations would ask, in words and a table; the flags and the questions of each are
    given by the name of its set.

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
        f"Nothing was asked. Measured on {PLAYED} questions of each set, {CHARACTERS_PER_TOKEN} "
        f"characters a token; a passage is taken to have {PASSAGE_CHARACTERS} characters."
    )
    return "\n\n".join([*parts, basis])


def _of_the_model(scripts: dict[str, EvaluationArguments], tasks: dict[str, Sequence[Task]]) -> str:
    expected = {name: _expected(script, tasks[name]) for name, script in scripts.items()}
    if len(expected) > 1:
        expected[_ALL] = total(expected.values())
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
        most = list(expected.values())[-1].cost(prices_of(script.prices, "--prices"))
        cost = f"it costs at most {most:.4f}"
    return f"{script.subject} at {script.endpoint}: {cost}\n\n{aligned(rows)}"


def _expected(script: EvaluationArguments, tasks: Sequence[Task]) -> Expected:
    """What the agent would ask on one set."""
    settings = settings_of(script)
    name = cast(str, script.agent_name)
    with toolbox_of(script) as toolbox:
        played = _played(tasks)
        episodes = _with_controls(script, tasks)
        passages = AssumedPassages(toolbox, cast(int, script.search_top_k))
        if name == UNTRAINED:
            served = ServedModel(script.model, script.endpoint)
            agent = open_agent(name, served, passages, settings)
            return _expected_of_served(agent, played, episodes, script)
        model = StandIn(tokens_of, lambda text: Reply(text))
        agent = open_agent(name, model, passages, settings)
        return expected_of_played(
            agent, model, episodes, played, settings.max_tokens, settings.total_tokens
        )


def _expected_of_served(
    agent: Any, played: Sequence[Task], episodes: Sequence[Task], script: EvaluationArguments
) -> Expected:
    """What the untrained agent would ask, whose server writes and reads calls itself."""
    schemas = agent.toolbox.schemas
    prompts = []
    for task in played:
        texts = [
            str(message["content"]) for message in agent.dialect.prompt(task.question, schemas)
        ]
        # In the dialect openai the schemas are sent beside the messages
        beside = str(schemas) if agent.dialect.name == untrained.SERVED else ""
        prompts.append(tokens_of("".join([*texts, beside])))
    top_k = cast(int, script.search_top_k)
    [search, _] = stand_in_episode(played[0], top_k, 1, 1, agent.dialect.name).steps
    response = agent.dialect.render_observation(search.evidence)
    max_tokens = settings_of(script).max_tokens
    return expected_of_turns(prompts, tokens_of(response), episodes, agent.turns, max_tokens)


def _of_the_judge(
    scripts: dict[str, EvaluationArguments],
    tasks: dict[str, Sequence[Task]],
    judge: EndpointJudge,
) -> str:
    """What the judge would be asked, were all turns used for searches and all answers wrong."""
    requests = prompt_tokens = reply_tokens = 0
    for name, script in scripts.items():
        dry = replace(judge, dry=True, cache=None, on_progress=None)
        facts = suites.facts_are_known(script.questions)
        dialect = cast(str, script.dialect)
        rewards = default_rewards(dialect, dry, facts=facts)
        turns, top_k = _turns(script), cast(int, script.search_top_k)
        max_tokens = script.turn_tokens or REPLY_TOKENS
        played = _played(tasks[name])
        episodes = [stand_in_episode(task, top_k, turns, max_tokens, dialect) for task in played]
        for reward in rewards.values():
            if not reward.needs_policy:
                reward.score_batch(episodes)
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
    own = getattr(agents.load(script.agent_name), "own_turns", None)
    return script.turns or own or untrained.TURNS


def _played(tasks: Sequence[Task]) -> list[Task]:
    return list({task.id: task for task in tasks}.values())[:PLAYED]


def _with_controls(script: EvaluationArguments, tasks: Sequence[Task]) -> list[Task]:
    """The episodes of an evaluation: one for each task, and those of its controls."""
    controls = control_tasks(tasks, script.controls) if script.needs_tools else []
    return [*tasks, *controls]


def _between(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
