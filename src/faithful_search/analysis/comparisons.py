"""The figures of a comparison: results by question set or metric, the use of tools, and what
changed over trainings.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..measure.comparison import Comparison
from ..measure.report.papers import tables
from ..measure.suite_comparison import SuiteComparison
from . import figures

HISTORY = "history.json"
"""What a training writes into its folder: a row for each step that was logged."""
OVER_TRAINING = ("entropy", "kl", "tools/entropy")


def draw(
    comparison: Comparison | SuiteComparison, metrics: Sequence[str], folder: Path
) -> list[str]:
    """Draw the results, by set for suites, and which share of the calls went to each tool. Returns
    the names of the files: `METRIC.png` or `results.png`, and `tools.png` where a side could call
    two tools.

    Raises `ConfigError` where matplotlib is missing.
    """
    written = []
    for table in tables(comparison, metrics):
        name = f"{table.title}.png" if isinstance(comparison, SuiteComparison) else "results.png"
        evaluations = {}
        for line in table.lines:
            cells = zip(table.columns, line.cells, strict=True)
            rows = {column: msgspec.structs.asdict(estimate) for column, estimate in cells}
            evaluations[line.name] = {"rows": rows}
        title = f"{table.title}, 95 % interval"
        written.append(figures.bars(evaluations, table.columns, folder / name, title).name)
    calls: dict[str, Mapping[str, int]] = {}
    if isinstance(comparison, SuiteComparison):
        for set_name in comparison.sets:
            for side, by_set in zip(comparison.names, comparison.tool_calls, strict=True):
                calls[f"{set_name}, {side}"] = by_set[set_name]
    else:
        calls |= zip(comparison.names, comparison.tool_calls, strict=True)
    several = {name: counts for name, counts in calls.items() if len(counts) > 1}
    if several:
        written.append(figures.tool_ratios(several, folder / "tools.png").name)
    return written


def draw_trainings(paths: Sequence[str], folder: Path) -> list[str]:
    """Draw entropy, KL and the entropy of tools over the steps of the trainings among these runs, a
    line each (VERITAS, figure 5; Proof-of-Use, figure 1). Returns the name of the file,
    `training.png`, or nothing where no run has a `history.json` with one of them.
    """
    histories = {}
    for path in paths:
        run = Path(path.partition("#")[0])
        if (run / HISTORY).is_file():
            label = str(run) if run.name in histories else run.name
            histories[label] = [json.loads((run / HISTORY).read_text(encoding="utf-8"))]
    logged: set[str] = set()
    for [history] in histories.values():
        logged.update(*history)
    metrics = [metric for metric in OVER_TRAINING if metric in logged]
    if not metrics:
        return []
    return [figures.compare(histories, metrics, folder / "training.png").name]
