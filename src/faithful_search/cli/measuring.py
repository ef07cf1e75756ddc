"""Commands for files of trajectories.

`audit` measures them, `label` makes a dataset of a judge's verdicts on them, `convert` writes them
in another format. `compare` compares audits and evaluations, `agreement` compares judges, and
`metrics` lists and installs the metrics.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ..errors import ConfigError, DataError
from ..judges import Judge
from ..measure.settings import AuditSettings, Format, LabelSettings
from ..reading.settings import ReadingSettings
from .options import (
    ANY_PATH,
    AT_LEAST_1,
    FOLDER,
    SHOWN,
    config,
    echo,
    exit_unfinished,
    exit_unmet,
    flags,
    judge_flags,
    judge_of,
    old_name,
    say,
    settings_from,
    trust_remote_code,
)

if TYPE_CHECKING:
    from ..judges.endpoint import EndpointJudge
    from ..measure.provenance import File, Provenance
    from ..measure.summary import Audit

_estimate = click.option(
    "--estimate", is_flag=True, help="Print what the endpoint would cost, without asking it."
)


@click.command()
@click.argument("file")
@judge_flags
@flags(AuditSettings)
@click.option(
    "--model",
    "policy",
    type=ANY_PATH,
    help="Model that wrote the rows, a directory or a Hub id. With it evidence_sensitivity is "
    "measured, too.",
)
@old_name("--policy", "--model")
@trust_remote_code
@click.option(
    "--out",
    type=FOLDER,
    help="Folder to write the results to. By default NAME-audit in the current folder.",
)
@_estimate
@click.option("--overwrite", is_flag=True, help="Delete earlier results in the folder.")
@click.option(
    "--all",
    "all_rows",
    is_flag=True,
    help="Print all results. By default those that say most are printed.",
)
@click.option(
    "--watch", is_flag=True, help="Audit FILE again whenever it grows, until Ctrl-C is pressed."
)
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@click.option(
    "--report-rows",
    type=click.IntRange(min=0),
    default=200,
    help="Maximum number of trajectories in report.html.",
)
@config
def audit(file: str, policy: Path | None, out: Path | None, estimate: bool, **options: Any) -> None:
    """Measure how faithful trajectories are to their evidence.

    FILE is .jsonl, .json, .csv or .tsv (all also .gz), .parquet or .eval, a folder of such files,
    hf://datasets/OWNER/NAME[@REVISION][/PATH], or - for JSON lines on the standard input. Its rows
    are texts, chat messages or trajectories, in any known dialect. A .md file, or a folder of them,
    is read as reports without a trace.

    To continue after an interruption, run the same command again. The exit code is 3 if rows could
    not be read or judged, and 4 if a --require is not met.
    """
    from ..measure.audit import audit as measure
    from ..measure.fetching import cited_addresses
    from ..measure.scores import open_policy
    from ..reading.files import local_file

    settings = settings_from(AuditSettings, options)
    judge = judge_of(options)
    if estimate and settings.fetch:
        raise click.UsageError("--estimate fetches nothing: give it the fetched.jsonl of an audit")
    if estimate:
        return say(*_bills([file], judge, **vars(settings)))
    if file == "-" and options["watch"]:
        raise click.UsageError("--watch follows a file, not the standard input")
    if settings.fetch and (file == "-" or options["watch"]):
        raise click.UsageError("--fetch reads a file that is whole: no standard input, no --watch")
    name = "stdin" if file == "-" else Path(file.removesuffix(".gz")).stem or "trajectories"
    folder = out or Path(f"{name}-audit")
    generator = None
    if policy is not None:
        generator = open_policy(str(policy), "--model", options["trust_remote_code"])
    run_audit = partial(measure, file, folder, policy=generator, **vars(settings))
    if options["watch"]:
        result = _follow(Path(file), run_audit, folder, settings, judge, options)
    else:
        if settings.fetch:
            pages = cited_addresses(local_file(file), settings)
            say(f"reading {pages}, each once; what is read is kept in {folder}", err=True)
        result = run_audit(resume=not options["overwrite"], **_with_progress(judge))
        echo(f"{result.text(options['all_rows'])}\n")
        say(f"{', '.join(_write_report(result, file, folder, settings, options))} in {folder}")
    left_open = _left_open(result)
    failed = result.unmet(*settings.require)
    if failed:
        exit_unmet([*left_open, *failed])
    if settings.require:
        count = len(settings.require)
        say(f"{count} requirement{'s are' if count > 1 else ' is'} met")
    if left_open:
        exit_unfinished(left_open)


def _follow(
    file: Path,
    run_audit: "Callable[..., Audit]",
    folder: Path,
    settings: AuditSettings,
    judge: Judge | None,
    options: dict[str, Any],
) -> "Audit":
    """Audit a file whenever it has grown, until Ctrl-C; returns the last audit."""
    from ..measure.watching import grown

    result = None
    resume = not options["overwrite"]
    if not file.exists():
        say(f"waiting for {file}; Ctrl-C ends", err=True)
    try:
        for _ in grown(file):
            try:
                result = run_audit(resume=resume, growing=True, **_with_progress(judge))
            except DataError as error:  # half a first line, say
                say(f"nothing to show yet: {error}", err=True)
                continue
            resume = True
            files = ", ".join(_write_report(result, str(file), folder, settings, options))
            if sys.stdout.isatty():
                click.clear()
            echo(f"{result.text(options['all_rows'])}\n")
            say(f"{datetime.now():%H:%M:%S}: {files} in {folder}; waiting for more, Ctrl-C ends")
    except KeyboardInterrupt as stop:
        # Ctrl-C within an audit raises with a message that says what is kept. Without one it came
        # between two audits, and ends the watching.
        if result is None or str(stop):
            raise
    assert result is not None
    return result


def _write_report(
    result: "Audit", file: str, folder: Path, settings: AuditSettings, options: dict[str, Any]
) -> list[str]:
    """Write the report of an audit, and return the names of the audit's files."""
    from ..measure.audit import SPOOLED
    from ..measure.fetching import FETCHED_FILE
    from ..measure.invented import KEPT, SearchedCorpus
    from ..measure.report import page
    from ..measure.scores import SCORES
    from ..measure.summary import SUMMARY, choose_rows
    from ..reading.rows import pick

    files = [SUMMARY, SCORES]
    if options["no_report"]:
        return files
    scores_file = folder / SCORES
    row_count = result.n + result.errors
    # the standard input cannot be read again
    source = folder / SPOOLED if file == "-" else Path(file)
    if settings.fetch:
        source = folder / FETCHED_FILE
    try:  # the rows that are shown are read once more; the audit stands without its page
        chosen = choose_rows(scores_file, result.primary, options["report_rows"], row_count)
        revise = None
        if settings.corpus is not None:
            revise = SearchedCorpus(str(folder / KEPT)).without_invented
        rows = pick(source, chosen, settings, revise)
        page.write(folder / page.REPORT, result, scores_file, rows)
    except DataError as error:
        say(f"no {page.REPORT}: {error}", err=True)
        return files
    return [page.REPORT, *files]


