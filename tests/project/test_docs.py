"""What the documentation gives to be copied or followed: commands take their flags, names and links
are there.

The README's Python blocks, which are whole programs, are run in `test_package`.
"""

import re
import runpy
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
from click.testing import CliRunner
from paths import ROOT
from recipe_runs import parse

import faithful_search as fs
from faithful_search.cli import cli
from faithful_search.cli.training import Recipe
from faithful_search.judges import Pair
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.tools.arguments import ToolArguments

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "scripts").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SITE = {
    path
    for pattern in runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))["PATTERNS"]
    for path in ROOT.glob(pattern)
}
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
    """The words of the commands that a program or script of this name runs, without what starts
    it.
    """
    return [
        words[place:]
        for _, words in COMMANDS
        for place, word in enumerate(words)
        if re.fullmatch(ends, word) and (place == 0 or words[0] != "pip")
    ]


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
        assert target in SITE, f"{link} is not on the site: see PATTERNS in scripts/docs_site.py"
        if anchor:  # a heading in small letters, hyphens for blanks, without punctuation
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in headings
            }, link


UNCHECKED = {"log.md", "CONTRIBUTING.md"}
"""Pages that name files of the past, and files that a reader is to add."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in UNCHECKED], ids=lambda page: page.name
)
def test_the_files_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|yaml|json|txt|md|css|js|jinja))`", text)
    folders = (ROOT, ROOT / "src" / "faithful_search", ROOT / "tests", page.parent)
    assert [file for file in files if not any((each / file).exists() for each in folders)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_the_navigation(page):
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f": {page.relative_to(ROOT)}\n" in navigation, "give it a place in mkdocs.yml"


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
    if isinstance(command, Recipe):
        assert parse(command.module, *rest)
        return
    _, left, _ = command.make_parser(click.Context(command)).parse_args(rest)
    assert left == []


def test_every_command_is_checked_here():
    known = re.compile(
        r"(CUDA_VISIBLE_DEVICES=\d )?(pip|pytest|mkdocs|curl|vllm|faithful-search) .*"
        r"|accelerate launch -m faithful_search\.recipes\.\w+ "
        r"|\S+ (\S+ )*?(recipes|scripts)/\w+\.py.*"
    )
    assert len(COMMANDS) > 30
    assert [words for _, words in COMMANDS if not known.match(f"{shlex.join(words)} ")] == []


def test_the_files_that_commands_name_are_there():
    words = [word for _, words in COMMANDS for word in words]
    files = [word for word in words if re.match(r"(recipes|scripts)/\S+\.(py|yaml)$", word)]
    assert len(files) > 20
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("words", of_program(r"scripts/\w+\.py"), ids=" ".join)
def test_a_script_has_the_flags(words):
    text = (ROOT / words[0]).read_text(encoding="utf-8")
    flags = [word for word in words if word.startswith("--")]
    assert [flag for flag in flags if f'"{flag}"' not in text] == []


def test_the_extras_that_commands_install_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = " ".join(word for words in of_program("pip") for word in words)
    extras = {name for names in re.findall(r"\[([\w,]+)\]", words) for name in names.split(",")}
    assert extras
    assert extras - set(project["optional-dependencies"]) == set()


SHOWN = [
    shown
    for page in PAGES[2:]
    for shown in re.findall(
        r"^```python\n([^`]*)^```\n\n```text\n([^`]*)^```",
        page.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
]
"""Programs, each with the output that the page promises."""


@pytest.mark.parametrize(("code", "output"), SHOWN)
def test_a_python_block_prints_what_it_shows(code, output, capsys):
    exec(code, {})
    assert capsys.readouterr().out == output


RUN = {code for code, _ in SHOWN}
CALLS = [
    code
    for page in PAGES[2:]
    for code in blocks(page, "python")
    if code not in RUN and "def test_" not in code and "\nclass " not in code
]
"""Without tests and classes to copy, which are run where what they call is tested."""


@pytest.mark.parametrize("code", CALLS)
def test_a_python_block_calls_what_is_there(code):
    """With stand-ins that take what the real ones take: these would ask servers."""
    imports, calls = code.partition("\n\n")[::2]
    names: dict[str, object] = {}
    exec(imports, names)
    stand_ins = {name: create_autospec(value) for name, value in names.items() if callable(value)}
    exec(calls, dict(stand_ins))
    assert any(each.mock_calls for each in stand_ins.values())


@pytest.mark.parametrize("page", ["README.md", "docs/audit.md"])
def test_an_audit_prints_what_a_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8").partition("# Audit an agent")[2]
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL).group(1)
    done = CliRunner().invoke(cli, ["audit", str(ROOT / "examples" / "rollouts.jsonl")])
    assert done.exit_code == 0
    assert set(shown.splitlines()) - {line.rstrip() for line in done.output.splitlines()} == set()


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


def test_the_tool_that_shows_how_to_add_one_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## Add a tool")[2].partition("\n## ")[0]
    tool, trial = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    [promised] = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    (tmp_path / "glossary.py").write_text(tool)
    (tmp_path / "terms.json").write_text('{"Tide pool": "Sea water left behind."}')
    monkeypatch.syspath_prepend(tmp_path)
    exec(trial, {})
    assert capsys.readouterr().out == promised
    monkeypatch.chdir(tmp_path)
    with ToolArguments(tools="glossary.py=terms.json").build_toolbox() as toolbox:
        call = fs.ToolCall("glossary", {"term": "tide pool"})
        [observation] = toolbox.run_batch([call], [toolbox.session()])
    assert observation.evidence[0].text == "Sea water left behind."


def test_the_judge_that_shows_how_to_add_one_judges(tmp_path):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## Add a judge")[2].partition("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    file = tmp_path / "echo.py"
    file.write_text(code)
    judge = JudgeArguments(str(file)).load_judge()
    verdicts = judge.judge_batch([Pair("The sea.", "sea"), Pair("The sea.", "Sea"), Pair("x", "")])
    assert [verdict.p for verdict in verdicts] == [1.0, 0.0, None]
