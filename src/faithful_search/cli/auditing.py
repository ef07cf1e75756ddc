"""`faithful-search audit` measures a file of trajectories; `label` keeps a judge's verdicts on files as a dataset."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DataError
from ..judges import Judge
from ..measure.settings import AuditSettings, LabelSettings
from .options import ANY_PATH, FOLDER, UNFINISHED, config, echo, flags, judge_flags, judge_of, taken, trust_remote_code

if TYPE_CHECKING:
    from ..measure.audit import Audit
    from ..measure.label import Provenance

_SHOWN = 5
_PAUSE = 0.5  # seconds between two changes of what a progress bar says
_estimate = click.option(
    "--estimate", is_flag=True, help="Say what the endpoint would be asked, its cost and time, and ask nothing."
)


@click.command()
@click.argument("file")
@judge_flags
@flags(AuditSettings)
@click.option("--policy", type=ANY_PATH, help="The model that wrote the rows: adds evidence_sensitivity.")
@trust_remote_code
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-audit here.")
@_estimate
@click.option("--overwrite", is_flag=True, help="Start over and replace what the folder holds.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@click.option("--report-rows", type=click.IntRange(min=0), default=200, help="Rows shown in the report.")
@config
def audit(file: str, policy: Path | None, out: Path | None, estimate: bool, **given: Any) -> None:
    """Measure how faithful the trajectories in FILE are to their evidence.

    FILE is .jsonl, .json (both also .gz), .parquet, or - for JSON lines on the standard input; its rows are texts, chat
    messages or trajectories, in any known dialect. Run the same command again to go on after an interruption.
    """
    from ..measure.audit import SPOOLED
    from ..measure.audit import audit as measure
    from ..measure.invented import KEPT, SearchedCorpus
    from ..measure.report import page
    from ..measure.rows import pick
    from ..measure.scores import SCORES, open_policy
    from ..measure.summary import choose_rows

    settings, judge, progress = taken(AuditSettings, given), judge_of(given), _Progress()
    if estimate:
        return echo(_bill([file], judge, **vars(settings)))
    name = "stdin" if file == "-" else Path(file.removesuffix(".gz")).stem or "trajectories"
    folder = out or Path(f"{name}-audit")
    found = measure(
        file,
        folder,
        judge=progress.of(judge),
        policy=None if policy is None else open_policy(str(policy), "--policy", given["trust_remote_code"]),
        resume=not given["overwrite"],
        on_progress=progress,
        **vars(settings),
    )
    echo(f"{found}\n")
    written = ["audit.json", "scores.jsonl"]
    if not given["no_report"]:
        source = folder / SPOOLED if file == "-" else Path(file)  # the standard input cannot be read again
        try:  # the rows that are shown are read once more; the audit stands without its page
            chosen = choose_rows(folder / SCORES, found.primary, given["report_rows"], found.n + found.errors)
            corpus = SearchedCorpus(str(folder / KEPT)) if settings.corpus is not None else None
            shown = pick(source, chosen, settings, corpus)
            page.write(folder / "report.html", found, folder / SCORES, shown)
            written.insert(0, "report.html")
        except DataError as error:
            echo(f"no report.html: {error}", err=True)
    echo(f"{', '.join(written)} in {folder}")
    if not found.complete:
        echo(_unfinished_audit(found), err=True)
        raise click.exceptions.Exit(UNFINISHED)


@click.command()
@click.argument("files", nargs=-1, required=True, type=ANY_PATH)
@judge_flags
@flags(LabelSettings)
@click.option("--out", type=FOLDER, default=Path("labels"), help="Folder of the dataset.")
@_estimate
@click.option("--push-to", metavar="REPO", help="Upload the folder to this dataset of the Hub, OWNER/NAME.")
@click.option("--private", is_flag=True, help="Make that dataset a private one.")
@config
def label(files: tuple[Path, ...], out: Path, estimate: bool, **given: Any) -> None:
    """Ask a judge about the pairs of texts in the trajectories of FILES, and keep its labels as a dataset.

    FILES are what audit reads. Run the same command again to go on after an interruption, and to ask again about pairs
    that the judge abstained from. For a second opinion of the same judge use another --out and --judge-cache none, then
    faithful-search agreement FIRST/pairs.jsonl --judge labels:SECOND/pairs.jsonl.
    """
    from ..measure.label import label as collect

    settings, judge, progress = taken(LabelSettings, given), judge_of(given), _Progress()
    if estimate:
        from ..measure.metrics import names

        reading = {name: getattr(settings, name) for name in ("dialect", "text_column", "limit")}
        # Pairs are counted as the metric of that name would ask about them in an audit
        metric = settings.metric if settings.metric in names() else f"{settings.metric}_faithfulness"
        return echo(_bill(files, judge, metrics=(metric,), **reading))
    found = collect(files, out, judge=progress.of(judge), on_progress=progress, **vars(settings))
    share = f", {found.positives:,} true ({found.positives / found.pairs:.1%})" if found.pairs else ""
    met, settled = sum(file.pairs for file in found.files), sum(file.settled for file in found.files)
    without = f", of which {settled:,} need no judge and are left out" if settled else ""
    echo(f"{found.pairs:,} pairs labelled by {found.judge} for {found.metric}{share}\n{met:,} pairs met{without}")
    echo(f"pairs.jsonl, provenance.json, README.md in {out}")
    if given["push_to"]:
        from ..hub.pushing import Repository, push

        echo(push(out, Repository(given["push_to"], "dataset", given["private"]), "Upload labelled pairs"))
    if not found.complete:
        echo(_unfinished_labels(found), err=True)
        raise click.exceptions.Exit(UNFINISHED)


def _unfinished_audit(found: "Audit") -> str:
    lines = [f"the source could not be read to its end: {found.source_error}"] if found.source_error else []
    if found.errors:
        lines.append(f"rows that could not be read: {found.errors}")
        lines += [f"  row {item.row}: {item.why}" for item in found.unread[:_SHOWN]]
    if found.abstained:
        lines.append(f"rows not judged completely: {found.abstained}; the same command asks again about these only")
        lines += [f"  row {item.row}, {item.metric}: {item.why}" for item in found.unjudged[:_SHOWN]]
        # The rows that need no judge (a turn without a thought) differ from the others
        lines.append("where more than a tenth is open no mean is given: the rows that are left are not a fair sample")
    return "\n".join([*lines, "all of them are in scores.jsonl"])


def _unfinished_labels(found: "Provenance") -> str:
    lines: list[str] = []
    for file in found.files:
        lines += [f"{file.name} could not be read to its end: {file.broken_off}"] if file.broken_off else []
        lines += [f"{file.name}: {file.skipped} of {file.rows} rows could not be read or cut"] if file.skipped else []
        lines += [f"  {why}" for why in file.reasons[:_SHOWN]]
    if found.abstained:
        lines.append(f"pairs without a label: {found.abstained:,}; the same command asks again about these only")
        lines += [f"  {why}" for why in found.unjudged[:_SHOWN]]
    return "\n".join([*lines, "more of them are in provenance.json"])


def _bill(files: Sequence[str | Path], judge: Judge | None, **settings: Any) -> str:
    from ..judges.endpoint import EndpointJudge
    from ..measure.audit import bill

    if not isinstance(judge, EndpointJudge):
        raise click.UsageError("--estimate is for --judge endpoint: no other judge has a bill")
    return "\n".join(f"{file}: {bill(file, judge, **settings)}" for file in files)


class _Progress:
    """A bar over rows that also counts a served model's verdicts: a batch of rows may take it minutes."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._judge: Judge | None = None
        self._desc, self._verdicts, self._shown = "", 0, 0.0

    def __call__(self, **settings: Any) -> Any:
        from tqdm.auto import tqdm

        self._bar, self._desc = tqdm(disable=None, **settings), settings.get("desc", "")
        return self._bar

    def of(self, judge: Judge | None) -> Judge | None:
        """The judge, which now reports its verdicts here if it can."""
        if hasattr(judge, "on_progress"):  # those that run here are as quick as the rows
            judge = self._judge = replace(judge, on_progress=self._heard)  # type: ignore[type-var]
        return judge

    def _heard(self, count: int) -> None:
        self._verdicts += count
        if self._bar is not None and time.monotonic() - self._shown > _PAUSE:
            self._shown = time.monotonic()
            stats = getattr(self._judge, "stats", None)
            cost = f", cost {stats.cost:.4f}" if stats and stats.cost else ""
            self._bar.set_description(f"{self._desc}, {self._verdicts:,} verdicts{cost}")
