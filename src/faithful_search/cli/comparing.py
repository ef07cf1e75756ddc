"""`faithful-search compare`: audits and evaluations side by side; `agreement`: judges, with labels and each other."""

from pathlib import Path
from typing import Any

import click

from ..errors import ConfigError
from .options import ANY_PATH, AT_LEAST_1, FOLDER, echo, trust_remote_code


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
@click.option("--judge", "specs", multiple=True, help="KIND, KIND:MODEL or endpoint:MODEL@URL; several may be given.")
@click.option("--split", type=click.Choice(["train", "heldout", "overlap"]), help="Only this split of labelled rows.")
@click.option("--labels", type=ANY_PATH, help="A scores.jsonl whose pairs a person has labelled.")
@click.option("--limit", type=AT_LEAST_1, help="At most this many rows of each source.")
@click.option("--seed", type=int, default=0, help="Seed of the sample and of the intervals.")
@click.option("--out", type=FOLDER, default=Path("agreement"), help="Folder of the results.")
@trust_remote_code
def agreement(
    data: tuple[Path, ...], specs: tuple[str, ...], split: Any, labels: Path | None, out: Path, **given: Any
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
