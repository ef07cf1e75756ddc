"""Judges by name: those of the package, in a file elsewhere, and by an entry point."""

from importlib.metadata import EntryPoint

import pytest

from faithful_search import judges, registry
from faithful_search.errors import ConfigError
from faithful_search.judges import Judge, Pair
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.measure.audit import audit
from faithful_search.trajectory import Evidence, Step, Trajectory, write_jsonl

SHOUTING = '''
"""Upholds what is shouted."""

from dataclasses import dataclass
from typing import ClassVar

from faithful_search.judges import Judge, Verdict


@dataclass(frozen=True)
class Shouting(Judge):
    name: ClassVar[str] = "shouting"
    marks: int = 1

    def judge_batch(self, pairs):
        shouted = [pair.hypothesis.endswith("!" * self.marks) for pair in pairs]
        return [Verdict(float(loud), loud, "", self.name) for loud in shouted]
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shouting.py"
    path.write_text(SHOUTING)
    return path


@pytest.fixture
def installed(file, monkeypatch):
    """A package that brings the judge `shouting`."""
    monkeypatch.syspath_prepend(file.parent)
    point = EntryPoint("shouting", "shouting:Shouting", "faithful_search.judges")

    def entry_points(group, name):
        return [point] if (group, name) == (point.group, point.name) else []

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_the_judges_of_the_package_are_its_files():
    files = {"lexical", "containment", "embedding", "nli", "generator", "endpoint", "remote"}
    assert files <= set(judges.names())


def test_a_suite_brings_the_judge_of_its_facts():
    assert judges.find("facts").__module__ == "faithful_search.world.facts"


@pytest.mark.parametrize("name", judges.names())
def test_each_name_is_a_judge(name):
    assert issubclass(judges.find(name), Judge)


def test_a_judge_in_a_file_elsewhere(file):
    judge = judges.load(str(file), marks=2)
    verdicts = judge.judge_batch([Pair("", "Aha!!"), Pair("", "Aha!")])
    assert [verdict.label for verdict in verdicts] == [True, False]


def test_a_judge_by_an_entry_point(installed):
    assert judges.load("shouting").name == "shouting"


def test_an_audit_by_a_judge_in_a_file(file, tmp_path):
    rows = tmp_path / "rows.jsonl"
    step = Step(think="It burned!", evidence=(Evidence("It burned.", id="E1"),))
    write_jsonl(rows, [Trajectory((step, Step("So!", answer="Fire!")), "What?", "Fire!")])
    judge = JudgeArguments(str(file)).load_judge()
    report = audit(rows, tmp_path / "out", judge=judge, metrics=["info_think_faithfulness"])
    assert report.rows["info_think_faithfulness"].value == 1.0
    assert report.settings["judge"] == "shouting"


def test_a_class_of_a_file_is_one_class(file):
    assert judges.find(str(file)) is judges.find(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file"),
        ("x = 1", "defines no judge, or several"),
        (SHOUTING + SHOUTING.replace("class Shouting", "class Louder"), "or several"),
        ("import nothing_of_the_kind", "cannot import .* ModuleNotFoundError"),
        ("def (", "cannot import .* SyntaxError"),
    ],
)
def test_a_file_that_defines_no_judge_is_refused(tmp_path, text, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        judges.find(str(path))


def test_an_entry_point_that_is_no_judge_is_refused(monkeypatch):
    point = EntryPoint("odd", "pathlib:Path", "faithful_search.judges")
    monkeypatch.setattr(registry, "entry_points", lambda group, name: [point])
    with pytest.raises(ConfigError, match="entry point 'odd' is pathlib:Path, which is no judge"):
        judges.find("odd")


def test_a_judge_in_a_file_takes_no_url(file):
    with pytest.raises(ConfigError, match="goes with the judge 'endpoint' or 'remote'"):
        JudgeArguments(str(file), judge_url="http://127.0.0.1:1").load_judge()