def _left_open(result: "Audit") -> list[str]:
    """Lines that say what was not read or judged, and why; none where the audit is complete."""
    if result.complete:
        return []
    lines = []
    if result.source_error:
        lines.append(f"the source could not be read to its end: {result.source_error}")
    if result.errors:
        lines.append(f"rows that could not be read: {result.errors}")
        lines += [f"  row {row.row}: {row.why}" for row in result.unread[:SHOWN]]
    if result.abstained:
        again = "the same command asks again about these only"
        lines.append(f"rows not judged completely: {result.abstained}; {again}")
        lines += [f"  row {row.row}, {row.metric}: {row.why}" for row in result.unjudged[:SHOWN]]
        # Rows that need no judge, such as those without thoughts, are not typical of the others.
        lines.append(
            "where more than a tenth is open no mean is given: what is left is not a fair sample"
        )
    return [*lines, "all of them are in scores.jsonl"]


@click.command()
@click.argument("files", nargs=-1, required=True, type=ANY_PATH)
@judge_flags
@flags(LabelSettings)
@click.option("--out", type=FOLDER, default=Path("labels"), help="Folder to write the dataset to.")
@_estimate
@click.option(
    "--push-to",
    metavar="REPO",
    help="Dataset on the Hub to upload the folder to, as OWNER/NAME. By default nothing is "
    "uploaded.",
)
@click.option("--private", is_flag=True, help="Create the dataset on the Hub as a private one.")
@config
def label(files: tuple[Path, ...], out: Path, estimate: bool, **options: Any) -> None:
    """Build a dataset of what a judge says of trajectories.

    The pairs come from the trajectories in FILES, which may be all that audit reads. To continue
    after an interruption, or to ask again about pairs that the judge abstained from, run the same
    command again.

    For a second opinion of the same judge use another --out and --judge-cache none, then
    faithful-search agreement FIRST/pairs.jsonl --judge labels:SECOND/pairs.jsonl.

    With --metric rubric the judge scores whole trajectories, as self-evaluation's policy learns to
    (faithful-search train sft --rubric-files).
    """
    from ..measure.label import label as collect

    settings = settings_from(LabelSettings, options)
    judge = judge_of(options)
    if settings.metric == "rubric":
        if options["push_to"]:
            raise click.UsageError(
                "trajectories are uploaded by: faithful-search push trajectories"
            )
        return _score_by_rubric(files, out, estimate, judge, settings)
    if estimate:
        from ..measure.metrics import names

        # An audit with the metric of this name would ask about the same pairs
        metric = str(settings.metric)
        if metric not in names():
            metric = f"{metric}_faithfulness"
        bills = _bills(
            files,
            judge,
            metrics=(metric,),
            dialect=settings.dialect,
            text_column=settings.text_column,
            limit=settings.limit,
        )
        return say(*bills)
    labels = collect(files, out, **_with_progress(judge), **vars(settings))
    _print_labels(labels)
    say(f"pairs.jsonl, provenance.json, README.md in {out}")
    if options["push_to"]:
        from ..hub.pushing import Repository, push

        repository = Repository(options["push_to"], "dataset", options["private"])
        say(push(out, repository, "Upload labelled pairs"))
    if not labels.complete:
        exit_unfinished([*_pairs_left_open(labels), "more of them are in provenance.json"])


