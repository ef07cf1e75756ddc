"""Tools by name: those of the package, in a file elsewhere, and by an entry point."""

import json
from importlib.metadata import EntryPoint

import pytest

from faithful_search import registry, tools
from faithful_search.errors import ConfigError
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tools import Tool
from faithful_search.tools.arguments import ToolArguments
from faithful_search.trajectory import ToolCall

GLOSSARY = '''
"""What terms mean."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from faithful_search.tools import Tool
from faithful_search.trajectory import Evidence


@dataclass(frozen=True)
class Glossary(Tool):
    entries: dict = field(default_factory=dict)
    name: str = "glossary"

    @classmethod
    def open(cls, source, setup):
        return cls(json.loads(Path(source).read_text()) if source else {})

    async def glossary(self, term: str) -> list[Evidence]:
        """Look up a term.

        Args:
            term: The term.
        """
        return [Evidence(self.entries[term], title=term)] if term in self.entries else []
'''
PLAIN = '''
from faithful_search.tools import Tool
from faithful_search.trajectory import Evidence


class Clock(Tool):
    name = "clock"

    def __init__(self, {arguments}):
        pass

    async def clock(self) -> list[Evidence]:
        """Tell the time."""
        return [Evidence("noon")]
'''


@pytest.fixture
def glossary(tmp_path):
    file = tmp_path / "glossary.py"
    file.write_text(GLOSSARY)
    return file


@pytest.fixture
def terms(tmp_path):
    file = tmp_path / "terms.json"
    file.write_text(json.dumps({"tide": "The sea rises and falls."}))
    return file


def opened(names: str, **flags: object) -> list[str]:
    """The names of the tools that the flags give."""
    with ToolArguments(tools=names, **flags).build_toolbox() as toolbox:
        return toolbox.names


@pytest.mark.parametrize("name", tools.names())
def test_each_name_is_a_tool(name):
    assert issubclass(tools.find(name), Tool)


def test_the_tools_of_the_package_are_its_files():
    files = {"browse", "irrelevant", "knowledge_graph", "local_search", "web_search", "wikidata"}
    assert files <= set(tools.names())


def test_a_tool_in_a_file_elsewhere_is_called(glossary, terms):
    with ToolArguments(tools=f"{glossary}={terms}").build_toolbox() as toolbox:
        call = ToolCall("glossary", {"term": "tide"})
        [observation] = toolbox.run_batch([call], [toolbox.session()])
    assert [item.text for item in observation.evidence] == ["The sea rises and falls."]


def test_tools_are_added_behind_those_of_the_flags(glossary):
    assert opened(f"{glossary}") == ["local_search", "knowledge_graph", "glossary"]


def test_a_tool_by_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "installed_glossary.py").write_text(GLOSSARY)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("terms", "installed_glossary:Glossary", "faithful_search.tools")

    def entry_points(group, name):
        return [point] if (group, name) == (point.group, point.name) else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert opened("terms", corpus="none", triples="none") == ["glossary"]


@pytest.mark.parametrize(
    ("names", "flags", "expected"),
    [
        ("irrelevant", {}, ["local_search", "knowledge_graph", "garden_almanac"]),
        ("knowledge_graph=none", {}, ["local_search"]),
        ("knowledge_graph=none, browse=jina", {}, ["browse", "local_search"]),
        ("web_search=ddgs,browse=fetch", {"corpus": "none"}, ["web_search", "browse"]),
        ("local_search", {"triples": "none"}, ["local_search"]),
        ("local_search=world", {"corpus": "none", "triples": "none"}, ["local_search"]),
    ],
)
def test_a_tool_of_the_package_by_its_name(names, flags, expected):
    assert set(expected) <= set(opened(names, **flags))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("abacus", "unknown tool 'abacus'; there are: browse, irrelevant, knowledge_graph"),
        ("nowhere.py", "there is no file nowhere.py that could define a tool"),
        ("web_search", "unknown web_search ''; there are: ddgs, searxng, serper"),
        ("web_search=searxng", "--web_search searxng and --searxng_url go together"),
        ("browse=lynx", "unknown browse 'lynx'; there are: fetch, jina"),
        ("irrelevant=x", "Irrelevant has no source: leave off 'x'"),
    ],
)
def test_a_tool_that_cannot_be_opened_is_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        opened(names)


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("local_search", {"corpus": "none"}, "local_search needs a corpus"),
        ("knowledge_graph", {"triples": "none"}, "knowledge_graph needs triples"),
    ],
)
def test_a_tool_without_what_it_opens_is_refused(name, flags, message):
    with pytest.raises(ConfigError, match=message):
        opened(name, **flags)


def test_a_tool_without_arguments_needs_no_open(tmp_path):
    file = tmp_path / "clock.py"
    file.write_text(PLAIN.format(arguments="hour=12"))
    assert "clock" in opened(str(file))


def test_a_tool_that_needs_arguments_must_say_how_it_opens(tmp_path):
    file = tmp_path / "clock.py"
    file.write_text(PLAIN.format(arguments="hour"))
    with pytest.raises(ConfigError, match=r"Clock cannot be made without arguments .* override"):
        opened(str(file))


def test_a_source_is_refused_where_none_is_taken(tmp_path):
    file = tmp_path / "clock.py"
    file.write_text(PLAIN.format(arguments="hour=12"))
    with pytest.raises(ConfigError, match="Clock has no source: leave off 'noon'"):
        opened(f"{file}=noon")


def test_a_dialect_that_only_searches_takes_no_further_tool(glossary):
    script = EnvironmentArguments(dialect="search_r1", triples="none", tools=str(glossary))
    with pytest.raises(ConfigError, match="has one tool, a search: of --corpus, --tools give one"):
        script.toolbox()
