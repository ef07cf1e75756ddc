"""inspect_ai's door, in the real package: a scorer and a task, with a mock model."""

import asyncio
import math
import tomllib

import pytest
from awaited import DeadJudge, beside_a_heart
from doors import ANSWERS, QUESTION, ByteCount, at_most, slow_scoring
from paths import ROOT

inspect_ai = pytest.importorskip("inspect_ai", reason="needs the extra adapters")

from inspect_ai.model import (  # noqa: E402
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Target  # noqa: E402
from inspect_ai.solver import TaskState  # noqa: E402
from inspect_ai.tool import ToolCall  # noqa: E402

from faithful_search.adapters import inspect_ai as adapter  # noqa: E402
from faithful_search.adapters.inspect_ai import faithfulness, search_questions  # noqa: E402
from faithful_search.scoring import Scoring  # noqa: E402

SEARCH = ToolCall(id="1", function="search", arguments={"query": "capital of Peru"})
SUBMIT = ToolCall(id="2", function="submit", arguments={"answer": "Lima"})
MESSAGES = [
    ChatMessageUser(content=QUESTION),
    ChatMessageAssistant(content="Look.", tool_calls=[SEARCH]),
    ChatMessageTool(tool_call_id="1", function="search", content="The capital of Peru is Lima."),
    ChatMessageAssistant(content="Lima"),
]
SUBMITTED = [
    MESSAGES[0],
    ChatMessageAssistant(content="I know.", tool_calls=[SUBMIT]),
    ChatMessageTool(tool_call_id="2", function="submit", content="Lima"),
]


@pytest.fixture(autouse=True)
def no_download(monkeypatch):
    monkeypatch.setattr("tiktoken.get_encoding", lambda name: ByteCount())


def state_of(messages=MESSAGES):
    name = "mockllm/model"
    return TaskState(name, sample_id=1, epoch=1, input=QUESTION, messages=list(messages))


def scored(messages=MESSAGES, answers=ANSWERS, **settings):
    return asyncio.run(faithfulness(**settings)(state_of(messages), Target(answers)))


def test_a_supported_answer_earns_the_reward():
    assert scored(reward="answer_only").value == 1.0


def test_a_submitted_answer_is_no_evidence_for_itself():
    assert scored(SUBMITTED, reward="answer_only").value <= 0.0


def test_the_parts_are_metadata():
    assert scored(reward="answer_only").metadata["parts"]["source_gated"] == 1.0


def test_a_judge_that_is_down_leaves_the_sample_unscored(monkeypatch):
    scoring = Scoring("answer_support", judge=DeadJudge())
    monkeypatch.setattr(adapter, "scoring_of", lambda *names, **values: scoring)
    score = scored()
    assert (math.isnan(score.value), score.reason) == (True, "grader_failed")


def test_a_reward_that_does_not_apply_leaves_it_unscored():
    assert scored(answers=[], reward="correctness").reason == "scoring_failed"


def test_the_entry_point_is_this_module():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["inspect_ai"] == {"faithful_search": adapter.__name__}


def test_eight_samples_share_a_judge_of_one_second(monkeypatch):
    with slow_scoring(monkeypatch, adapter), at_most(4.0):
        score = faithfulness()

        async def score_one(state):
            return await score(state, Target(ANSWERS))

        states = [state_of() for _ in range(8)]
        _, longest = asyncio.run(beside_a_heart(score_one, states))
    assert longest < 0.5  # 0.01 s but for a busy machine; a loop that waits stands still for 1 s


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """What inspect's own loop logs of one question, with a mock model that searches and submits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiktoken.get_encoding", lambda name: ByteCount())
        outputs = [
            ModelOutput.for_tool_call("mockllm/model", call.function, call.arguments)
            for call in (SEARCH, SUBMIT)
        ]
        model = get_model("mockllm/model", custom_outputs=outputs)
        folder = str(tmp_path_factory.mktemp("logs"))
        task = search_questions(limit=1)
        [log] = inspect_ai.eval(task, model=model, log_dir=folder, display="none")
    return log


def test_inspects_own_loop_runs_the_task(log):
    assert log.status == "success"


def test_the_loops_search_finds_passages(log):
    tools = [message for message in log.samples[0].messages if message.role == "tool"]
    assert "Peru" in tools[0].text


def test_a_finished_log_can_be_scored_again(log):
    again = inspect_ai.score(log, faithfulness("correctness"), display="none", action="overwrite")
    assert again.samples[0].scores["faithfulness"].value == 0.0
