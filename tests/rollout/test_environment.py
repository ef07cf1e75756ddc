"""The adapter to TRL's `environment_factory`: the members TRL looks for, their schemas, ids and
failures.
"""

import asyncio
import inspect
from dataclasses import dataclass

import lab
import pytest

from faithful_search.errors import ConfigError
from faithful_search.rollout.environment import SearchEnvironment
from faithful_search.tools import Tool, Toolbox
from faithful_search.trajectory import Evidence


@dataclass
class Atlas(Tool):
    """A second tool, with several and optional arguments."""

    name: str = "atlas"
    description: str = "Look up a place."

    async def look_up(
        self, place: str, limit: int = 2, regions: list[str] | None = None
    ) -> list[Evidence]:
        """Not what the policy is told.

        Args:
            place: Name of the place: a city or a country.
            limit: Most facts to return.
            regions: Only these regions.
        """
        return [Evidence(f"{place} fact {n}", title=place) for n in range(limit)]


@pytest.fixture
def toolbox():
    with Toolbox([lab.Shelf(Evidence("It is in Rome.")), Atlas()]) as box:
        yield box


@pytest.fixture
def environment(toolbox):
    return SearchEnvironment.factory(toolbox)()


def call(environment, name, **arguments):
    return asyncio.run(getattr(environment, name)(**arguments))


def ids(environment):
    return [item.id for seen in environment.observations for item in seen.evidence]


def test_trl_finds_reset_and_the_tools_alone(toolbox, environment):
    utils = pytest.importorskip("transformers.utils")
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    tools = [name for name, _ in members if name != "reset" and not name.startswith("_")]
    assert tools == ["atlas", "shelf"]
    schemas = {schema["function"]["name"]: schema for schema in toolbox.schemas}
    for name in tools:
        assert inspect.iscoroutinefunction(getattr(environment, name))
        assert utils.get_json_schema(getattr(environment, name)) == schemas[name]
    assert environment.reset(prompt="any", question="column of the dataset") is None


def test_evidence_ids_begin_again_after_reset(toolbox, environment):
    other = SearchEnvironment.factory(toolbox)()
    assert (
        call(environment, "atlas", place="Oslo") == "Oslo [E1]: Oslo fact 0\nOslo [E2]: Oslo fact 1"
    )
    assert call(other, "atlas", place="Oslo").startswith("Oslo [E1]")  # an episode of its own
    assert call(environment, "atlas", place="Rome", limit=1) == "Rome [E3]: Rome fact 0"
    assert ids(environment) == ["E1", "E2", "E3"]
    environment.reset()
    assert environment.observations == []
    assert call(environment, "atlas", place="Rome", limit=1).startswith("Rome [E1]")
    environment.reset()

    async def turn():  # concurrent calls
        await asyncio.gather(
            *(environment.atlas(place=place) for place in ("Oslo", "Rome", "Bern"))
        )

    asyncio.run(turn())
    assert sorted(ids(environment)) == ["E1", "E2", "E3", "E4", "E5", "E6"]


def test_mistakes_of_the_policy_come_back_as_notes(environment):
    assert "'place'" in call(environment, "atlas")
    assert "expected 'int'" in call(environment, "atlas", place="Oslo", limit="two")
    assert "unknown argument" in call(environment, "atlas", place="Oslo", self="x")
    assert [seen.error for seen in environment.observations] == [True, True, True]
    assert call(environment, "atlas", place="Oslo").startswith("Oslo [E1]")


@pytest.mark.parametrize("name", ["reset", "get_reward", "_hidden", "two words", "class"])
def test_a_tool_that_cannot_be_a_method_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        SearchEnvironment.factory(Toolbox([Atlas(name=name)]))


def test_a_new_rollout_ends_the_calls_of_the_old_one():
    class Slow(lab.Shelf):
        async def shelf(self, query: str) -> list[Evidence]:
            started.set()
            await asyncio.sleep(30)
            return []

    async def scene() -> str:
        environment = SearchEnvironment.factory(toolbox)()
        call = asyncio.ensure_future(environment.shelf(query="x"))
        await started.wait()
        environment.reset()
        told = await asyncio.wait_for(call, 10)
        assert environment.observations == []
        return told

    started = asyncio.Event()
    with Toolbox([Slow()]) as toolbox:
        assert "the episode has ended" in asyncio.run(scene())
