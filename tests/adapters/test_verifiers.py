"""verifiers' door, in the real package: a task that scores traces."""

import asyncio
import sys

import pytest
from awaited import DeadJudge, beside_a_heart
from doors import ANSWERS, FORGED, QUESTION, at_most, slow_scoring
from paths import ROOT

vf = pytest.importorskip("verifiers.v1", reason="needs the extra adapters")

from verifiers.v1.configs.agent import AgentConfig  # noqa: E402
from verifiers.v1.trace import AgentInfo, TraceTask  # noqa: E402

from faithful_search.adapters import verifiers  # noqa: E402
from faithful_search.adapters.verifiers import (  # noqa: E402
    FaithfulConfig,
    FaithfulData,
    FaithfulTask,
    FaithfulTaskset,
)
from faithful_search.scoring import Scoring  # noqa: E402

CALL = vf.ToolCall(id="1", name="search", arguments="{}")
MESSAGES = [
    vf.UserMessage(content=QUESTION),
    vf.AssistantMessage(content="Look.", tool_calls=[CALL]),
    vf.ToolMessage(tool_call_id="1", content="The capital of Peru is Lima."),
    vf.AssistantMessage(content="Lima"),
]


class SourceGatedTask(FaithfulTask):
    mix = "answer_only"


@pytest.fixture
def task():
    return SourceGatedTask(FaithfulData(prompt=QUESTION, question=QUESTION, answers=ANSWERS))


def trace_of(task, messages=MESSAGES):
    named = TraceTask(type=type(task).__name__, data=task.data)
    trace = vf.Trace(task=named, agent=AgentInfo(config=AgentConfig()))
    for number, message in enumerate(messages):
        sampled = message.role == "assistant"
        parent = number - 1 if number else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=sampled))
    return trace


def scored(task, messages=MESSAGES):
    trace = trace_of(task, messages)
    asyncio.run(task.score(trace))
    return trace


def test_a_supported_answer_earns_the_reward(task):
    assert scored(task).rewards["faithful"].score == 1.0


def test_an_answer_from_memory_earns_nothing(task):
    assert scored(task, [MESSAGES[0], MESSAGES[-1]]).rewards["faithful"].score <= 0.0


def test_a_forged_response_earns_nothing(task):
    messages = [MESSAGES[0], vf.AssistantMessage(content=FORGED)]
    assert scored(task, messages).rewards["faithful"].score <= 0.0


def test_the_parts_are_metrics(task):
    assert scored(task).metrics == {"format": 1.0, "source_gated": 1.0}


def test_the_trace_keeps_the_reason(task):
    assert scored(task).info["faithful_search"]["why"] == ""


def test_the_judge_is_asked_once_a_trace(task, monkeypatch):
    with slow_scoring(monkeypatch, verifiers, seconds=0.0) as scoring:
        scored(task)
    assert scoring.judge.batches == [1]


def test_a_judge_that_is_down_is_an_error(task, monkeypatch):
    scoring = Scoring("answer_support", judge=DeadJudge())
    monkeypatch.setattr(verifiers, "scoring_of", lambda *names, **values: scoring)
    with pytest.raises(vf.TaskError, match="nobody answers"):
        scored(task)


def test_a_taskset_holds_the_questions_of_a_suite():
    tasks = list(FaithfulTaskset(FaithfulConfig(limit=3)))
    assert [type(each) for each in tasks] == [FaithfulTask] * 3


def test_the_environment_package_loads(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "environments" / "faithful_search"))
    monkeypatch.delitem(sys.modules, "faithful_search_v1", raising=False)
    from faithful_search_v1 import SearchConfig, SearchTask, SearchTaskset

    [task] = SearchTaskset(SearchConfig(limit=1))
    assert isinstance(task, SearchTask)


def test_the_environments_tool_searches(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "environments" / "faithful_search"))
    from faithful_search_v1.search import SearchToolset, SearchToolsetConfig

    found = asyncio.run(SearchToolset(SearchToolsetConfig()).search("parliament of Peru"))
    assert "Lima" in found


def test_eight_traces_share_a_judge_of_one_second(task, monkeypatch):
    with slow_scoring(monkeypatch, verifiers), at_most(4.0):
        traces = [trace_of(task) for _ in range(8)]
        _, longest = asyncio.run(beside_a_heart(task.score, traces))
    assert longest < 0.5  # 0.01 s but for a busy machine; a loop that waits stands still for 1 s
