"""Two or more audits or evaluations side by side: paired by question, each against the first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError
from .evaluation import ENTROPY, Evaluation, difference
from .files import PathLike
from .metrics import about
from .report import aligned, interval, is_clear, marked, warning
from .scores import SCORES, read_scores
from .stats import NOTHING, Estimate, question_means
from .summary import SUMMARY, Audit

RESULTS = "metrics.json"
_MADE = (
    "judge",
    "prompts",
    "how",
    "version",
)  # settings by which figures differ, though the agents do not
NAMELESS = "\0"  # how the key of a row without question and id begins: it is in no pair
SHOWN = 10  # questions whose value fell most, and rose most, of each metric


class Side(msgspec.Struct, frozen=True):
    """An audit or evaluation that is compared: `made` are the settings its figures depend on, `rows` an audit's rows.

    The `questions` of an audit are texts, or ids where there is no text; its report may lie in `folder`.
    """

    name: str
    evaluation: Evaluation
    made: dict[str, Any] = {}
    rows: list[int] = []
    folder: str = ""


class Change(msgspec.Struct, frozen=True):
    """One question: its mean on each side (`None` where there is none), and the rows of an audit it stands in.

    `change` is the largest of the others' differences from the first.
    """

    question: str
    change: float
    values: list[float | None]
    rows: list[list[int]]


class Comparison(msgspec.Struct, frozen=True):
    """How the sides differ from the first, which has `shared` of the `questions` of each with it.

    `rows` has each side's estimate by metric, over all its questions; `differences` each other side minus the first,
    over the questions that both have; `notes` what else may lie behind a difference.
    """

    names: list[str]
    questions: list[int]
    shared: list[int]
    rows: dict[str, list[Estimate]]
    differences: dict[str, list[Estimate]]
    notes: list[str] = []

    def told(self) -> dict[str, list[str]]:
        """For each of the others, against whom on what; and in words what differs clearly."""
        found = {}
        for place, name in enumerate(self.names[1:]):
            parts: dict[str, list[str]] = {"better": [], "worse": [], "higher": [], "lower": []}
            known = [
                (metric, row[place])
                for metric, row in self.differences.items()
                if row[place].value is not None
            ]
            for metric, change in known:
                if is_clear(change):
                    up, good = (change.value or 0) > 0, about(metric).direction
                    word = (
                        ("higher" if up else "lower")
                        if not good
                        else "better"
                        if up == (good > 0)
                        else "worse"
                    )
                    parts[word].append(f"{metric} ({interval(change, sign=True)})")
            lines = [f"{word}: {', '.join(named)}" for word, named in parts.items() if named]
            rest = len(known) - sum(map(len, parts.values()))
            lines += (
                [f"no clear difference: {rest} of {len(known)} metrics"]
                if rest or not known
                else []
            )
            found[f"{name} against {self.names[0]}, on {self.shared[place]:,} shared questions"] = (
                lines
            )
        return found

    def table(self) -> list[list[str]]:
        """Cells, header first: each side's estimate, then each paired difference with the number of its questions."""
        first, *others = self.names
        rows = [
            [
                "metric",
                *(f"{name} [95% CI]" for name in self.names),
                *(f"{name} − {first}" for name in others),
            ]
        ]
        for metric, row in self.rows.items():
            apart = [
                marked(own) + (f" (n={own.n})" if own.n else "") for own in self.differences[metric]
            ]
            rows.append([metric, *map(interval, row), *apart])
        return rows

    def __str__(self) -> str:
        chance = 0.05 * sum(
            change.value is not None for row in self.differences.values() for change in row
        )
        legend = f"* the interval of the paired difference leaves out 0; about {chance:.0f} of these would by chance"
        below = filter(None, [legend, warning(self.rows), *self.notes])
        told = (
            line
            for title, lines in self.told().items()
            for line in (title, *(f"  {line}" for line in lines))
        )
        return "\n\n".join(["\n".join(told), aligned(self.table()), "\n".join(below)])


def open_sides(paths: Sequence[PathLike]) -> list[Side]:
    """Read what is to be compared: an audit's folder or its `scores.jsonl`; a `metrics.json`, or a folder with one, of
    which all evaluations are taken, or with `#NAME` behind the path that one.

    Raises `DataError` for anything else, `ConfigError` with fewer than two to compare.
    """
    sides = [side for path in paths for side in _sides(str(path))]
    if len(sides) < 2:
        raise ConfigError(
            f"nothing to compare {sides[0].name} with: name another audit or evaluation"
        )
    times = Counter(side.name for side in sides)
    return [  # out/a/audit and out/b/audit are told apart by the folder before
        msgspec.structs.replace(side, name=f"{Path(side.folder).parent}/{side.name}")
        if times[side.name] > 1
        else side
        for side in sides
    ]


