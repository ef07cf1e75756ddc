"""What studies share: where configurations are, programs and their flags, and tables over seeds."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.report import interval
from faithful_search.measure.seeds import difference_over_seeds, over_seeds
from faithful_search.measure.stats import Estimate

RECIPES = Path(__file__).parent.parent / "recipes"
CONFIGS = RECIPES / "configs"
STUDIED = Path(__file__).parent / "studies"
"""Configurations that only a study needs; the others are the recipes'."""
START = "cold start"
"""The name in tables of the policy that every setting is trained from."""
VALUES = "Values"
Flags = Mapping[str, Any]
Table = dict[str, dict[str, Estimate]]
"""By setting, the estimate of each metric."""


def config_named(name: str) -> Path:
    """The configuration of this name: a study's, else the recipes'."""
    config = STUDIED / name
    return config if config.exists() else CONFIGS / name


def as_flags(values: Flags) -> list[str]:
    """The flags of a recipe.

    Example:
        >>> as_flags({"seed": 1, "resume": "true"})
        ['--seed', '1', '--resume', 'true']
    """
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{name}", str(value)]
    return flags


def run_program(command: tuple[str, ...], log: Path) -> None:
    """Run a Python program, its output in `log`, and end with where to look if it fails."""
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed; see {log}")


def tables_over_seeds(
    measured: Mapping[str, Sequence[Evaluation]],
    metrics: Iterable[str],
    references: Iterable[str] = (START,),
) -> dict[str, Table]:
    """By title: the means of all settings, and their paired differences to each of the references
    that were measured. `measured` has the evaluations of each setting, one a seed.
    """
    metrics = list(metrics)
    values: Table = {}
    for name, runs in measured.items():
        values[name] = {metric: over_seeds(runs, metric) for metric in metrics}
    tables = {VALUES: values}
    for reference in filter(measured.get, references):
        differences: Table = {}
        for name, runs in measured.items():
            if name in (START, reference):
                continue
            differences[name] = {
                metric: difference_over_seeds(measured[reference], runs, metric)
                for metric in metrics
            }
        if differences:
            tables[f"Paired differences to: {reference}"] = differences
    return tables


def as_markdown(
    tables: Mapping[str, Table],
    measured: Mapping[str, Sequence[Evaluation]],
    metrics: Iterable[str],
) -> str:
    """The tables with their titles. A row says how many seeds its setting has."""
    metrics = list(metrics)
    parts = []
    for title, table in tables.items():
        lines = [f"| setting | seeds | {' | '.join(metrics)} |", "|---" * (len(metrics) + 2) + "|"]
        for setting, row in table.items():
            cells = " | ".join(interval(row[metric]) for metric in metrics)
            lines.append(f"| {setting} | {len(measured[setting])} | {cells} |")
        rows = "\n".join(lines)
        parts.append(f"## {title}\n\n{rows}")
    return "\n\n".join(parts)


def drawable(table: Mapping[Any, Mapping[str, Estimate]]) -> dict[Any, dict[str, Any]]:
    """The table as `analysis.figures` takes it."""
    drawn: dict[Any, dict[str, Any]] = {}
    for setting, row in table.items():
        estimates = {metric: structs.asdict(estimate) for metric, estimate in row.items()}
        drawn[setting] = {"rows": estimates}
    return drawn