def _score_by_rubric(
    files: tuple[Path, ...],
    out: Path,
    estimate: bool,
    judge: Judge | None,
    settings: LabelSettings,
) -> None:
    from ..measure.scoring_by_rubric import rubric_bill, score_by_rubric

    if estimate:
        endpoint = _endpoint(judge)
        return say(*(f"{file}: {rubric_bill(file, endpoint, **vars(settings))}" for file in files))
    record = score_by_rubric(files, out, **_with_progress(judge), **vars(settings))
    by_score = ", ".join(f"{count:,} of {score}" for score, count in record.scores.items())
    say(f"{record.total:,} trajectories scored by {record.judge}: {by_score or 'none'}")
    say(f"scored.jsonl, provenance.json in {out}")
    if record.total:
        file = shlex.quote(str(out / "scored.jsonl"))
        say(f"next: faithful-search train sft --rubric_files {file}")
    if record.complete:
        return None
    lines = _files_left_open(record.files)
    if record.unscored:
        lines.append(
            f"trajectories without a score: {record.unscored:,}; the same command asks again about "
            "these only (of replies that are in the cache, with --judge-cache none)"
        )
        lines += [f"  {why}" for why in record.reasons[:SHOWN]]
    exit_unfinished([*lines, "more of them are in provenance.json"])


