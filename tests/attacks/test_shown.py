"""Strangers' strings in every field of a trajectory and every name of a file, through every card,
table, page and log: what is shown has the same structure as with harmless strings.
"""

import json
import logging
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from faithful_search.cli import cli
from faithful_search.hub import cards, datasets
from faithful_search.judges.distilled import JudgeFile
from faithful_search.measure.comparison import compare, open_sides
from faithful_search.measure.controls import Study
from faithful_search.measure.evaluation import Evaluation, Record
from faithful_search.measure.provenance import File, Provenance, write_card
from faithful_search.measure.stats import mean_ci
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory

HOSTILE = [
    "# Owned\n\n[x](http://evil.example)",
    "| a | ![x](http://evil.example/p.png) |\n|---|---|",
    "<base href=//evil.example><script>alert(1)</script>",
    "x`y```\n```\n# Owned",
    "a\r\nanswered   ↑   1.000 [1.000, 1.000]   999",
    "\x1b[2J\x1b]0;owned\x07\u202eevil\u2028row 2: all passed",
    "{{ 7 * 7 }} {% raw %}",
    "\"'; rm -rf / #\n- evil\n1. evil",
]
PLAIN = "x"


def file_name(text: str) -> str:
    """The text as a file may be called."""
    return text.replace("/", ":")


def trajectory(text: str) -> Trajectory:
    """A trajectory with the text in every field that is a string."""
    issues = (Issue(text, text),)
    evidence = tuple(
        Evidence(text=text, title=text, id=identity, source=text, url=text)
        for identity in ("E1", text)
    )
    search = Step(
        think=text,
        call=ToolCall(name=text, arguments={text: text}, raw=text),
        evidence=evidence,
        note=text,
        issues=issues,
    )
    last = Step(think=text, helpful=True, refs=("E1", text), answer=text, issues=issues)
    told = {"scores": {text: 1.0}, "reasons": {text: text}, text: text}
    return Trajectory(
        steps=(search, last),
        question=text,
        answer=text,
        stop_reason=text,
        dialect=text,
        id=text,
        answers=(text,),
        text=text,
        issues=issues,
        meta=told,
    )


def structure(markdown: str) -> list[str]:
    """The kinds of a Markdown text's blocks and of what stands in them, and its links."""
    body = re.sub(r"\A---\n.*?\n---\n", "", markdown, count=1, flags=re.DOTALL)
    kinds: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").parse(body):
        kinds.append(token.type)
        for child in token.children or ():
            if child.type not in ("text", "text_special", "softbreak"):
                kinds.append(f"{child.type} {child.attrs or ''}")
    return kinds