def compare(sides: Sequence[Side]) -> Comparison:
    """Compare each with the first. Raises `DataError` for one that shares no question with it."""
    start, *others = sides
    asked = [dict.fromkeys(side.evaluation.questions) for side in sides]
    shared = [len(asked[0].keys() & own.keys()) for own in asked[1:]]
    notes = []
    for side, count in zip(others, shared, strict=True):
        if not count:
            raise DataError(
                f"{side.name} shares no question with {start.name} (one there is {next(iter(asked[0]), None)!r}): "
                "only answers to the same questions can be paired"
            )
        both = {
            name: (start.made[name], side.made[name]) for name in start.made if name in side.made
        }
        if named := "; ".join(
            f"{name}: {old!r} there, {new!r} here"
            for name, (old, new) in both.items()
            if old != new
        ):
            other = f"{side.name} was measured in another way than {start.name}"
            notes.append(f"{other}, which may be the difference: {named}")
    for side in sides:
        if nameless := sum(question.startswith(NAMELESS) for question in side.evaluation.questions):
            notes.append(f"{side.name}: {nameless:,} rows without question and id are in no pair")
    runs = [side.evaluation for side in sides]
    metrics = dict.fromkeys(metric for run in runs for metric in run.rows)
    rows = {metric: [run.rows.get(metric, NOTHING) for run in runs] for metric in metrics}
    # No difference where a judge abstained too often for a mean: the rows it answered are not a fair sample
    differences = {
        metric: [
            NOTHING
            if first.value is None or own.value is None
            else difference(runs[0], run, metric)
            for own, run in zip(rest, runs[1:], strict=True)
        ]
        for metric, (first, *rest) in rows.items()
    }
    return Comparison(
        [side.name for side in sides], [*map(len, asked)], shared, rows, differences, notes
    )


def changes(sides: Sequence[Side], metric: str) -> list[Change]:
    """The questions on which one of the others differs most from the first: those that fell, then those that rose."""
    runs = [side.evaluation for side in sides]
    if not all(metric in run.values for run in runs):
        return []
    first, *others = means = [question_means(run.questions, run.values[metric]) for run in runs]
    spans = {
        key: [own[key] - value for own in others if key in own] for key, value in first.items()
    }
    most = sorted((max(span, key=abs), str(key)) for key, span in spans.items() if any(span))
    # Both ends: the greatest changes alone could all be of one direction
    fell, rose = (
        [item for item in most if item[0] < 0][:SHOWN],
        [item for item in most if item[0] > 0][-SHOWN:],
    )
    places: list[dict[str, list[int]]] = [{} for _ in sides]  # the rows of each question
    for side, own in zip(sides, places, strict=True):
        for question, row in zip(side.evaluation.questions, side.rows, strict=False):
            own.setdefault(question, []).append(row)
    return [
        Change(key, by, [own.get(key) for own in means], [own.get(key, []) for own in places])
        for by, key in (*fell, *rose[::-1])
    ]


def _sides(path: str) -> Iterator[Side]:
    path, _, wanted = path.partition("#")
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    if place.name == SCORES or (place / SCORES).is_file():
        yield _audit(folder)
        return
    file = place / RESULTS if place.is_dir() else place
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        held = {
            name: Evaluation.from_dict(value)
            for name, value in found.items()
            if isinstance(value, Mapping) and "values" in value and wanted in ("", name)
        }
    except OSError as error:
        raise DataError(
            f"cannot read {path}: neither an audit's folder nor one with {RESULTS} ({error})"
        ) from error
    except ValueError as error:
        raise DataError(f"{file}: no evaluations ({error})") from error
    if not held:
        raise DataError(f"{file}: no evaluation{f' called {wanted!r}' if wanted else ''} in it")
    for name, evaluation in held.items():
        called = folder.name if len(held) == 1 and not wanted else f"{folder.name}#{name}"
        yield Side(called, evaluation, {"rewards": evaluation.made_by}, folder=str(folder))


def _audit(folder: Path) -> Side:
    """The audit's values by row, from its scores; the estimates are those of its summary."""
    try:
        audit = Audit.from_dict(msgspec.json.decode((folder / SUMMARY).read_bytes()))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} holds scores, but no {SUMMARY} that can be read ({error}): audit again"
        ) from error
    if not audit.finished:
        raise DataError(f"the audit in {folder} has not ended: run the same command again first")
    questions, rows = [], []
    values: dict[str, list[float | None]] = {name: [] for name in audit.rows}
    calls: dict[str, list[int]] = {name: [] for name in audit.tools.counts}
    for line in read_scores(folder / SCORES, audit.n + audit.errors):
        if line.error is None:
            questions.append(
                (line.question or "").strip() or line.id or f"{NAMELESS}{folder}, row {line.row}"
            )
            rows.append(line.row)
            for name, column in values.items():
                column.append(line.values.get(name))
            for name, counted in calls.items():
                counted.append(line.tools.get(name, 0))
    evaluation = Evaluation({**audit.rows, ENTROPY: audit.tools.entropy}, questions, values, calls)
    made = {name: audit.settings.get(name) for name in _MADE}
    return Side(folder.resolve().name, evaluation, made, rows, str(folder))
