"""What a report cites is read once from a real server, and what cannot be read is no verdict."""

import json

import pytest
from click.testing import CliRunner
from tqdm import tqdm
from web_site import Page, WebSite

from faithful_search.cli import cli
from faithful_search.errors import ConfigError, DataError
from faithful_search.measure import fetching
from faithful_search.measure.audit import audit
from faithful_search.measure.fetching import FETCHED_FILE, cited_addresses
from faithful_search.reading.rows import read_trajectories
from faithful_search.reading.settings import WHOLE
from faithful_search.trajectory import NOT_REACHABLE

ALLOWED = {"fetch": True, "fetch_allow": "127.0.0.1", "workers": 1}
WALL = b"<title>Just a moment...</title><p>Checking your browser before accessing the site.</p>"


@pytest.fixture
def site():
    with WebSite() as served:
        served.pages["/wall"] = Page(WALL)
        yield served


@pytest.fixture
def report(site, tmp_path):
    """Two sentences that their source carries, one that it does not, two whose sources are gone."""
    text = f"""# Vardal

The lighthouse of Vardal was built in 1887 by the engineer Marit Solheim [1].
Its lamp was changed from oil to electricity in 1931 [2].
The tower was painted green by forty sailors [1].
The island has nine bakeries [3]. Its harbour froze over twice [4].

## Sources
[1] {site.url("/article")}
[2] {site.url("/article?utm_source=chat")}
[3] {site.url("/gone")}
[4] {site.url("/wall")}
"""
    path = tmp_path / "report.md"
    path.write_text(text, encoding="utf-8")
    return path


def scores(folder):
    line = json.loads((folder / "scores.jsonl").read_text(encoding="utf-8"))
    return line["scores"]


class TestAudit:
    @pytest.fixture
    def out(self, report, tmp_path):
        audit(report, tmp_path / "out", **ALLOWED)
        return tmp_path / "out"

    @pytest.fixture
    def trajectory(self, out):
        return next(iter(read_trajectories(out / FETCHED_FILE))).trajectory

    def test_two_of_three_sentences_are_carried(self, out):
        assert scores(out)["citation_support_lexical"]["value"] == pytest.approx(2 / 3)

    def test_sentences_without_a_reachable_source_are_not_judged(self, out):
        assert scores(out)["citation_support_lexical"]["parts"]["unread"] == 2

    def test_what_its_tools_returned_stays_unknown(self, out):
        assert scores(out)["citation_returned"]["value"] is None

    def test_a_report_read_in_part_has_no_answer_support(self, out):
        assert scores(out)["answer_support_lexical"]["value"] is None

    def test_a_page_is_asked_for_once(self, out, site):
        assert sorted(site.paths()) == ["/article", "/gone", "/wall"]

    def test_a_failure_is_counted(self, out):
        found = json.loads((out / "audit.json").read_text(encoding="utf-8"))
        assert found["issues"][NOT_REACHABLE] == 2

    def test_the_reason_of_a_failure_is_kept(self, trajectory):
        reasons = [issue.why for issue in trajectory.issues if issue.kind == NOT_REACHABLE]
        assert "404" in reasons[0]

    def test_a_wall_is_named(self, trajectory):
        reasons = [issue.why for issue in trajectory.issues if issue.kind == NOT_REACHABLE]
        assert "shows no page (wall)" in reasons[1]

    def test_what_was_read_is_evidence_before_the_answer(self, trajectory):
        assert "Marit Solheim" in trajectory.steps[0].evidence[0].text

    def test_reading_its_sources_is_no_call_of_its_writer(self, out):
        line = json.loads((out / "scores.jsonl").read_text(encoding="utf-8"))
        assert line["tools"] == {}

    @pytest.mark.parametrize("name", ["repeated_calls", "unused_evidence_lexical"])
    def test_tool_use_is_not_measured(self, out, name):
        assert scores(out)[name]["value"] is None

    def test_again_nothing_is_asked(self, out, report, site):
        audit(report, out, **ALLOWED)
        assert len(site.paths()) == 3

    def test_another_report_asks_for_new_pages_only(self, out, report, site):
        report.write_text(f"It is [old]({site.url('/article')}) [x]({site.url('/')}).", "utf-8")
        audit(report, out, **ALLOWED)
        assert site.paths()[3:] == ["/"]

    def test_starting_over_asks_again(self, out, report, site):
        audit(report, out, resume=False, **ALLOWED)
        assert len(site.paths()) == 6

    def test_an_audit_without_it_goes_on_with_it(self, report, tmp_path):
        audit(report, tmp_path / "same", workers=1)
        audit(report, tmp_path / "same", **ALLOWED)
        assert scores(tmp_path / "same")["citation_support_lexical"]["value"] is not None


