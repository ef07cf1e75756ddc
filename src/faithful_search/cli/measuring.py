"""Files of trajectories: `audit` measures them, `label` keeps a judge's verdicts on them, `convert` writes them in
another format; `compare` puts audits and evaluations side by side, `agreement` judges; `metrics` lists what there is.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from ..errors import ConfigError, DataError
from ..judges import Judge
from ..measure.settings import AuditSettings, Format, LabelSettings, Reading
from .options import (
    ANY_PATH,
    AT_LEAST_1,
    FOLDER,
    SHOWN,
    config,
    echo,
    flags,
    judge_flags,
    judge_of,
    taken,
    trust_remote_code,
    unfinished,
)

_estimate = click.option(
    "--estimate", is_flag=True, help="Say what the endpoint would cost, and ask nothing."
)


@click.command()
@click.argument("file")
@judge_flags
@flags(AuditSettings)
@click.option(
    "--policy", type=ANY_PATH, help="The model that wrote the rows: adds evidence_sensitivity."
)
@trust_remote_code
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-audit here.")
@_estimate
@click.option("--overwrite", is_flag=True, help="Start over and replace what the folder holds.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@click.option(
    "--report-rows", type=click.IntRange(min=0), default=200, help="Rows shown in the report."
)
@config
def audit(file: str, policy: Path | None, out: Path | None, estimate: bool, **given: Any) -> None:
    """Measure how faithful the trajectories in FILE are to their evidence.

    FILE is .jsonl, .json (both also .gz), .parquet, or - for JSON lines on the standard input; its rows are texts, chat
    messages or trajectories, in any known dialect. Run the same command again to go on after an interruption.
    """
    from ..measure.audit import SPOOLED, audit as measure
    from ..measure.invented import KEPT, SearchedCorpus
    from ..measure.report import page
    from ..measure.rows import pick
    from ..measure.scores import SCORES, open_policy
    from ..measure.summary import choose_rows

    settings, judge = taken(AuditSettings, given), judge_of(given)
    if estimate:
        return echo(_bill([file], judge, **vars(settings)))
    name = "stdin" if file == "-" else Path(file.removesuffix(".gz")).stem or "trajectories"
    folder = out or Path(f"{name}-audit")
    generator = (
        None if policy is None else open_policy(str(policy), "--policy", given["trust_remote_code"])
    )
    found = measure(
        file,
        folder,
        **_watched(judge),
        policy=generator,
        resume=not given["overwrite"],
        **vars(settings),
    )
    echo(f"{found}\n")
    written = ["audit.json", "scores.jsonl"]
    if not given["no_report"]:
        source = (
            folder / SPOOLED if file == "-" else Path(file)
        )  # the standard input cannot be read again
        try:  # the rows that are shown are read once more; the audit stands without its page
            chosen = choose_rows(
                folder / SCORES, found.primary, given["report_rows"], found.n + found.errors
            )
            corpus = SearchedCorpus(str(folder / KEPT)) if settings.corpus is not None else None
            page.write(
                folder / "report.html",
                found,
                folder / SCORES,
                pick(source, chosen, settings, corpus),
            )
            written.insert(0, "report.html")
        except DataError as error:
            echo(f"no report.html: {error}", err=True)
    echo(f"{', '.join(written)} in {folder}")
    if found.complete:
        return
    open_rows = (
        [f"the source could not be read to its end: {found.source_error}"]
        if found.source_error
        else []
    )
    if found.errors:
        open_rows.append(f"rows that could not be read: {found.errors}")
        open_rows += [f"  row {item.row}: {item.why}" for item in found.unread[:SHOWN]]
    if found.abstained:
        open_rows.append(
            f"rows not judged completely: {found.abstained}; the same command asks again about these only"
        )
        open_rows += [
            f"  row {item.row}, {item.metric}: {item.why}" for item in found.unjudged[:SHOWN]
        ]
        # The rows that need no judge (a turn without a thought) differ from the others
        open_rows.append(
            "where more than a tenth is open no mean is given: what is left is not a fair sample"
        )
    unfinished([*open_rows, "all of them are in scores.jsonl"])


@click.command()
@click.argument("files", nargs=-1, required=True, type=ANY_PATH)
@judge_flags
@flags(LabelSettings)
@click.option("--out", type=FOLDER, default=Path("labels"), help="Folder of the dataset.")
@_estimate
@click.option(
    "--push-to", metavar="REPO", help="Upload the folder to this dataset of the Hub, OWNER/NAME."
)
@click.option("--private", is_flag=True, help="Make that dataset a private one.")
@config
def label(files: tuple[Path, ...], out: Path, estimate: bool, **given: Any) -> None:
    """Ask a judge about the pairs of texts in the trajectories of FILES, and keep its labels as a dataset.

    FILES are what audit reads. Run the same command again to go on after an interruption, and to ask again about pairs
    that the judge abstained from. For a second opinion of the same judge use another --out and --judge-cache none, then
    faithful-search agreement FIRST/pairs.jsonl --judge labels:SECOND/pairs.jsonl.
    """
    from ..measure.label import label as collect

    settings, judge = taken(LabelSettings, given), judge_of(given)
    if estimate:
        from ..measure.metrics import names

        reading = {name: getattr(settings, name) for name in ("dialect", "text_column", "limit")}
        # Pairs are counted as the metric of that name would ask about them in an audit
        metric = (
            settings.metric if settings.metric in names() else f"{settings.metric}_faithfulness"
        )
        return echo(_bill(files, judge, metrics=(metric,), **reading))
    found = collect(files, out, **_watched(judge), **vars(settings))
    share = (
        f", {found.positives:,} true ({found.positives / found.pairs:.1%})" if found.pairs else ""
    )
    met, settled = (
        sum(file.pairs for file in found.files),
        sum(file.settled for file in found.files),
    )
    without = f", of which {settled:,} need no judge and are left out" if settled else ""
    echo(
        f"{found.pairs:,} pairs labelled by {found.judge} for {found.metric}{share}\n{met:,} pairs met{without}"
    )
    echo(f"pairs.jsonl, provenance.json, README.md in {out}")
    if given["push_to"]:
        from ..hub.pushing import Repository, push

        echo(
            push(
                out,
                Repository(given["push_to"], "dataset", given["private"]),
                "Upload labelled pairs",
            )
        )
    if found.complete:
        return
    open_pairs: list[str] = []
    for file in found.files:
        open_pairs += (
            [f"{file.name} could not be read to its end: {file.broken_off}"]
            if file.broken_off
            else []
        )
        skipped = f"{file.name}: {file.skipped} of {file.rows} rows could not be read or cut"
        open_pairs += (
            [skipped, *(f"  {why}" for why in file.reasons[:SHOWN])] if file.skipped else []
        )
    if found.abstained:
        open_pairs.append(
            f"pairs without a label: {found.abstained:,}; the same command asks again about these only"
        )
        open_pairs += [f"  {why}" for why in found.unjudged[:SHOWN]]
    unfinished([*open_pairs, "more of them are in provenance.json"])


@click.command()
@click.argument("file")
@click.argument("out", type=ANY_PATH)
@click.option("--to", required=True, type=click.Choice(get_args(Format)), help="The format.")
@click.option("--scores", type=ANY_PATH, help="An audit of FILE, whose scores become metadata.")
@click.option("--scrub", is_flag=True, help="Take out what looks like a key or password.")
@flags(Reading)
def convert(file: str, out: Path, to: str, scores: Path | None, scrub: bool, **given: Any) -> None:
    """Write the trajectories in FILE in another format: OUT.jsonl with a row a line, or a folder with a file for each.

    FILE is what audit reads. A pi session is always a file of its own. Where rows could not be read the exit code is 3.
    """
    from ..measure.convert import convert as write

    found = write(file, out, to, scores=scores, scrub=scrub, **vars(taken(Reading, given)))
    with_scores = f", {found.scored:,} with scores" if scores else ""
    echo(f"{found.written:,} trajectories as {to}{with_scores} in {out}")
    told = found.told(scrub)
    if found.unread:
        unfinished(told)
    if told:
        echo("\n".join(told), err=True)


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--out", type=FOLDER, default=Path("comparison"), help="Folder of the results.")
def compare(paths: tuple[str, ...], out: Path) -> None:
    """Compare audits or evaluations of the same questions: each with the first, in paired differences.

    PATHS are folders of audits, or folders of runs and evaluations with a metrics.json, whose evaluations are all
    compared; FOLDER#NAME is one of them. Rows are paired by their question, else by their id.
    """
    from msgspec import to_builtins

    from ..measure import comparison
    from ..measure.report import page
    from ..measure.writing import write_metrics

    sides = comparison.open_sides(paths)
    found = comparison.compare(sides)
    write_metrics(out / "comparison.json", to_builtins(found))
    page.write_comparison(out / "comparison.html", found, sides)
    echo(f"{found}\n\ncomparison.html, comparison.json in {out}")


@click.command()
@click.argument("data", nargs=-1, required=True, type=ANY_PATH)
@click.option(
    "--judge",
    "specs",
    multiple=True,
    help="KIND, KIND:MODEL or endpoint:MODEL@URL; several may be given.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "heldout", "overlap"]),
    help="Only this split of labelled rows.",
)
@click.option("--labels", type=ANY_PATH, help="A scores.jsonl whose pairs a person has labelled.")
@click.option("--limit", type=AT_LEAST_1, help="At most this many rows of each source.")
@click.option("--seed", type=int, default=0, help="Seed of the sample and of the intervals.")
@click.option("--out", type=FOLDER, default=Path("agreement"), help="Folder of the results.")
@trust_remote_code
def agreement(
    data: tuple[Path, ...],
    specs: tuple[str, ...],
    split: Any,
    labels: Path | None,
    out: Path,
    **given: Any,
) -> None:
    """Compare judges with labels and with each other.

    DATA are labelled files (or folders of them), which every --judge is asked about; or two or more scores.jsonl of
    audits of the same file, whose verdicts are compared.
    """
    from ..measure import agreement as comparing

    if all(comparing.is_scores(path) for path in data):
        found = comparing.from_scores(data, out, labels, seed=given["seed"])
    else:
        rows = [row for path in data for row in comparing.load(path, split)]
        judges = comparing.parse_judges(specs or ("lexical",), given["trust_remote_code"])
        found = comparing.run(rows, judges, out, limit=given["limit"], seed=given["seed"])
    drawn = ""
    if found.curves:
        try:
            from ..analysis.figures import reliability

            reliability(found.curves, out / "reliability.png")
            drawn = " and reliability.png"
        except ConfigError as error:
            echo(f"no reliability.png: {error}", err=True)
    echo(f"{found.table()}\n\nagreement.json{drawn} in {out}")


@click.group()
def metrics() -> None:
    """The metrics as modules for `evaluate`."""


@metrics.command("list")
def list_metrics() -> None:
    """Name the metrics there are."""
    from ..measure.metrics import names

    echo("\n".join(names()))


@metrics.command("install")
@click.option(
    "--cache", type=FOLDER, help="The modules cache; by default the one that evaluate looks into."
)
def install_metrics(cache: Path | None) -> None:
    """Put the metrics where evaluate.load("info_think_faithfulness") finds them by bare name."""
    from ..measure.metrics import install_metrics as install

    echo("\n".join(map(str, install(cache))))


def _bill(files: Sequence[str | Path], judge: Judge | None, **settings: Any) -> str:
    from ..judges.endpoint import EndpointJudge
    from ..measure.audit import bill

    if not isinstance(judge, EndpointJudge):
        raise click.UsageError("--estimate is for --judge endpoint: no other judge has a bill")
    return "\n".join(f"{file}: {bill(file, judge, **settings)}" for file in files)


def _watched(judge: Judge | None) -> dict[str, Any]:
    """The judge, and a progress bar over rows that also counts a served model's verdicts: rows may take it minutes."""
    from tqdm.auto import tqdm

    verdicts, shown = 0, tqdm(disable=True)

    def bar(**settings: Any) -> Any:
        nonlocal shown
        shown = tqdm(disable=None, **settings)
        return shown

    def heard(count: int) -> None:
        nonlocal verdicts
        verdicts += count
        cost = getattr(getattr(judge, "stats", None), "cost", 0)
        shown.set_postfix_str(f"{verdicts:,} verdicts{f', cost {cost:.4f}' if cost else ''}")

    if hasattr(judge, "on_progress"):  # those that run here are as quick as the rows
        judge = replace(judge, on_progress=heard)  # type: ignore[type-var]
    return {"judge": judge, "on_progress": bar}