def _print_labels(labels: "Provenance") -> None:
    line = f"{labels.pairs:,} pairs labelled by {labels.judge} for {labels.metric}"
    if labels.pairs:
        line += f", {labels.positives:,} true ({labels.positives / labels.pairs:.1%})"
    say(line)
    cut = sum(file.pairs for file in labels.files)
    settled = sum(file.settled for file in labels.files)
    if settled:
        say(f"{cut:,} pairs found, of which {settled:,} are decided by rules and left out")
    elif cut != labels.pairs:
        say(f"{cut:,} pairs found")


def _pairs_left_open(labels: "Provenance") -> list[str]:
    """Lines that say what was not read or judged, and why."""
    lines = _files_left_open(labels.files)
    if labels.abstained:
        lines.append(
            f"pairs without a label: {labels.abstained:,}; the same command asks again about "
            "these only"
        )
        lines += [f"  {why}" for why in labels.unjudged[:SHOWN]]
    return lines


def _files_left_open(files: "Sequence[File]") -> list[str]:
    """Lines that say which rows of the files were not read, and why."""
    lines: list[str] = []
    for file in files:
        if file.broken_off:
            lines.append(f"{file.name} could not be read to its end: {file.broken_off}")
        if file.skipped:
            count = f"{file.skipped} of {file.rows}"
            lines.append(f"{file.name}: {count} rows could not be read or cut")
            lines += [f"  {why}" for why in file.reasons[:SHOWN]]
    return lines


