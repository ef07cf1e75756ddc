"""What the documentation gives to be copied or followed: commands take their flags, names and links are there.

The README's Python blocks, which are whole programs, are run in `test_package`.
"""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType
from unittest.mock import create_autospec

import click
import pytest
from paths import ROOT
from recipe_runs import parse

import faithful_search as fs
from faithful_search.cli import cli

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
DATA = ["--questions", "q.jsonl", "--eval_questions", "e.jsonl", "--corpus", "c.jsonl"]
"""What `…` stands for: the data that a configuration asks for."""
CITED = """<think>Look it up.</think><tool_call>{"name": "local_search", "arguments": {"query": "Peru"}}</tool_call>
<tool_response>
Peru [E1]: The capital of Peru is Lima.
</tool_response>
<think><helpful>yes</helpful><ref>E1</ref>E1 says Lima.</think><answer>Lima</answer>"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of every command."""
    for page in PAGES:
        for line in "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
            parts = groupby(shlex.split(line, comments=True), lambda word: word == "&&")
            yield from ((page.name, list(words)) for joined, words in parts if not joined)


COMMANDS = list(commands())


def of_program(ends: str) -> list[list[str]]:
    """The words of the commands that a program or script of this name runs, without what starts it."""
    found = [
        (words, place)
        for _, words in COMMANDS
        for place, word in enumerate(words)
        if re.fullmatch(ends, word)
    ]
    return [words[place:] for words, place in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page):
    links = [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:  # a heading in small letters, hyphens for blanks, without punctuation
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in headings
            }, link


@pytest.mark.parametrize("words", of_program(r"recipes/\w+\.py"), ids=" ".join)
def test_a_recipe_takes_the_flags(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    name, flags = (
        Path(words[0]).stem,
        [part for word in words[1:] for part in (DATA if word == "…" else [word])],
    )
    assert parse(name, *flags)


@pytest.mark.parametrize("words", of_program("faithful-search"), ids=" ".join)
def test_the_command_takes_the_flags(words):
    command, rest = cli, words[1:]
    while isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    _, left, _ = command.make_parser(click.Context(command)).parse_args(rest)
    assert left == []


def test_every_command_is_checked_here_and_the_files_and_extras_that_it_names_are_there():
    known = re.compile(r"(pip|pytest|faithful-search) .*|\S+ (\S+ )*?(recipes|scripts)/\w+\.py.*")
    assert [
        words for _, words in COMMANDS if not known.match(f"{shlex.join(words)} ")
    ] == [] and len(COMMANDS) > 30
    named = [
        word
        for _, words in COMMANDS
        for word in words
        if re.match(r"(recipes|scripts)/\S+\.(py|yaml)$", word)
    ]
    assert [name for name in named if not (ROOT / name).exists()] == [] and len(named) > 20
    for script, *flags in of_program(r"scripts/\w+\.py"):
        text = (ROOT / script).read_text(encoding="utf-8")
        assert [flag for flag in flags if flag.startswith("--") and f'"{flag}"' not in text] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    asked = re.findall(
        r"\[([\w,]+)\]", " ".join(word for words in of_program("pip") for word in words)
    )
    assert asked and {extra for names in asked for extra in names.split(",")} <= set(extras)


@pytest.mark.parametrize("code", [code for page in PAGES[2:] for code in blocks(page, "python")])
def test_a_python_block_calls_what_is_there(code):
    """With stand-ins that take what the real ones take: these would ask servers."""
    imports, calls = code.partition("\n\n")[::2]
    names: dict[str, object] = {}
    exec(imports, names)
    stand_ins = {name: create_autospec(value) for name, value in names.items() if callable(value)}
    exec(calls, dict(stand_ins))
    assert any(each.mock_calls for each in stand_ins.values())


def test_the_reward_that_shows_how_to_add_one_scores(monkeypatch):
    code = next(
        block for block in blocks(ROOT / "CONTRIBUTING.md", "python") if "(Reward)" in block
    )
    module = ModuleType("faithful_search.rewards.citation_rate")
    module.__package__ = "faithful_search.rewards"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, vars(module))
    score = module.CitationRate().score(fs.parse(CITED, dialect="pou"))
    assert (score.value, score.why) == (1.0, "1 of 1 passages are cited")
