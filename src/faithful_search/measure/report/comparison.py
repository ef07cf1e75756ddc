"""A comparison as one page: what differs, the table, and of each metric the questions that changed most."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..comparison import Change, Comparison, Side, changes
from ..files import PathLike
from .asks import asks
from .page import REPORT, render
from .rollout import page_file
from .tables import EMPTY


def write(path: PathLike, found: Comparison, sides: Sequence[Side]) -> Path:
    """Write the page. Questions link to their rows in the audits' own reports, where these lie.

    Raises `OSError` when the page cannot be written.
    """
    path = Path(path)
    reports = []  # of each audit its report's address, seen from the page
    for side in sides:
        report = Path(side.folder) / REPORT
        known = side.rows and report.is_file()
        reports.append(quote(Path(os.path.relpath(report, path.parent)).as_posix()) if known else None)
    header, *rows = found.table()
    return render(
        path,
        "comparison.html",
        page_file("style.css"),
        {},
        found=found,
        header=header,
        rows=[(cells[0], asks(cells[0]), cells[1:]) for cells in rows],
        changed={metric: [_shown(item, reports) for item in changes(sides, metric)] for metric in found.rows},
    )


def _shown(change: Change, reports: Sequence[str | None]) -> dict[str, Any]:
    cells = []
    for value, rows, report in zip(change.values, change.rows, reports, strict=True):
        links = [(row, report and f"{report}#row-{row}") for row in rows[:3]]
        cells.append((EMPTY if value is None else f"{value:.3f}", links))
    first, *others = change.values
    by = max((value - first for value in others if value is not None and first is not None), key=abs)
    return {"question": change.question, "cells": cells, "change": f"{by:+.3f}"}