@click.command()
@click.argument("file")
@click.argument("out", type=ANY_PATH)
@click.option("--to", required=True, type=click.Choice(get_args(Format)), help="The format.")
@click.option("--scores", type=ANY_PATH, help="An audit of FILE, whose scores become metadata.")
@click.option("--scrub", is_flag=True, help="Take out what looks like a key or password.")
@flags(ReadingSettings)
def convert(
    file: str, out: Path, to: str, scores: Path | None, scrub: bool, **options: Any
) -> None:
    """Convert trajectories to another format.

    FILE is what audit reads. OUT is a .jsonl or .jsonl.gz file with one row per line, or a folder
    with one file per trajectory; a pi session is always a file of its own. With --scores and --to
    inspect, FILE and OUT are logs of inspect_ai, and the scores are added; --to langfuse writes
    bodies of requests, which `push scores` sends. The exit code is 3 if rows could not be read.
    """
    from ..measure.convert import convert as write

    conversion = write(
        file, out, to, scores=scores, scrub=scrub, **vars(settings_from(ReadingSettings, options))
    )
    with_scores = f", {conversion.scored:,} with scores" if scores else ""
    if conversion.written:
        say(f"{conversion.written:,} trajectories as {to}{with_scores} in {out}")
    else:
        say(f"no row of {file} could be converted: nothing was written to {out}")
    if conversion.valueless:
        say(f"scores without a value: {conversion.valueless:,}; none of them is a 0 there")
    remarks = conversion.messages(scrub)
    if conversion.unread:
        exit_unfinished(remarks)
    if remarks:
        say(*remarks, err=True)


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--out", type=FOLDER, default=Path("comparison"), help="Folder to write the results to."
)
@click.option(
    "--to",
    "form",
    type=click.Choice(["markdown", "latex", "html"]),
    help="Also write the results in the shape of the papers' tables, a method a row: results.md, "
    "results.tex (with booktabs) or results.html.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Result to show in these tables and figures. Can be given several times. By default "
    "exact_match, f1 and lm_accuracy, as far as they were measured.",
)
@click.option(
    "--beside",
    type=click.Choice(["pou", "veritas", "pokee", "self_eval"]),
    help="Paper whose own numbers stand beside the results of suites, marked as the paper's.",
)
@click.option(
    "--figures", is_flag=True, help="Also draw the results, the use of tools, and trainings."
)
@click.option(
    "--fail-on-regression",
    is_flag=True,
    help="Exit with code 4 if a result is clearly worse than the first one, or has lost its value.",
)
def compare(
    paths: tuple[str, ...],
    out: Path,
    form: str | None,
    metrics: tuple[str, ...],
    beside: str | None,
    figures: bool,
    fail_on_regression: bool,
) -> None:
    """Compare audits or evaluations of the same questions.

    PATHS are folders of audits, or folders of runs and evaluations that hold a metrics.json. All
    evaluations in a metrics.json are compared; FOLDER#NAME chooses one of them. Each audit or
    evaluation is compared with the first, in paired differences. Rows are paired by their question,
    or by their id where they have none. Evaluations of suites are compared set by set, with macro
    means and Wilcoxon's signed-rank test over the sets.
    """
    from msgspec import to_builtins

    from ..measure import comparison, gates, suite_comparison
    from ..measure.report import page, papers
    from ..measure.writing import write_metrics

    if beside is not None and form is None:
        raise click.UsageError("--beside needs --to, which says what to write")
    suites = suite_comparison.open_suites(paths)
    if suites is not None and fail_on_regression:
        raise click.UsageError("--fail-on-regression compares single evaluations, not suites")
    file_names = ["comparison.json"]
    sides: list[comparison.Side] = []
    result: comparison.Comparison | suite_comparison.SuiteComparison
    if suites is None:
        sides = comparison.open_sides(paths)
        result = comparison.compare(sides)
    else:
        result = suite_comparison.compare_suites(suites)
    # A metric that was not measured must show before anything is written
    tables = papers.tables(result, metrics, beside)
    if isinstance(result, comparison.Comparison):
        page.write_comparison(out / "comparison.html", result, sides)
        file_names.insert(0, "comparison.html")
    write_metrics(out / "comparison.json", to_builtins(result))
    echo(f"{result}\n")
    if form is not None:
        file_names.append(papers.write(tables, form, out).name)
    if figures:
        from ..analysis.comparisons import draw, draw_trainings

        file_names += draw(result, metrics, out)
        file_names += draw_trainings(paths, out)
    say(f"{', '.join(file_names)} in {out}")
    if fail_on_regression and isinstance(result, comparison.Comparison):
        regressions = gates.regressions(result)
        if regressions:
            exit_unmet(regressions)
        say("no regression")


