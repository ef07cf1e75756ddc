"""What each door gives for a rollout without a value, as the page says: never a 0.

A judge that is down has none, and neither has a question without gold answers.
"""

import asyncio
import re

import httpx2
import pytest
from awaited import DeadJudge
from doors import ANSWERS, CHAT, QUESTION
from paths import ROOT
from served import running
from test_agent_lightning import events_of, spans_of

from faithful_search import dialects
from faithful_search.adapters import agent_lightning, nemo_gym, openrlhf, verl
from faithful_search.adapters.trl import trl_reward
from faithful_search.errors import NoScoreError
from faithful_search.scoring import Scoring
from faithful_search.serving.rewarding import Rewarding

PAGE = (ROOT / "docs" / "trainers.md").read_text("utf-8")
STATED = 0.25
TURNS = (
    "<think>I need the capital of Peru.</think><search>capital of Peru</search>",
    "<think>The parliament of Peru meets in Lima.</think><answer>Lima</answer>",
)


def through_trl(scoring, answers, patch):
    reward = trl_reward(scoring.rule, dialect="openai")
    [value] = reward(completions=[CHAT[1:]], answers=[answers])
    return value


def through_verl(scoring, answers, patch):
    patch.setattr(verl, "scoring_of", lambda **settings: scoring)
    return asyncio.run(verl.compute_score("nq", "", answers, {"messages": CHAT}))["score"]


def through_verls_manager(scoring, answers, patch):
    pytest.importorskip("verl", reason="needs verl (pip install --no-deps verl) and ray")
    from test_verl_manager import manager, rollout, scored, verl_manager

    patch.setattr(verl_manager, "scoring_of", lambda **settings: scoring)
    return scored(rollout(answers=answers), manager())["reward_score"]


def through_openrlhf(scoring, answers, patch):
    patch.setattr(openrlhf, "scoring_of", lambda *names, **settings: scoring)
    return openrlhf.reward_function()([CHAT], [QUESTION], [answers])["rewards"][0]


def through_skyrl(scoring, answers, patch):
    pytest.importorskip("skyrl_gym", reason="needs the extra skyrl")
    from faithful_search.adapters import skyrl

    patch.setattr(skyrl, "scoring_of", lambda **settings: scoring)
    row = {"reward_spec": {"ground_truth": {"target": answers}}, "max_turns": 4}
    environment = skyrl.SearchEnv({}, row)
    environment.init(dialects.load("search_r1").prompt(QUESTION, []))
    return sum(environment.step(turn)["reward"] for turn in TURNS)


def through_verifiers(scoring, answers, patch):
    vf = pytest.importorskip("verifiers.v1", reason="needs the extra adapters")
    from test_verifiers import MESSAGES, trace_of

    from faithful_search.adapters import verifiers

    patch.setattr(verifiers, "scoring_of", lambda *names, **settings: scoring)
    task = verifiers.FaithfulTask(verifiers.FaithfulData(question=QUESTION, answers=answers))
    trace = trace_of(task, MESSAGES)
    try:
        asyncio.run(task.score(trace))
    except vf.TaskError:
        return "TaskError"
    return trace.rewards["faithful"].score


def through_inspect(scoring, answers, patch):
    pytest.importorskip("inspect_ai", reason="needs the extra adapters")
    from inspect_ai.scorer import Target
    from test_inspect_ai import adapter, state_of

    patch.setattr(adapter, "scoring_of", lambda *names, **settings: scoring)
    score = asyncio.run(adapter.faithfulness()(state_of(), Target(answers)))
    return "unscored" if score.reason else score.value


def through_openenv(scoring, answers, patch):
    pytest.importorskip("openenv.core", reason="needs the extra openenv")
    from test_openenv import FOLLOWS, SEARCH, FaithfulEnvironment, Task

    environment = FaithfulEnvironment()
    environment.reset()
    environment.rule.scoring = scoring
    environment.rule.task = Task("1", QUESTION, tuple(answers))
    environment.step(SEARCH)
    return environment.step(FOLLOWS).reward


