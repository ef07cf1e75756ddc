"""An audit's scores in trackio: a run with the mean of each result, and each row's conversation
beside its scores and reasons.
"""

import math
from collections.abc import Iterable

from ..errors import needs
from .convert import openai
from .documents import Document

TRACES_AT_ONCE = 100


def log_scores(documents: Iterable[Document], project: str, name: str) -> int:
    """Log the rows as a run of this project; gives their number.

    Raises `ConfigError` where trackio is not installed.
    """
    with needs("--to trackio", "trackio"):
        import trackio

    columns: dict[str, list[float]] = {}
    traces = []
    count = 0
    run = trackio.init(project=project, name=name, embed=False)
    for document in documents:
        count += 1
        messages = openai(document)["messages"]
        traces.append(trackio.Trace(messages, document.metadata))
        for result, value in document.scores.items():
            columns.setdefault(result, []).append(math.nan if value is None else value)
        if len(traces) == TRACES_AT_ONCE:
            run.log({"rows": traces})
            traces = []
    if traces:
        run.log({"rows": traces})
    run.log(_means(columns))
    trackio.finish()  # a run that ends itself is ended once more when the program does
    return count


def _means(columns: dict[str, list[float]]) -> dict[str, float]:
    """The mean of each result over the rows with a value, and how many have none."""
    figures: dict[str, float] = {}
    for result, values in columns.items():
        known = [value for value in values if not math.isnan(value)]
        if known:
            figures[result] = sum(known) / len(known)
        figures[f"{result}/without_value"] = len(values) - len(known)
    return figures
