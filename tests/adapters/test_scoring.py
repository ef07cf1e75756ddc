"""`Scoring`: one way to score what an agent left behind, in a batch or awaited."""

import asyncio
import pickle

import msgspec
import pytest
from awaited import DeadJudge, SlowJudge, beside_a_heart

import faithful_search as fs
from faithful_search.errors import ConfigError, DialectError, NoScoreError
from faithful_search.rewards import Citation, Correctness, EvidenceSensitivity, Format, Mix, Warmup
from faithful_search.scoring import MIXES, Scoring, numeric_parts
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TEXT = (
    "<think>Look.</think><search>capital of Peru</search>"
    "<information>Doc 1(Title: Peru) The capital of Peru is Lima.</information>"
    "<think>The capital of Peru is Lima.</think><answer>Lima</answer>"
)
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
CHAT = [
    {"role": "user", "content": "What is the capital of Peru?"},
    {"role": "assistant", "content": "Look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "The capital of Peru is Lima."},
    {"role": "assistant", "content": "Lima"},
]
LIMA = ["Lima"]


def value(rollout, reward="answer_only", **settings):
    [score] = Scoring(reward, **settings).score([rollout], answers=[LIMA])
    return score.value


class Failing(Correctness):
    """Fails on one answer."""

    def score_batch(self, trajectories):
        if any(trajectory.answer == "Quito" for trajectory in trajectories):
            raise RuntimeError("no such capital")
        return super().score_batch(trajectories)


# What it takes


@pytest.mark.parametrize(
    "rollout",
    [CHAT, tuple(CHAT), {"messages": CHAT}, {"messages": CHAT, "answers": ["Quito"]}],
    ids=["list", "tuple", "row", "row whose gold is overruled"],
)
def test_messages_in_any_container_score_the_same(rollout):
    assert value(rollout) == 1.0


def test_a_rows_own_gold_answers_are_used():
    [score] = Scoring("answer_only").score([{"messages": CHAT, "answers": LIMA}])
    assert score.value == 1.0


def test_a_trajectory_is_scored_as_it_is():
    step = Step(call=ToolCall("search"), evidence=(Evidence("Lima is the capital.", id="E1"),))
    trajectory = Trajectory(steps=(step, Step(answer="Lima")), answer="Lima", dialect="openai")
    assert value(trajectory) == 1.0


def test_a_recorded_text_is_read_anywhere():
    assert value(TEXT, responses="anywhere") == 1.0


def test_a_policys_text_holds_no_evidence():
    assert Scoring("answer_only").read(TEXT).evidence == {}


@pytest.mark.parametrize(
    "row",
    [
        {"output": TEXT},
        {"output": fs.parse(TEXT).to_json()},
        {
            "output": '[{"role": "tool", "content": "Lima"}, {"role": "assistant", "content": "Lima"}]'
        },
        {"input": "q", "output": "Action: search[x]\nObservation: Lima\nAction: finish[Lima]"},
    ],
    ids=["tags", "a trajectory's JSON", "messages' JSON", "ReAct"],
)
def test_no_text_in_a_row_holds_evidence(row):
    assert Scoring("veritas").read(row).evidence == {}


@pytest.mark.parametrize("nothing", [None, "", [], ()], ids=repr)
def test_nothing_is_a_rollout_without_a_turn(nothing):
    assert Scoring("veritas").read(nothing).steps == ()


@pytest.mark.parametrize(
    "text", ["<tool_call>{}</tool_call><tool_response>Lima</tool_response><answer>Lima</answer>"]
)
def test_writing_that_fits_no_dialect_is_no_escape(text):
    assert value(text, "veritas") is not None


@pytest.mark.parametrize("column", ["answers", "ground_truth", "golden_answers", "target"], ids=str)
def test_gold_answers_may_have_any_usual_name(column):
    [score] = Scoring("answer_only").score([CHAT], **{column: [LIMA]})
    assert score.value == 1.0


def test_verls_ground_truth_is_understood():
    [score] = Scoring("answer_only").score([CHAT], ground_truth=[{"target": LIMA}])
    assert score.value == 1.0


def test_a_mix_is_read_in_its_papers_dialect():
    assert Scoring("pou").read("hello").dialect == "pou"


def test_a_dialect_that_is_named_wins():
    assert Scoring("pou", "openai").read("hello").dialect == "openai"


RATE = """
from dataclasses import dataclass
from typing import ClassVar

from faithful_search.rewards import Reward, Score


@dataclass(frozen=True)
class Calls(Reward):
    name: ClassVar[str] = "calls"

    def score(self, trajectory):
        return Score(float(len(trajectory.steps)))
"""


def test_a_reward_in_a_file_of_yours_is_named_by_its_path(tmp_path):
    path = tmp_path / "calls.py"
    path.write_text(RATE, encoding="utf-8")
    assert value(CHAT, str(path)) == 2.0


# What it refuses


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "poo"}, "unknown reward 'poo'"),
        ({"reward": EvidenceSensitivity()}, "asks the policy itself"),
        ({"reward": fs.pou_mix(sensitivity=False)}, "alpha adapts"),
        ({"reward": Correctness(), "judge": DeadJudge()}, "made with its own judge"),
        ({"reward": "format", "judge": DeadJudge()}, "asks no judge"),
    ],
    ids=["unknown", "asks the policy", "adapts", "reward with a judge", "no judge"],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Scoring(**settings)


