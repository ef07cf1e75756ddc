"""verifiers' own loop: its harness plays the published environment against a model on loopback."""

import asyncio
import shutil

import pytest
from paths import ROOT
from streaming_model import streaming_model
from stub_server import tool_call

vf = pytest.importorskip("verifiers.v1", reason="needs the extra adapters")

from awaited import DeadJudge  # noqa: E402
from verifiers.v1.clients import EvalClientConfig, ModelContext  # noqa: E402
from verifiers.v1.utils.loaders import load_environment  # noqa: E402

from faithful_search.adapters import verifiers  # noqa: E402
from faithful_search.scoring import Scoring  # noqa: E402
from faithful_search.tasks import load_tasks  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("uv") is None, reason="verifiers runs its harness with uv"),
]
LOCAL = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
TASK = load_tasks("world")[0]


def searches_then_answers(messages):
    """One search, then the gold answer."""
    if messages[-1]["role"] != "tool":
        return tool_call("search_toolset_search", '{"query": "parliament of Peru"}')
    return {"role": "assistant", "content": TASK.answers[0]}


def episode(reply):
    """One episode of the environment's first task."""
    taskset = {"id": "faithful_search_v1", "limit": 1}
    env = load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=LOCAL))

    async def play(url):
        client = EvalClientConfig(base_url=url, api_key_var="STUB_KEY")
        context = ModelContext(client=client, model="stub", sampling=vf.SamplingConfig())
        [task] = env.taskset
        async with env.serving():
            return await env.run_episode(task, context)

    with streaming_model(reply) as url:
        return asyncio.run(play(url))


def publish_environment(patch):
    """Let verifiers find the published environment, here and in the processes that it starts."""
    folder = str(ROOT / "environments" / "faithful_search")
    patch.setenv("STUB_KEY", "stub")
    patch.setenv("PYTHONPATH", folder, prepend=":")
    patch.syspath_prepend(folder)


@pytest.fixture(scope="module")
def searched():
    """The trace of an episode with a search."""
    with pytest.MonkeyPatch.context() as patch:
        publish_environment(patch)
        [trace] = episode(searches_then_answers).traces
    return trace


def test_the_loop_ends_without_errors(searched):
    assert searched.errors == []


def test_the_environments_tool_was_called(searched):
    assert "Peru" in str([message for message in searched.messages if message.role == "tool"])


def test_the_trace_is_rewarded_as_its_messages_are(searched):
    messages = [message.model_dump(exclude_none=True) for message in searched.messages]
    columns = {"question": [TASK.question], "answers": [list(TASK.answers)]}
    [score] = Scoring("veritas", dialect="openai").score([messages], **columns)
    assert searched.rewards["faithful"].score == score.value


def test_the_parts_are_metrics_of_the_trace(searched):
    assert "exact_match" in searched.metrics


def test_a_judge_that_is_down_leaves_the_trace_without_a_reward(monkeypatch):
    publish_environment(monkeypatch)
    scoring = Scoring("answer_support", judge=DeadJudge())
    monkeypatch.setattr(verifiers, "scoring_of", lambda *names, **values: scoring)
    [trace] = episode(searches_then_answers).traces
    assert (trace.rewards["faithful"], trace.errors[0].type) == (None, "TaskError")