def test_when_all_is_read_the_answer_is_judged(site, tmp_path):
    text = f"Its lamp was changed from oil to electricity in 1931 ({site.url('/article')})."
    (tmp_path / "report.md").write_text(text, encoding="utf-8")
    audit(tmp_path / "report.md", tmp_path / "out", **ALLOWED)
    assert scores(tmp_path / "out")["answer_support_lexical"]["value"] == 1


def test_a_number_without_an_entry_is_not_counted_off(site, tmp_path):
    text = f"Its lamp was changed in 1931 ([page]({site.url('/article')})). It is tall [1]."
    (tmp_path / "report.md").write_text(text, encoding="utf-8")
    audit(tmp_path / "report.md", tmp_path / "out", **ALLOWED)
    assert "It is tall" in scores(tmp_path / "out")["citation_support_lexical"]["why"]


class TestRefused:
    @pytest.fixture
    def out(self, report, tmp_path):
        audit(report, tmp_path / "out", fetch=True, workers=1)
        return tmp_path / "out"

    def test_a_private_address_is_not_asked(self, out, site):
        assert site.paths() == []

    def test_nothing_is_judged(self, out):
        assert scores(out)["citation_support_lexical"]["value"] is None

    def test_allowed_later_it_is_read(self, out, report, site):
        audit(report, out, **ALLOWED)
        assert len(site.paths()) == 3


def test_what_failed_for_the_moment_is_asked_again(site, tmp_path):
    (tmp_path / "report.md").write_text(
        f"It is tall ({site.url('/status/503')}).", encoding="utf-8"
    )
    audit(tmp_path / "report.md", tmp_path / "out", **ALLOWED)
    before = len(site.paths())
    audit(tmp_path / "report.md", tmp_path / "out", **ALLOWED)
    assert len(site.paths()) > before


class Interrupted(tqdm):
    """Ends the run when the second page is read."""

    def update(self, n=1):
        super().update(n)
        if self.n == 2:
            raise DataError("interrupted")


def test_an_interrupted_run_goes_on_where_it_stopped(site, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "_AT_ONCE", 1)
    paths = ["/article", "/plain.txt", "/latin1"]
    links = " ".join(f"It is so ({site.url(path)})." for path in paths)
    (tmp_path / "report.md").write_text(links, encoding="utf-8")
    with pytest.raises(DataError, match="interrupted"):
        audit(tmp_path / "report.md", tmp_path / "out", on_progress=Interrupted, **ALLOWED)
    audit(tmp_path / "report.md", tmp_path / "out", **ALLOWED)
    assert site.paths() == paths


def test_without_fetch_nothing_is_asked(report, site, tmp_path):
    audit(report, tmp_path / "out", workers=1)
    assert site.paths() == []


def test_rows_with_a_trace_stay_as_they_are(site, tmp_path):
    row = {"question": "Who?", "output": f"<answer>Ada ({site.url('/article')})</answer>"}
    (tmp_path / "rows.json").write_text(json.dumps([row], indent=1), encoding="utf-8")
    audit(tmp_path / "rows.json", tmp_path / "out", **ALLOWED)
    assert json.loads((tmp_path / "out" / FETCHED_FILE).read_text(encoding="utf-8")) == row


def test_the_number_of_hosts_is_told(report):
    assert str(cited_addresses(report, WHOLE)) == "3 addresses at 1 host"


def test_a_file_in_progress_is_refused(report, tmp_path):
    with pytest.raises(ConfigError, match="file that is whole"):
        audit(report, tmp_path / "out", growing=True, **ALLOWED)


class TestCommand:
    @pytest.fixture
    def result(self, report, tmp_path):
        options = ["--fetch", "--fetch-allow", "127.0.0.1", "--workers", "1"]
        folder = ["--out", str(tmp_path / "out")]
        return CliRunner().invoke(cli, ["audit", str(report), *options, *folder])

    def test_it_says_what_it_reads(self, result):
        assert "reading 3 addresses at 1 host" in result.output

    def test_it_says_what_was_not_reachable(self, result):
        assert "Not reachable: 2 of what reports cite" in result.output

    def test_the_page_shows_what_was_read(self, result, tmp_path):
        assert "Marit Solheim" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    def test_the_standard_input_is_refused(self):
        assert CliRunner().invoke(cli, ["audit", "-", "--fetch"]).exit_code == 2
