"""Compare two or more audits or evaluations: each with the first, paired by question.

```
paths ─ open_sides ─> Side, … ─ compare ─> Comparison (differences by metric)
                              └ changes ─> ChangedQuestion, … (of one metric)
```
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from .. import loose_json
from ..errors import ConfigError, DataError, reason_of
from ..escape import as_line
from ..reading.files import PathLike
from .evaluation import Evaluation, difference
from .metrics import arrow, asks
from .report import PAIRED, aligned, columns, interval, is_clear, marked, meaning, warning
from .scores import SCORES, read_scores
from .side_names import distinct_names
from .significance import clear_after_holm
from .stats import NOTHING, Estimate, question_means
from .summary import SUMMARY, Audit
from .tuning import TunedOn, measured_on, one_sided, remarks, tuned_on

RESULTS = "metrics.json"
MEASURING_SETTINGS = ("judge", "prompts", "how", "version")
"""Settings of an audit that change its figures, although the agents are the same."""
NAMELESS = "\0"
"""The beginning of the key of a row that has neither question nor id. It is paired with nothing."""
MEANINGS = ("better", "worse", "higher", "lower")
"""What a clear difference can mean; the last two are for metrics that are neither good nor bad."""
SHOWN = 10
"""The number of questions that `changes` returns at most for each direction."""


class Side(msgspec.Struct, frozen=True):
    """One of the audits or evaluations that are compared.

    Attributes:
        name: what it is called in tables.
        evaluation: its values. The `questions` of an audit are texts, or ids where a row has no
            text.
        made: the settings that its figures depend on.
        rows: the row number of each value; empty for an evaluation.
        folder: where it lies, perhaps with its report.
        tuned_on: the questions that the policy was trained on, as far as known.
        measured_on: the questions it was measured on, as `QUESTIONS/SPLIT`; empty if not known.
    """

    name: str
    evaluation: Evaluation
    made: dict[str, Any] = {}
    rows: list[int] = []
    folder: str = ""
    tuned_on: list[TunedOn] = []
    measured_on: str = ""


class ChangedQuestion(msgspec.Struct, frozen=True):
    """A question that has another value on a later side than on the first.

    Attributes:
        change: the largest difference between a later side and the first.
        values: the question's mean on each side; `None` where it has none.
        rows: the rows of each side that hold the question; empty for an evaluation.
    """

    question: str
    change: float
    values: list[float | None]
    rows: list[list[int]]


class Comparison(msgspec.Struct, frozen=True):
    """How the later sides differ from the first.

    Attributes:
        names: what each side is called.
        questions: the number of questions of each side.
        shared: the number of questions that each later side shares with the first.
        rows: the estimate of each side by metric, over all its questions.
        differences: each later side minus the first by metric, over the questions that both have.
        notes: sentences about what else may cause a difference.
        tool_calls: the number of calls of each tool, of each side.
    """

    names: list[str]
    questions: list[int]
    shared: list[int]
    rows: dict[str, list[Estimate]]
    differences: dict[str, list[Estimate]]
    notes: list[str] = []
    tool_calls: list[dict[str, int]] = []

    def title(self, place: int) -> str:
        """A heading for the later side number `place`, counted from 0."""
        first_name, *later_names = self.names
        questions = f"{self.shared[place]:,} shared questions"
        return f"{later_names[place]} against {first_name}, on {questions}"

    def clear(self, place: int) -> dict[str, dict[str, Estimate]]:
        """The clear differences of the later side number `place`, by meaning (`MEANINGS`) and by
        metric.
        """
        by_meaning: dict[str, dict[str, Estimate]] = {word: {} for word in MEANINGS}
        for metric, change in self._column(place).items():
            word = meaning(metric, change)
            if word:
                by_meaning[word][metric] = change
        return {word: changes for word, changes in by_meaning.items() if changes}

    def unclear(self, place: int) -> str:
        """A sentence with the number of metrics that do not differ clearly; empty where all do."""
        changes = self._column(place).values()
        comparable = [change for change in changes if change.value is not None]
        count = sum(not is_clear(change) for change in comparable)
        if comparable and not count:
            return ""
        return f"no clear difference: {count} of {len(comparable)} rows"

    def chance(self) -> str:
        """Sentences about the number of differences that chance alone would mark, and about those
        that a correction leaves.
        """
        all_differences = chain.from_iterable(self.differences.values())
        number = sum(change.value is not None for change in all_differences)
        by_chance = max(1, round(0.05 * number))
        return (
            f"Of {number} differences about {by_chance} would be marked by chance, if nothing "
            f"differed. * is before any correction, ** also after Holm's over the {len(self.rows)} "
            "metrics."
        )

    def after_holm(self, place: int) -> list[str]:
        """The metrics whose difference on the later side number `place` is clear after Holm's
        correction over all metrics.
        """
        column = self._column(place)
        return [metric for metric in clear_after_holm(column) if is_clear(column[metric])]

    def marked(self, metric: str, place: int) -> str:
        """A difference with its number of questions: `*` where it is clear, `**` where it is after
        the correction, too.
        """
        change = self.differences[metric][place]
        count = f" (n={change.n})" if change.n else ""
        return marked(change, after_holm=metric in self.after_holm(place)) + count

    def table(self) -> list[list[str]]:
        """The cells of a table, header first: for each metric the estimate of each side, then each
        paired difference with the number of its questions.
        """
        first_name, *later_names = self.names
        header = ["metric", "better"]
        header += [f"{name} [95% CI]" for name in self.names]
        header += [f"{name} − {first_name}" for name in later_names]
        lines = [header]
        for metric, estimates in self.rows.items():
            cells = [metric, arrow(metric), *map(interval, estimates)]
            cells += [self.marked(metric, place) for place in range(len(later_names))]
            lines.append(cells)
        return lines

    def __str__(self) -> str:
        summaries = [self._summary(place) for place in range(len(self.shared))]
        table = aligned(self.table())
        below = [PAIRED, self.chance(), warning(self.rows), *self.notes]
        sentences = [as_line(sentence) for sentence in below if sentence]
        return "\n\n".join([*summaries, table, "\n".join(sentences)])

    def _column(self, place: int) -> dict[str, Estimate]:
        """The differences of the later side number `place`, by metric."""
        return {metric: changes[place] for metric, changes in self.differences.items()}

    def _summary(self, place: int) -> str:
        lines = [as_line(self.title(place))]
        for word, changes_of_word in self.clear(place).items():
            lines.append(f"  {word}:")
            rows = []
            for metric, change in changes_of_word.items():
                rows.append([f"    {metric}", interval(change, sign=True), asks(metric)])
            lines += columns(rows)
        unclear = self.unclear(place)
        if unclear:
            lines.append(f"  {as_line(unclear)}")
        return "\n".join(lines)


def open_sides(paths: Sequence[PathLike]) -> list[Side]:
    """Read the audits and evaluations at these paths.

    An audit is its folder or its `scores.jsonl`. Evaluations lie in a `metrics.json`, which is
    named itself or by its folder: all of them are read, or with `#NAME` after the path only that
    one.

    Raises `DataError` for anything else, and `ConfigError` with fewer than two sides or for one
    that is named twice.
    """
    sides: list[Side] = []
    for path in paths:
        sides += _sides(str(path))
    if len(sides) < 2:
        raise ConfigError(
            f"nothing to compare {sides[0].name} with: name another audit or evaluation"
        )
    names = distinct_names([Path(side.folder).resolve().parent / side.name for side in sides])
    return [
        msgspec.structs.replace(side, name=name) for side, name in zip(sides, names, strict=True)
    ]


def compare(sides: Sequence[Side]) -> Comparison:
    """Compare each later side with the first. Raises `DataError` where they share no question."""
    first, *later = sides
    questions = [set(side.evaluation.questions) for side in sides]
    shared = []
    notes = []
    for side, questions_of_side in zip(later, questions[1:], strict=True):
        count = len(questions[0] & questions_of_side)
        if not count:
            example = next(iter(first.evaluation.questions), None)
            raise DataError(
                f"{side.name} shares no question with {first.name} (one there is {example!r}): "
                "only answers to the same questions can be paired"
            )
        shared.append(count)
        differing = _made_differently(first, side)
        if differing:
            notes.append(
                f"{side.name} was measured in another way than {first.name}, which may be the "
                f"difference: {differing}"
            )
    notes += one_sided([side.name for side in sides], [side.tuned_on for side in sides])
    for side in sides:
        notes += remarks(side.name, side.tuned_on, side.measured_on)
        nameless = sum(question.startswith(NAMELESS) for question in side.evaluation.questions)
        if nameless:
            notes.append(f"{side.name}: {nameless:,} rows without question and id are in no pair")
    runs = [side.evaluation for side in sides]
    metrics = dict.fromkeys(chain.from_iterable(run.rows for run in runs))
    rows: dict[str, list[Estimate]] = {}
    for metric in metrics:
        rows[metric] = [run.rows.get(metric, NOTHING) for run in runs]
    return Comparison(
        names=[side.name for side in sides],
        questions=[len(questions_of_side) for questions_of_side in questions],
        shared=shared,
        rows=rows,
        differences={metric: _differences(runs, metric) for metric in metrics},
        notes=notes,
        tool_calls=[run.calls_by_tool() for run in runs],
    )


def _made_differently(first: Side, side: Side) -> str:
    """The settings in which two sides were measured differently, in words; empty if in none."""
    differing = []
    for name in first.made:
        if name in side.made and side.made[name] != first.made[name]:
            differing.append(f"{name}: {first.made[name]!r} there, {side.made[name]!r} here")
    return "; ".join(differing)


def _differences(runs: Sequence[Evaluation], metric: str) -> list[Estimate]:
    """Each later run minus the first.

    There is no difference where one of the two has no mean, since its judge abstained too often:
    the rows that the judge answered are not a fair sample.
    """
    first, *later = runs
    mean_of_first = first.rows.get(metric, NOTHING).value
    estimates = []
    for run in later:
        mean = run.rows.get(metric, NOTHING).value
        if mean_of_first is None or mean is None:
            estimates.append(NOTHING)
        else:
            estimates.append(difference(first, run, metric))
    return estimates


def changes(sides: Sequence[Side], metric: str) -> list[ChangedQuestion]:
    """The questions on which a later side differs most from the first by this metric: at most
    `SHOWN` that fell, the largest fall first, then at most `SHOWN` that rose, the largest rise
    first.
    """
    runs = [side.evaluation for side in sides]
    if not all(metric in run.values for run in runs):
        return []
    means_of_sides = [question_means(run.questions, run.values[metric]) for run in runs]
    first, *later = means_of_sides
    moves: list[tuple[float, str]] = []
    for question, mean in first.items():
        differences = [means[question] - mean for means in later if question in means]
        if any(differences):
            moves.append((max(differences, key=abs), str(question)))
    moves.sort()
    # Both ends, since the largest changes alone could all be of one direction
    fell = [(change, question) for change, question in moves if change < 0][:SHOWN]
    rose = [(change, question) for change, question in moves if change > 0][-SHOWN:]
    rows_of_sides = [_rows_of(side) for side in sides]
    changed = []
    for change, question in (*fell, *reversed(rose)):
        changed.append(
            ChangedQuestion(
                question=question,
                change=change,
                values=[means.get(question) for means in means_of_sides],
                rows=[rows.get(question, []) for rows in rows_of_sides],
            )
        )
    return changed


def _rows_of(side: Side) -> dict[str, list[int]]:
    """The rows of each question."""
    rows: dict[str, list[int]] = {}
    for question, row in zip(side.evaluation.questions, side.rows, strict=False):
        rows.setdefault(question, []).append(row)
    return rows


def _sides(path: str) -> Iterator[Side]:
    """The audit, or the evaluations, at a path; see `open_sides`."""
    evaluation_name = ""
    if not Path(path).exists():
        path, _, evaluation_name = path.partition("#")
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    if place.name == SCORES or (place / SCORES).is_file():
        yield _audit(folder)
        return
    file = place / RESULTS if place.is_dir() else place
    metrics = _metrics(file)
    evaluations = _evaluations(file, metrics, evaluation_name)
    if not evaluations:
        there_are = ", ".join(_evaluations(file, metrics))
        called = f" called {evaluation_name!r}" if evaluation_name and there_are else ""
        raise DataError(f"{file}: no evaluation{called} in it; there are: {there_are or 'none'}")
    folder_name = folder.resolve().name
    only_one = len(evaluations) == 1 and not evaluation_name
    for name, evaluation in evaluations.items():
        yield Side(
            name=folder_name if only_one else f"{folder_name}#{name}",
            evaluation=evaluation,
            made={"rewards": evaluation.made_by},
            folder=str(folder),
            tuned_on=tuned_on(metrics),
            measured_on=measured_on(metrics),
        )


def _metrics(file: Path) -> dict[str, Any]:
    """The content of a `metrics.json`."""
    instead = f"name an audit's folder, or one with {RESULTS}"
    try:
        metrics = loose_json.decode(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"cannot read {file}: it is neither an audit's folder nor one with {RESULTS} "
            f"({reason_of(error)})"
        ) from error
    except DataError as error:
        raise DataError(f"{file}: no evaluations ({error}); {instead}") from error
    if not isinstance(metrics, dict):
        raise DataError(f"{file}: no evaluations, which are in a JSON object; {instead}")
    return metrics


def _evaluations(
    file: Path, metrics: Mapping[str, Any], evaluation_name: str = ""
) -> dict[str, Evaluation]:
    """The evaluations in a `metrics.json` by name, or only the one that is called
    `evaluation_name`. What else the file holds is left out.
    """
    evaluations: dict[str, Evaluation] = {}
    for name, value in metrics.items():
        is_evaluation = isinstance(value, Mapping) and "values" in value
        if not is_evaluation or evaluation_name not in ("", name):
            continue
        try:
            evaluations[name] = Evaluation.from_dict(value)
        except ValueError as error:
            raise DataError(f"{file}: no evaluations ({error})") from error
    return evaluations


def _audit(folder: Path) -> Side:
    """The audit in a folder: values by row from its scores, estimates from its summary."""
    try:
        audit = Audit.from_dict(loose_json.decode((folder / SUMMARY).read_bytes()))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} holds scores, but no {SUMMARY} that can be read ({reason_of(error)}): audit "
            "again"
        ) from error
    if not audit.finished:
        raise DataError(f"the audit in {folder} has not ended: run the same command again first")
    questions: list[str] = []
    rows: list[int] = []
    values: dict[str, list[float | None]] = {name: [] for name in audit.rows}
    calls: dict[str, list[int]] = {name: [] for name in audit.tools.counts}
    for line in read_scores(folder / SCORES, audit.n + audit.errors):
        if line.error is not None:
            continue
        question = (line.question or "").strip()
        questions.append(question or line.id or f"{NAMELESS}{folder}, row {line.row}")
        rows.append(line.row)
        values_of_row = line.values
        for name, column in values.items():
            column.append(values_of_row.get(name))
        for name, calls_of_tool in calls.items():
            calls_of_tool.append(line.tools.get(name, 0))
    return Side(
        name=folder.resolve().name,
        evaluation=Evaluation(audit.estimates, questions, values, calls, bounds=audit.all_bounds),
        made={name: audit.settings.get(name) for name in MEASURING_SETTINGS},
        rows=rows,
        folder=str(folder),
    )
