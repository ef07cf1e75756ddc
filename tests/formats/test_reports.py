"""Reports without a trace: read as answers without evidence, of which nothing is judged."""

import json

import pytest

from faithful_search.errors import DataError
from faithful_search.measure.audit import audit
from faithful_search.reading.rows import READER, Reader
from faithful_search.rewards.answer_support import AnswerSupport
from faithful_search.rewards.citation_coverage import CitationCoverage
from faithful_search.rewards.citation_returned import CitationReturned
from faithful_search.rewards.citation_support import CitationSupport
from faithful_search.trajectory import NO_TRACE

REPORT = """# X and Y

X costs 3 euros ([X page](https://ex.org/x)). Y costs 5 [2]. Both are sold out.

## Sources
[1] X page: https://ex.org/x
[2] Y page: https://ex.org/y"""
BENCH = {"id": 57, "prompt": "Compare X and Y.", "article": REPORT}
RESEARCHER = {"query": "Compare X and Y.", "report": REPORT, "costs": 0.2, "images": []}


def read(row, reader=READER):
    return reader.parse(json.dumps(row).encode())


@pytest.mark.parametrize("row", [BENCH, RESEARCHER], ids=["DeepResearch Bench", "gpt-researcher"])
class TestRows:
    def test_the_report_is_the_answer(self, row):
        assert read(row).answer == REPORT

    def test_the_prompt_is_the_question(self, row):
        assert read(row).question == "Compare X and Y."

    def test_there_is_no_evidence(self, row):
        assert not any(step.evidence for step in read(row).steps)

    def test_there_is_no_call(self, row):
        assert not any(step.call for step in read(row).steps)

    def test_it_is_marked(self, row):
        assert [issue.kind for issue in read(row).issues] == [NO_TRACE]


def test_an_audit_does_not_count_it_as_answered_without_evidence(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(BENCH))
    assert audit(tmp_path / "a.jsonl", tmp_path / "out", workers=1).unbacked == 0


def test_naming_its_column_reads_the_same():
    assert read(BENCH, Reader(text_column="article")) == read(BENCH)


def test_tags_in_a_report_are_its_words():
    report = "Use <think>this</think> and <search>that</search><sup>1</sup>."
    assert read({**BENCH, "article": report}).answer == report


@pytest.mark.parametrize(
    "row",
    [
        {"article": "Ada wrote it.", "prompt": "Who?", "output": "<answer>Ada</answer>"},
        {
            "report": "It is broken.",
            "query": "Why?",
            "messages": [{"role": "user", "content": "?"}],
        },
        {"article": "Ada wrote it.", "question": "Who?", "text": "<answer>Ada</answer>"},
    ],
)
def test_beside_a_trace_an_article_is_no_answer(row):
    assert NO_TRACE not in [issue.kind for issue in read(row).issues]


def test_a_report_without_words_is_refused_by_its_name():
    with pytest.raises(DataError, match="a report without a trace"):
        read({"id": 1, "report": "  "})


@pytest.mark.parametrize("reward", [CitationReturned(), CitationSupport(), AnswerSupport()])
class TestNotApplicable:
    def test_it_has_no_value(self, reward):
        assert reward.measure(reward.score_batch([read(BENCH)])[0]) is None

    def test_the_reason_names_a_report(self, reward):
        assert reward.score_batch([read(BENCH)])[0].why.startswith("a report without a trace")


def test_coverage_applies():
    assert CitationCoverage().score(read(BENCH)).value == pytest.approx(2 / 3)


def test_an_answer_without_searches_is_no_report():
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada [1]."}]
    assert CitationReturned().score(read({"messages": messages})).value == 0


class TestMarkdown:
    @pytest.fixture
    def found(self, tmp_path):
        (tmp_path / "report.md").write_text(REPORT, encoding="utf-8")
        return audit(tmp_path / "report.md", tmp_path / "out", workers=1)

    def test_a_file_is_a_row(self, found):
        assert found.n == 1

    def test_the_audit_says_what_it_is(self, found):
        assert "Reports without a trace: 1 of 1 rows" in found.text()

    def test_the_audit_says_what_fetch_does(self, found):
        assert "--fetch reads each cited address once" in found.text()

    def test_the_file_names_the_row(self, found, tmp_path):
        assert json.loads((tmp_path / "out" / "scores.jsonl").read_text())["id"] == "report"


def test_a_folder_of_reports_has_a_row_a_file(tmp_path):
    for name in ("a.md", "b.markdown", "c.md"):
        (tmp_path / name).write_text(REPORT, encoding="utf-8")
    assert audit(tmp_path, tmp_path / "out", workers=1).n == 3


def test_beside_data_markdown_describes_it(tmp_path):
    (tmp_path / "README.md").write_text("# A data set", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text(json.dumps(BENCH), encoding="utf-8")
    assert audit(tmp_path, tmp_path / "out", workers=1).n == 1


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "report.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"report\.md"):
        audit(tmp_path / "report.md", tmp_path / "out", workers=1)