@click.command()
@click.argument("data", nargs=-1, required=True, type=ANY_PATH)
@click.option(
    "--judge",
    "specs",
    multiple=True,
    help="Judge to ask: KIND, KIND:MODEL or endpoint:MODEL@URL, or presets for all judges with "
    "published weights. Can be given several times. By default lexical.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "heldout", "overlap"]),
    help="Split of the labelled rows to use. By default all rows.",
)
@click.option(
    "--labels", type=ANY_PATH, help="A scores.jsonl whose pairs were labelled by a person."
)
@click.option(
    "--revised",
    type=ANY_PATH,
    help="Labels that were looked at again: JSON lines with id, label and why. Judges are compared "
    "with both versions.",
)
@click.option(
    "--limit", type=AT_LEAST_1, help="Maximum number of rows of each source. By default all rows."
)
@click.option("--seed", type=int, default=0, help="Random seed of the sample and the intervals.")
@click.option(
    "--out", type=FOLDER, default=Path("agreement"), help="Folder to write the results to."
)
@trust_remote_code
def agreement(
    data: tuple[Path, ...],
    specs: tuple[str, ...],
    split: Any,
    labels: Path | None,
    revised: Path | None,
    out: Path,
    **options: Any,
) -> None:
    """Compare judges with labels and with each other.

    DATA are either labelled files, or folders of them: every --judge is asked about their pairs. Or
    DATA are the scores.jsonl of two or more audits of the same file, or the audits' folders: their
    verdicts are compared.
    """
    from ..measure import agreement as comparing

    data = tuple(comparing.scores_in(path) for path in data)
    compares_audits = all(comparing.is_scores(path) for path in data)
    if compares_audits and (specs or split or revised or options["limit"]):
        raise click.UsageError(
            "--judge, --split, --revised and --limit are for labelled files; these are "
            "scores.jsonl of audits, whose verdicts are there already"
        )
    if labels is not None and not compares_audits:
        raise click.UsageError(
            "--labels is for the scores.jsonl of audits; labelled files have labels of their own"
        )
    if compares_audits:
        result = comparing.from_scores(data, out, labels, seed=options["seed"])
    else:
        rows = [row for path in data for row in comparing.load(path, split)]
        revisions = {}
        if revised is not None:
            all_rows = [row for path in data for row in comparing.load(path)]
            revisions = comparing.load_revisions(revised, all_rows)
        judges, unmeasured = comparing.parse_judges(
            specs or ("lexical",), options["trust_remote_code"]
        )
        result = comparing.run(
            rows,
            judges,
            out,
            limit=options["limit"],
            seed=options["seed"],
            revisions=revisions,
            unmeasured=unmeasured,
        )
    drawn = ""
    if result.curves:
        try:
            from ..analysis.figures import reliability

            reliability(result.curves, out / "reliability.png")
            drawn = " and reliability.png"
        except ConfigError as error:
            say(f"no reliability.png: {error}", err=True)
    echo(f"{result.table()}\n")
    say(f"agreement.json{drawn} in {out}")


@click.group()
def metrics() -> None:
    """List the metrics, or install them for `evaluate`."""


@metrics.command("list")
def list_metrics() -> None:
    """List the names of all metrics."""
    from ..measure.metrics import names

    say(*names())


@metrics.command("install")
@click.option(
    "--cache", type=FOLDER, help="Cache for the modules. By default the one that evaluate reads."
)
def install_metrics(cache: Path | None) -> None:
    """Install the metrics for `evaluate`, by bare name.

    evaluate.load("info_think_faithfulness") then finds them.
    """
    from ..measure.metrics import install_metrics as install

    say(*map(str, install(cache)))


def _bills(files: Sequence[str | Path], judge: Judge | None, **settings: Any) -> list[str]:
    from ..measure.audit import bill

    endpoint = _endpoint(judge)
    return [f"{file}: {bill(file, endpoint, **settings)}" for file in files]


def _endpoint(judge: Judge | None) -> "EndpointJudge":
    """The judge whose bill is to be estimated. Raises `UsageError` for one that has none."""
    from ..judges.endpoint import EndpointJudge

    if not isinstance(judge, EndpointJudge):
        raise click.UsageError("--estimate is for --judge endpoint: no other judge has a bill")
    return judge


def _with_progress(judge: Judge | None) -> dict[str, Any]:
    """Keyword arguments of a measurement: the `judge`, and as `on_progress` a progress bar over rows
    that also counts the judge's verdicts, since a served model may need minutes for one row.
    """
    from tqdm.auto import tqdm

    verdicts = 0
    progress = tqdm(disable=True)
    reporting_judge: Judge | None = None

    def bar(**tqdm_options: Any) -> Any:
        nonlocal progress
        progress = tqdm(disable=None, **tqdm_options)
        return progress

    def count_verdicts(count: int) -> None:
        nonlocal verdicts
        verdicts += count
        text = f"{verdicts:,} verdicts"
        stats = None if reporting_judge is None else reporting_judge.stats
        if stats is not None and stats.cost:
            text += f", cost {stats.cost:.4f}"
        progress.set_postfix_str(text)

    if judge is not None:
        # `reporting` makes a judge with counters of its own: its cost is the one to show
        reporting_judge = judge.reporting(count_verdicts)
    return {"judge": reporting_judge, "on_progress": bar}
