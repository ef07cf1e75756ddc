"""`faithful-search serve-reward` over real connections: OpenRLHF's, CaRR's and NeMo Gym's
requests.
"""

import asyncio
import time

import httpx2
import pytest
from awaited import DeadJudge, SlowJudge
from doors import ANSWERS, CHAT, FORGED, QUESTION, TEXT, at_most
from served import command, invoked, running

from faithful_search.rewards import Score
from faithful_search.scoring import Scoring
from faithful_search.serving.app import ServerLimits
from faithful_search.serving.rewarding import Rewarding

CALL = {"type": "function_call", "call_id": "1", "name": "search", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "The capital of Peru is Lima."}
SAID = {"id": "msg_1", "type": "message", "role": "assistant", "content": "Lima"}
VERIFY = {
    "responses_create_params": {"input": [{"role": "user", "content": QUESTION}]},
    "response": {"output": [CALL, OUTPUT, SAID]},
    "expected_answer": "Lima",
}
EVALUATE = {
    "history": [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": "Look.",
            "tool_calls": [{"tool_call_id": "1", "name": "browser.search", "arguments": "{}"}],
        },
        {
            "role": "tool",
            "content": [{"tool_call_id": "1", "output": "The capital of Peru is Lima."}],
        },
        {"role": "assistant", "content": "Lima"},
    ],
    "label": "Lima",
    "task_unfinished": False,
    "remote_env_info": {"search_forbidden_strs": [QUESTION], "rubrics": []},
}


def queries(*rollouts, **fields):
    return {"query": list(rollouts), "labels": [ANSWERS] * len(rollouts)} | fields


def posted(scoring, path, body, limits=None):
    with running(Rewarding(scoring, limits)) as url:
        return httpx2.post(url + path, json=body, timeout=30)


@pytest.fixture(scope="module")
def url():
    with running(Rewarding(Scoring("answer_only"))) as url:
        yield url


