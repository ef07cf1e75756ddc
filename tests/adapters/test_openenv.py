"""OpenEnv's door, in the real package: an environment with our tools, and a rubric."""

import pytest

pytest.importorskip("openenv.core", reason="needs the extra openenv")

from openenv.core.env_server.http_server import create_app
from starlette.testclient import TestClient

from faithful_search.adapters.openenv import (
    FaithfulEnvironment,
    FaithfulRubric,
    SearchAction,
    SearchObservation,
)
from faithful_search.errors import NoScoreError
from faithful_search.tasks import Task

SEARCH = SearchAction(thought="Look.", tool="local_search", arguments={"query": "parliament Peru"})
FOLLOWS = SearchAction(thought="The parliament of Peru meets in Lima.", answer="Lima")


@pytest.fixture
def environment():
    environment = FaithfulEnvironment()
    environment.reset()
    environment.rule.task = Task("1", "Where does the parliament of Peru meet?", ("Lima",))
    return environment


def test_a_reset_asks_a_question():
    environment = FaithfulEnvironment()
    assert environment.reset(index=0).text == environment.tasks[0].question


def test_the_next_reset_asks_the_next_question():
    environment = FaithfulEnvironment()
    environment.reset()
    assert environment.reset().text == environment.tasks[1].question


def test_the_tools_are_described():
    names = [tool["function"]["name"] for tool in FaithfulEnvironment().reset().tools]
    assert "local_search" in names


def test_a_search_returns_passages(environment):
    assert "Lima" in environment.step(SEARCH).text


def test_an_answer_ends_the_episode(environment):
    environment.step(SEARCH)
    assert environment.step(FOLLOWS).done is True


def test_a_supported_answer_earns_the_reward(environment):
    environment.step(SEARCH)
    assert environment.step(FOLLOWS).reward == pytest.approx(1.07)


def test_an_unknown_tool_is_told_so(environment):
    assert "Unknown tool" in environment.step(SearchAction(tool="guess")).text


def test_step_rewards_add_up_to_the_value(environment):
    environment.step(SEARCH)
    value = environment.step(FOLLOWS).reward
    assert sum(environment.rule.compute_step_rewards()) == pytest.approx(value)


def test_there_is_a_reward_for_each_step(environment):
    environment.step(SEARCH)
    environment.step(FOLLOWS)
    assert len(environment.rule.compute_step_rewards()) == 2


def test_an_episode_without_a_value_is_an_error():
    rubric = FaithfulRubric("correctness")
    with pytest.raises(NoScoreError):
        rubric(SearchAction(answer="Lima"), SearchObservation(done=True))


def test_openenvs_server_serves_it():
    app = create_app(
        FaithfulEnvironment, SearchAction, SearchObservation, env_name="faithful_search"
    )
    reply = TestClient(app).post("/reset", json={}).json()
    assert reply["observation"]["text"] == FaithfulEnvironment().tasks[0].question