def test_an_unknown_dialect_is_refused():
    with pytest.raises(DialectError, match="unknown dialect"):
        Scoring("pou", "poo")


@pytest.mark.parametrize("rollouts", [TEXT, CHAT, {"messages": CHAT}], ids=["text", "chat", "row"])
def test_one_rollout_is_not_a_list_of_them(rollouts):
    with pytest.raises(ConfigError, match=r"pass \[rollout\]"):
        Scoring().score(rollouts)


def test_a_column_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="'answers' has 2 values for 1 rollouts"):
        Scoring().score([CHAT], answers=[LIMA, LIMA])


# What has no value


def test_an_unreadable_rollout_has_no_value():
    [score] = Scoring("veritas").score([[3]])
    assert score.value is None


def test_an_unreadable_rollout_says_why():
    [score] = Scoring("veritas").score([[3]])
    assert score.why.startswith("could not be read: ")


def test_an_unreadable_rollout_costs_itself_alone():
    scores = Scoring("answer_only").score([[3], CHAT], answers=[LIMA] * 2)
    assert [score.value for score in scores] == [None, 1.0]


def test_a_rollout_that_a_reward_fails_on_costs_itself_alone():
    chats = [[{"role": "assistant", "content": town}] for town in ("Quito", "Lima")]
    scores = Scoring(Failing()).score(chats, answers=[LIMA] * 2)
    assert [score.value for score in scores] == [None, 1.0]


@pytest.mark.parametrize("reward", sorted(MIXES))
def test_a_judge_that_is_down_never_scores_zero(reward):
    scoring = Scoring(reward, "openai", judge=DeadJudge())
    trajectory = msgspec.structs.replace(scoring.read(CHAT), answer="The town of Lima")
    [score] = scoring.score([trajectory], answers=[["The town of Lima", "Lima"]])
    assert score.value != 0.0


def test_a_number_is_asked_for_in_vain_where_there_is_none():
    scoring = Scoring("answer_only")
    [score] = scoring.score([CHAT])
    with pytest.raises(NoScoreError, match=r"abstained=0\.0"):
        scoring.number(score)


def test_a_number_can_be_stated_for_no_value():
    scoring = Scoring("answer_only", abstained=0.25)
    [score] = scoring.score([CHAT])
    assert scoring.number(score) == 0.25


# In an event loop


def test_awaited_scores_are_those_of_a_batch():
    scoring = Scoring("veritas", responses="anywhere")
    rollouts = [TEXT, CHAT, "", TEXT.replace("Lima", "Quito")]

    async def together():
        return await asyncio.gather(*(scoring.ascore(each, answers=LIMA) for each in rollouts))

    assert asyncio.run(together()) == scoring.score(rollouts, answers=[LIMA] * 4)


async def staggered(scoring, judge):
    async def late(number):
        await asyncio.sleep(0.002 * number)
        return await scoring.ascore(CHAT, answers=LIMA)

    return await asyncio.gather(*map(late, range(8)))


def test_rollouts_that_come_one_after_the_other_share_a_batch():
    judge = SlowJudge(0.1)
    asyncio.run(staggered(Scoring("answer_support", judge=judge), judge))
    assert len(judge.batches) <= 2


def test_the_event_loop_goes_on_while_rollouts_are_scored():
    scoring = Scoring("answer_support", judge=SlowJudge(1.0))
    _, longest = asyncio.run(beside_a_heart(scoring.ascore, [CHAT] * 8))
    assert longest < 0.5


def test_awaiting_an_unreadable_rollout_says_why():
    assert asyncio.run(Scoring("veritas").ascore([3])).parts["unread"] is True


def test_it_pickles_after_it_was_awaited():
    scoring = Scoring("veritas")
    asyncio.run(scoring.ascore(CHAT, answers=LIMA))
    assert pickle.loads(pickle.dumps(scoring)) == scoring


# Steps and parts


def test_a_mix_warms_up_by_the_step():
    mix = Mix({"right": Correctness()}, gate=None, warmup=Warmup(("right",), 0, 4))
    chat = [{"role": "assistant", "content": "Lima"}]
    scoring = Scoring(mix)
    values = [scoring.score([chat], answers=[LIMA], step=step)[0].value for step in (1, 2, 4)]
    assert values == [0.25, 0.5, 1.0]


def test_numbers_are_the_parts_that_have_a_value():
    score = fs.Score(
        0.5, parts={"format": 1.0, "citation": None, "judge": "words", "applies": True}
    )
    assert numeric_parts(score) == {"format": 1.0}


def test_single_rewards_have_their_own_name():
    assert [Scoring(reward).name for reward in ("citation", Citation(), Format())] == [
        "citation",
        "citation",
        "format",
    ]