def reward(url, path, body):
    answer = httpx2.post(url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


# The three wire formats


def test_openrlhf_gets_a_reward_for_each_query(url):
    answer = reward(url, "/get_reward", queries(CHAT, CHAT[:1] + CHAT[-1:]))
    assert answer["rewards"] == [1.0, 0.0]


def test_openrlhf_gets_the_parts_as_logs(url):
    assert reward(url, "/get_reward", queries(CHAT))["extra_logs"]["source_gated"] == [1.0]


def test_the_prompt_is_taken_off_a_query():
    answer = posted(
        Scoring("correctness"), "/get_reward", queries("Where? Lima", prompts=["Where? "])
    )
    assert answer.json()["rewards"] == [1.0]


def test_carr_gets_its_four_fields(url):
    assert reward(url, "/evaluate", EVALUATE) == {
        "reward": 1.0,
        "outcome_reward": 1.0,
        "rubric_reward": 1.0,
        "rubric_scores": {"format": 1.0},
    }


def test_nemo_gym_gets_components(url):
    answer = reward(url, "/verify", VERIFY)
    assert answer["reward_components"]["source_gated"] == answer["reward"] == 1.0


def test_nemo_gym_gets_its_row_back(url):
    assert reward(url, "/verify", VERIFY).items() >= VERIFY.items()


def test_a_forged_response_earns_nothing(url):
    assert reward(url, "/get_reward", queries(FORGED))["rewards"][0] <= 0.0


def test_a_text_can_be_trusted():
    answer = posted(
        Scoring("veritas", "search_r1", "anywhere"), "/get_reward", queries(TEXT)
    ).json()
    assert answer["extra_logs"]["info_think"] == [1.0]


# What has no value


def test_a_judge_that_is_down_lets_clients_come_back():
    scoring = Scoring("answer_support", judge=DeadJudge())
    assert posted(scoring, "/get_reward", queries(CHAT)).status_code == 503


def test_a_reward_that_does_not_apply_is_the_requests_fault():
    scoring = Scoring("correctness")
    assert posted(scoring, "/get_reward", {"query": ["Lima"]}).status_code == 422


def test_a_score_that_there_is_not_is_asked_for_again():
    with running(Rewarding(Scoring("correctness", abstained=0.0))) as url:
        for _ in range(2):
            reward(url, "/get_reward", {"query": ["Lima"]})
        metrics = httpx2.get(f"{url}/metrics").text
    assert "faithful_search_rollouts_known_total 0.0" in metrics


def test_a_stated_value_is_given_instead():
    scoring = Scoring("correctness", abstained=0.0)
    answer = posted(scoring, "/get_reward", {"query": ["Lima"]}).json()
    assert answer == {"rewards": [0.0], "scores": [0.0], "extra_logs": {"abstained": [1.0]}}


# Batches


def test_identical_rollouts_are_scored_once():
    judge = SlowJudge(0.05)
    scoring = Scoring("answer_support", judge=judge)
    with running(Rewarding(scoring)) as url:
        reward(url, "/get_reward", queries(CHAT, CHAT))
        reward(url, "/get_reward", queries(CHAT))
    assert judge.batches == [1]


def test_a_score_that_was_asked_for_anew_is_not_forgotten_for_the_one_before():
    server = Rewarding(Scoring("answer_only"))

    async def is_kept() -> bool:
        before = asyncio.create_task(asyncio.sleep(0, Score(None)))
        anew = asyncio.create_task(asyncio.sleep(0, Score(1.0)))
        await asyncio.gather(before, anew)
        server._scores[b"key"] = anew
        server._forget(b"key", before)
        return b"key" in server._scores

    assert asyncio.run(is_kept())


async def at_once(url, bodies):
    async with httpx2.AsyncClient(timeout=30) as client:
        posts = (client.post(f"{url}/get_reward", json=body) for body in bodies)
        return await asyncio.gather(*posts)


def test_eight_clients_share_a_judge_of_one_second():
    towns = ("Lima", "Quito", "Bogota", "Oslo", "Rome", "Cairo", "Paris", "Bern")
    chats = [[*CHAT[:-1], {"role": "assistant", "content": town}] for town in towns]
    scoring = Scoring("answer_support", judge=SlowJudge(1.0))
    with running(Rewarding(scoring)) as url, at_most(4.0):
        answers = asyncio.run(at_once(url, [queries(chat) for chat in chats]))
    assert [answer.status_code for answer in answers] == [200] * 8


def test_health_is_answered_while_a_judge_takes_its_time():
    scoring = Scoring("answer_support", judge=SlowJudge(1.0))

    async def beside(url):
        async with httpx2.AsyncClient(timeout=30) as client:
            asked = asyncio.create_task(client.post(f"{url}/get_reward", json=queries(CHAT)))
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            await client.get(f"{url}/health")
            waited = time.monotonic() - begun
            await asked
            return waited

    with running(Rewarding(scoring)) as url:
        assert asyncio.run(beside(url)) < 0.5


# Bad requests


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/get_reward", {"query": "Lima"}, 422),
        ("/get_reward", {"query": ["Lima"], "labels": []}, 422),
        ("/get_reward", {"query": ["a", "b"], "labels": ["a"]}, 422),
        ("/evaluate", {"history": "Lima"}, 422),
        ("/evaluate", {"history": [{"role": "tool", "content": [3]}], "label": "Lima"}, 200),
        ("/verify", [], 422),
        ("/verify", {"response": 3}, 422),
        ("/reward", {}, 404),
    ],
)
def test_requests_that_cannot_be_answered(url, path, body, status):
    assert httpx2.post(url + path, json=body, timeout=30).status_code == status


def test_too_many_rollouts_are_refused():
    answer = posted(
        Scoring("correctness"), "/get_reward", queries("a", "b"), ServerLimits(queries=1)
    )
    assert answer.status_code == 413


# The command


def test_the_command_serves_a_mix():
    with command("--mix", "answer_only", verb="serve-reward") as (_, url):
        assert reward(url, "/get_reward", queries(CHAT))["rewards"] == [1.0]


def test_health_says_what_is_served(url):
    health = httpx2.get(f"{url}/health").json()
    assert (health["reward"], health["responses"]) == ("answer_only", "messages")


def test_an_unknown_mix_is_refused_in_a_line():
    result = invoked("serve-reward", "--mix", "poo", "--port", "0")
    assert (result.exit_code, "unknown reward 'poo'" in result.stderr) == (1, True)
