"""`faithful-search compare`: audits and evaluations side by side; `agreement`: judges, with labels and each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import ConfigError, DataError
from .options import FOLDER, debug, echo, trust_remote_code

if TYPE_CHECKING:
    from ..measure.agreement import Agreement


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--out", type=FOLDER, default=Path("comparison"), show_default=True, help="Folder of the results.")
@debug
def compare(paths: tuple[str, ...], out: Path) -> None:
    """Compare audits or evaluations of the same questions: each with the first, in paired differences.

    PATHS are folders of audits, or folders of runs and evaluations with a metrics.json, whose evaluations are all
    compared; FOLDER#NAME is one of them. Rows are paired by their question, else by their id.
    """
    from ..measure import comparison
    from ..measure.report import page
    from ..measure.writing import results_folder, write_result

    sides = comparison.open_sides(paths)
    found = comparison.compare(sides)
    write_result(results_folder(out) / "comparison.json", msgspec.to_builtins(found))
    try:
        page.write_comparison(out / "comparison.html", found, sides)
    except OSError as error:
        raise DataError(f"cannot write the page: {error}") from error
    echo(f"{found}\n\ncomparison.html, comparison.json in {out}")


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--judge", "specs", multiple=True, help="KIND, KIND:MODEL or endpoint:MODEL@URL; several may be given.")
@click.option(
    "--split", type=click.Choice(["train", "heldout", "overlap"]), help="Only this split of the labelled rows."
)
@click.option("--labels", type=click.Path(path_type=Path), help="A scores.jsonl whose pairs a person has labelled.")
@click.option("--limit", type=click.IntRange(min=1), help="So many rows of each source.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample and of the intervals.")
@click.option("--out", type=FOLDER, default=Path("agreement"), show_default=True, help="Folder of the results.")
@trust_remote_code
@debug
def agreement(
    data: tuple[Path, ...],
    specs: tuple[str, ...],
    split: Any,
    labels: Path | None,
    limit: int | None,
    seed: int,
    out: Path,
    trust_remote_code: bool,
) -> None:
    """Compare judges with labels and with each other.

    DATA are labelled files (or folders of them), which every --judge is asked about; or two or more scores.jsonl of
    audits of the same file, whose verdicts are compared.
    """
    from ..measure import agreement as comparing

    if all(comparing.is_scores(path) for path in data):
        found = comparing.from_scores(data, out, labels, seed=seed)
    else:
        rows = [row for path in data for row in comparing.load(path, split)]
        judges = comparing.parse_judges(specs or ("lexical",), trust_remote_code)
        found = comparing.run(rows, judges, out, limit=limit, seed=seed)
    drawn = " and reliability.png" if found.curves and _drawn(found, out) else ""
    echo(f"{found.table()}\n\nagreement.json{drawn} in {out}")


def _drawn(found: Agreement, out: Path) -> bool:
    try:
        from ..analysis import reliability

        reliability(found.curves, out / "reliability.png")
    except ConfigError as error:
        echo(f"no reliability.png: {error}", err=True)
        return False
    return True