def through_nemo_gym(scoring, answers, patch):
    patch.setattr(nemo_gym, "scoring_of", lambda *names, **settings: scoring)
    body = {"messages": CHAT, "expected_answer": answers}
    return asyncio.run(nemo_gym.verify(body))["reward"]


def through_spans(scoring, answers, patch):
    patch.setattr(agent_lightning, "scoring_of", lambda *names, **settings: scoring)
    return asyncio.run(agent_lightning.reward_of_spans(spans_of(CHAT), answers))


def through_events(scoring, answers, patch):
    patch.setattr(agent_lightning, "scoring_of", lambda *names, **settings: scoring)
    return agent_lightning.reward_of_events(events_of(CHAT), answers)


def through_http(scoring, answers, patch):
    body = {"query": [CHAT], "prompts": [QUESTION], "labels": [answers]}
    with running(Rewarding(scoring)) as url:
        reply = httpx2.post(f"{url}/get_reward", json=body, timeout=30)
    return reply.json()["rewards"][0] if reply.status_code == 200 else reply.status_code


RAISES = "NoScoreError"
DOORS = {
    "TRL": [(through_trl, None, None)],
    "verl, function and manager": [
        (through_verl, RAISES, RAISES),
        (through_verls_manager, RAISES, RAISES),
    ],
    "OpenRLHF": [(through_openrlhf, RAISES, RAISES)],
    "SkyRL-gym": [(through_skyrl, RAISES, RAISES)],
    "verifiers": [(through_verifiers, "TaskError", "TaskError")],
    "inspect_ai": [(through_inspect, "unscored", "unscored")],
    "OpenEnv": [(through_openenv, RAISES, RAISES)],
    "NeMo Gym": [(through_nemo_gym, RAISES, RAISES)],
    "Agent-Lightning": [(through_spans, RAISES, RAISES), (through_events, RAISES, RAISES)],
    "HTTP": [(through_http, 503, 422)],
}
"""By the page's row: each door with its outcome if the judge is down, and without gold answers."""
ALL = [door for doors in DOORS.values() for door in doors]
LEAVE_OUT = (through_trl, through_verifiers, through_inspect)
"""Doors of programs that leave a rollout without a value out: they need no number in its place."""


def name_of(value):
    return value.__name__ if callable(value) else ""


def outcome(door, scoring, answers):
    """What the program is given, or the name of the error that it gets."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            return door(scoring, answers, patch)
        except NoScoreError:
            return RAISES


def test_the_page_has_a_row_for_each_program():
    [table] = re.findall(r"\| program \| a rollout without a value is \|\n((?:\|.*\n)+)", PAGE)
    rows = [line.split("|")[1].strip() for line in table.splitlines()[1:]]
    assert rows == list(DOORS)


IF_JUDGE_IS_DOWN = [(door, expected) for door, expected, _ in ALL]
WITHOUT_GOLD = [(door, expected) for door, _, expected in ALL]
EACH_DOOR = [door for door, _, _ in ALL]
IN_NEED_OF_A_NUMBER = [door for door in EACH_DOOR if door not in LEAVE_OUT]


@pytest.mark.parametrize(("door", "expected"), IF_JUDGE_IS_DOWN, ids=name_of)
def test_a_judge_that_is_down_gives_no_number(door, expected):
    scoring = Scoring("answer_support", judge=DeadJudge())
    assert outcome(door, scoring, ANSWERS) == expected


@pytest.mark.parametrize(("door", "expected"), WITHOUT_GOLD, ids=name_of)
def test_a_question_without_gold_answers_gives_no_number(door, expected):
    assert outcome(door, Scoring("correctness"), []) == expected


@pytest.mark.parametrize("door", IN_NEED_OF_A_NUMBER, ids=name_of)
def test_a_number_for_rollouts_without_a_value_is_given(door):
    assert outcome(door, Scoring("correctness", abstained=STATED), []) == STATED


@pytest.mark.parametrize("door", EACH_DOOR, ids=name_of)
def test_a_rollout_with_a_value_has_it(door):
    assert outcome(door, Scoring("correctness"), ANSWERS) == 1.0
