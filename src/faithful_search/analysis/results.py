"""What a training run leaves beside its policy: metrics, history, the model card, a table and
plots.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..escape import as_line
from ..hub.cards import merged_card, model_card
from ..hub.pushing import Repository, push_run
from ..measure import report
from ..measure.evaluation import MERGED, Record
from ..measure.writing import write_metrics
from .figures import reward_curves, stability_curves, tool_curves


def next_steps(record: Record) -> list[str]:
    """Commands that show what came of a run."""
    out = shlex.quote(record.folder)
    after = record.after
    question = "your question"
    if after and after.trajectories:
        question = after.trajectories[0].question or question
    quoted = shlex.quote(as_line(question))
    lines = [f"faithful-search ask {quoted} --model {out}"]
    if record.before and after:
        both = " ".join(shlex.quote(f"{record.folder}#{side}") for side in ("before", "after"))
        lines.append(f"faithful-search compare {both}")
    lines.append(f"faithful-search audit {shlex.quote(f'{record.folder}/trajectories.jsonl')}")
    return lines


def leave(
    record: Record | None, recipe: str, argv: Sequence[str], repository: Repository | None = None
) -> dict[str, Any]:
    """Write `metrics.json`, `history.json`, `README.md`, and the plots of rewards, tools,
    stability; print; push.

    `record` is `None` in all processes but the main one. `recipe` and `argv`, the flags it was
    called with, go into the card; `repository` (`hub.pushing.takes_over`) is where the folder is
    pushed. Returns what `metrics.json` holds. Raises `ConfigError` when the Hub refuses,
    `DataError` when no step was logged.
    """
    if record is None:
        return {}
    out = Path(record.folder)
    metrics = record.metrics()
    write_metrics(out / "metrics.json", metrics)
    (out / "history.json").write_text(json.dumps(record.history, indent=1), encoding="utf-8")
    figures = {"rewards.png": reward_curves}
    if record.tools:
        figures["tools.png"] = tool_curves
    figures["stability.png"] = stability_curves
    model_card(record, recipe, argv, tuple(figures))
    if record.settings.get("save_merged"):
        merged_card(out, out / MERGED)
    if record.before and record.after:
        print("", *report.changes(record.before, record.after), sep="\n")
        print(f"\n{report.evaluation_table(record.before, record.after, ('before', 'after'))}")
    # after the numbers: what cannot be drawn must not keep them from being written
    for name, draw in figures.items():
        draw(record.history, out / name)
    print(f"\npolicy, card, trajectories, plots and metrics are in {out}; what to try next:")
    for line in next_steps(record):
        print(f"  {line}")
    if repository is not None:
        push_run(out, repository, merged=bool(record.settings.get("save_merged")))
    return metrics
