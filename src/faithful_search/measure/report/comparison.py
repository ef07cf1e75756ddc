"""A comparison as one page: what differs, the table, and of each metric the questions that changed most."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ... import __version__
from ..comparison import Change, Comparison, Side, changes
from ..writing import replacing
from .asks import asks
from .page import REPORT, digest
from .rollout import environment, page_file
from .tables import EMPTY


def write(path: str | os.PathLike[str], found: Comparison, sides: Sequence[Side]) -> Path:
    """Write the page. Questions link to their rows in the audits' own reports, where these lie.

    Raises:
        OSError: when the page cannot be written.
    """
    path, style = Path(path), page_file("style.css")
    reports = [_report(side, path.parent) for side in sides]
    header, *rows = found.table()
    page = (
        environment()
        .get_template("comparison.html")
        .render(
            found=found,
            style=style,
            style_hash=digest(style),
            version=__version__,
            date=date.today().isoformat(),
            header=header,
            rows=[(cells[0], asks(cells[0]), cells[1:]) for cells in rows],
            changed={metric: [_shown(item, reports) for item in changes(sides, metric)] for metric in found.rows},
        )
    )
    with replacing(path) as file:
        file.write(page.encode("utf-8", "replace"))
    return path


def _report(side: Side, out: Path) -> str | None:
    """The relative address of an audit's report, seen from `out`."""
    report = Path(side.folder) / REPORT
    return quote(Path(os.path.relpath(report, out)).as_posix()) if side.rows and report.is_file() else None


def _shown(change: Change, reports: Sequence[str | None]) -> dict[str, Any]:
    cells = []
    for value, rows, report in zip(change.values, change.rows, reports, strict=True):
        links = [(row, report and f"{report}#row-{row}") for row in rows[:3]]
        cells.append((EMPTY if value is None else f"{value:.3f}", links))
    first, *others = change.values
    by = max((value - first for value in others if value is not None and first is not None), key=abs)
    return {"question": change.question, "cells": cells, "change": f"{by:+.3f}"}