class Tags(HTMLParser):
    """The tags of a page, in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def rows(path: Path, text: str) -> Path:
    """A file of trajectories with the text in every field, and a row that cannot be read."""
    lines = [trajectory(text).to_json()] * 3 + [json.dumps({text: text})]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def evaluation(text: str) -> Evaluation:
    values = [1.0, 0.0, 1.0]
    return Evaluation(
        {"exact_match": mean_ci(values)},
        ["a", "b", "c"],
        {"exact_match": values},
        {text: [1, 1, 1]},
        made_by={"exact_match": text},
    )


def trajectories_card(folder: Path, text: str) -> str:
    (folder / "staged").mkdir(parents=True)
    files = datasets.stage_trajectories(
        rows(folder / f"{file_name(text)}.jsonl", text), folder / "staged", f"me/{file_name(text)}"
    )
    return files["README.md"].decode()  # type: ignore[union-attr]


def policy_card(folder: Path, text: str) -> str:
    record = Record(
        folder=str(folder),
        model=text,
        dialect=text,
        tools=[text, text],
        questions=text,
        settings={text: text, "corpus": text},
        steps=1,
        history=[],
        before=evaluation(text),
        after=evaluation(text),
    )
    return cards.model_card(record, text, [text, "--x", text]).read_text("utf-8")


def judge_card(folder: Path, text: str) -> str:
    file = JudgeFile("nli", task=text, base_model=text, trained_on=(text,))
    agreement = SimpleNamespace(table=lambda: text)
    return cards.judge_card(
        folder, file=file, base_model=text, agreement=agreement, argv=[text], config={text: text}
    ).read_text("utf-8")


def label_card(folder: Path, text: str) -> str:
    file = File(name=text, sha256="0", rows=2, dialects={text: 2}, pairs=1)
    provenance = Provenance(
        "info_think", text, {text: "0" * 64}, [file], {text: 1}, license=text, version=text,
        pairs=1, settings={"sample": 0, "seed": 0}, date="2026-11-28",
    )  # fmt: skip
    write_card(folder, provenance)
    return (folder / "README.md").read_text("utf-8")


CARDS: dict[str, Callable[[Path, str], str]] = {
    "trajectories": trajectories_card,
    "policy": policy_card,
    "judge": judge_card,
    "labels": label_card,
}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("card", CARDS)
def test_a_card_has_no_markup_of_strangers(tmp_path: Path, card: str, text: str) -> None:
    written = {}
    for name, value in (("hostile", text), ("plain", PLAIN)):
        folder = tmp_path / name
        folder.mkdir()
        written[name] = structure(CARDS[card](folder, value))
    assert written["hostile"] == written["plain"]


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str, str]]:
    """What `audit` prints about a file with such rows and such a name, and the folder it writes."""
    known: dict[str, tuple[Path, str, str]] = {}

    def audit(text: str) -> tuple[Path, str, str]:
        if text not in known:
            folder = tmp_path_factory.mktemp("audit")
            path = rows(folder / f"{file_name(text)}.jsonl", text)
            out = folder / file_name(text)
            done = CliRunner().invoke(cli, ["audit", str(path), "--out", str(out)])
            assert done.exit_code == 3, done.output  # some rows could not be read
            known[text] = out, done.stdout, done.stderr
        return known[text]

    return audit


def shape(printed: str) -> list[str]:
    """The indentation of each line."""
    return [re.sub(r"\S.*", "", line) for line in printed.split("\n")]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_audit_prints_no_line_of_strangers(audits, text: str) -> None:
    _, printed, errors = audits(text)
    _, usual, usual_errors = audits(PLAIN)
    assert shape(printed) == shape(usual)
    assert len(errors.splitlines()) == len(usual_errors.splitlines())


@pytest.mark.parametrize("text", HOSTILE)
def test_an_audits_page_has_no_element_of_strangers(audits, text: str) -> None:
    pages = [(audits(each)[0] / "report.html").read_text("utf-8") for each in (text, PLAIN)]
    hostile, usual = (Tags(page).tags for page in pages)
    assert set(hostile) == set(usual)
    assert hostile.count("script") == usual.count("script")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_control_character_is_shown(audits, text: str) -> None:
    folder, printed, errors = audits(text)
    page = (folder / "report.html").read_text("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", printed + errors + page)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_comparison_prints_no_line_of_strangers(audits, tmp_path: Path, text: str) -> None:
    shapes = []
    for value in (text, PLAIN):
        folder, _, _ = audits(value)
        again = shutil.copytree(folder, tmp_path / folder.name)
        shapes.append(shape(str(compare(open_sides([folder, again])))))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_study_prints_no_line_of_strangers(text: str) -> None:
    estimate = mean_ci([1.0, 0.0])
    lines = []
    for value in (text, PLAIN):
        study = Study({value: {"right": estimate}}, {}, "Sentence.", {value: value})
        lines.append(len(str(study).split("\n")))
    assert lines[0] == lines[1]


@pytest.mark.parametrize("name", [file_name(text) for text in HOSTILE])
def test_a_row_left_out_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with caplog.at_level(logging.WARNING):
        trajectories_card(tmp_path, name)
    (record,) = [each for each in caplog.records if "left out" in each.getMessage()]
    assert len(record.getMessage().splitlines()) == 1
