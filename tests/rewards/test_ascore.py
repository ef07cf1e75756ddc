"""Scores awaited in an event loop."""

import asyncio
import pickle

import pytest
from awaited import DeadJudge, SlowJudge, beside_a_heart

from faithful_search.rewards import AnswerSupport, Citation, Correctness, Mix
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory


def rollout(number: int) -> Trajectory:
    step = Step(call=ToolCall("search", {}), evidence=(Evidence(f"town {number}", id="E1"),))
    return Trajectory(
        steps=(step, Step(answer=f"town {number}")),
        answer=f"town {number}",
        answers=(f"town {number % 2}",),
        dialect="openai",
    )


ROLLOUTS = [rollout(number) for number in range(8)]


def test_rollouts_scored_at_once_ask_the_judge_once():
    judge = SlowJudge()
    asyncio.run(beside_a_heart(AnswerSupport(judge).ascore, ROLLOUTS))
    assert judge.batches == [8]


def test_the_event_loop_goes_on_while_a_judge_is_asked():
    judge = SlowJudge(seconds=1.0)
    _, longest = asyncio.run(beside_a_heart(AnswerSupport(judge).ascore, ROLLOUTS))
    assert longest < 0.5  # 0.01 s but for a busy machine; a judge that is waited for takes 1 s


@pytest.mark.parametrize(
    "reward",
    [Correctness(), Citation(), Mix({"right": Correctness("f1"), "cites": AnswerSupport()})],
    ids=lambda reward: reward.name,
)
def test_awaited_scores_are_those_of_a_batch(reward):
    scores, _ = asyncio.run(beside_a_heart(reward.ascore, ROLLOUTS))
    assert scores == reward.score_batch(ROLLOUTS)


def test_a_judge_that_is_down_has_not_judged():
    [score] = asyncio.run(beside_a_heart(AnswerSupport(DeadJudge()).ascore, ROLLOUTS[:1]))[0]
    assert score.value is None


def test_a_reward_that_was_awaited_still_pickles():
    reward = Correctness("f1")
    asyncio.run(reward.ascore(ROLLOUTS[0]))
    assert pickle.loads(pickle.dumps(reward)) == reward
