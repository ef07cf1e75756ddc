"""Compare evaluations of one suite: by question within each set, and over sets by the macro mean and
Wilcoxon's signed-rank test.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from .. import loose_json
from ..errors import ConfigError, DataError
from ..escape import as_line
from ..reading.files import PathLike
from .evaluation import Evaluation, difference
from .metrics import arrow
from .report import MIN_PAIRS, aligned, interval, marked
from .sets import MacroMean, SuiteResults, macro_mean
from .side_names import distinct_names
from .significance import LEVEL, SignedRank, clear_after_holm, signed_rank
from .stats import NOTHING, Estimate
from .tuning import TunedOn, one_sided, tuned_on

RESULTS = "metrics.json"
UNFINISHED = "unfinished"
"""The folder in which an evaluation keeps its rollouts until it ends."""


class SuiteSide(msgspec.Struct, frozen=True):
    """One of the evaluations that are compared.

    Attributes:
        name: what it is called in tables.
        results: of its sets.
        tuned_on: the questions that it was trained on, as far as they are known.
    """

    name: str
    results: SuiteResults
    tuned_on: list[TunedOn] = []


class SuiteComparison(msgspec.Struct, frozen=True):
    """How the later sides differ from the first on the question sets that all of them have.

    Attributes:
        names: what each side is called.
        sets: the names of the sets that all sides have.
        rows: by metric, for each side the estimate of each set, over all questions of the side.
        macro: by metric, for each side the macro mean of these estimates.
        differences: by metric, for each later side and each set its paired difference to the first
            side, over the questions that both have.
        macro_differences: by metric, for each later side the macro mean of these differences.
        wilcoxon: by metric, for each later side the signed-rank test of these differences, of
            which each set gives one.
        notes: sentences about what else may cause a difference.
        tool_calls: for each side and set the number of calls of each tool.
        paired: for each later side and set the number of questions that it shares with the first.
    """

    names: list[str]
    sets: list[str]
    rows: dict[str, list[dict[str, Estimate]]]
    macro: dict[str, list[MacroMean]]
    differences: dict[str, list[dict[str, Estimate]]]
    macro_differences: dict[str, list[MacroMean]]
    wilcoxon: dict[str, list[SignedRank]]
    notes: list[str] = []
    tool_calls: list[dict[str, dict[str, int]]] = []
    paired: list[dict[str, int]] = []

    def table(self) -> list[list[str]]:
        """The cells of a table, header first. A row is a metric: the macro mean of each side, then
        for each later side the macro mean of its paired differences and Wilcoxon's p.
        """
        first_name, *later_names = self.names
        header = ["macro mean", "better", *(f"{name} [95% CI]" for name in self.names)]
        for name in later_names:
            header += [f"{name} − {first_name}", "Wilcoxon over sets"]
        lines = [header]
        after_holm = [self._after_holm(place) for place in range(len(later_names))]
        for metric, means in self.macro.items():
            cells = [metric, arrow(metric), *map(interval, means)]
            for place, change in enumerate(self.macro_differences[metric]):
                cells.append(marked(change, after_holm=metric in after_holm[place]))
                cells.append(str(self.wilcoxon[metric][place]))
            lines.append(cells)
        return lines

    def legend(self) -> list[str]:
        """Sentences below the table."""
        return [
            f"Each set counts alike: {', '.join(self.sets)}. A difference is paired by question "
            f"within each set. * its interval leaves out 0, over at least {MIN_PAIRS} questions; "
            "** also after Holm's correction over the metrics that have a difference.",
            *self._paired(),
            "Wilcoxon's test takes a difference for each set. Its p is exact, two-sided and not "
            "corrected for the number of metrics; n counts sets whose difference is not 0.",
            *self._few_sets(),
            *self.notes,
        ]

    def __str__(self) -> str:
        sentences = map(as_line, self.legend())
        return "\n\n".join([aligned(self.table()), "\n".join(sentences)])

    def _paired(self) -> list[str]:
        """For each later side a sentence with the number of questions that it shares with the
        first, by set.
        """
        first_name, *later_names = self.names
        sentences = []
        for name, questions in zip(later_names, self.paired, strict=True):
            counts = ", ".join(f"{set_name} {count}" for set_name, count in questions.items())
            sentences.append(f"Questions that {first_name} and {name} share: {counts}.")
        return sentences

    def _few_sets(self) -> list[str]:
        """A sentence about tests over so few sets that their p cannot be below 0.05."""
        least_p_by_n: dict[int, float] = {}
        for test in chain.from_iterable(self.wilcoxon.values()):
            if test.n and test.least_p > LEVEL:
                least_p_by_n[test.n] = test.least_p
        if not least_p_by_n:
            return []
        bounds = ", ".join(f"n={n}: {p:.3g}" for n, p in sorted(least_p_by_n.items()))
        return [f"With fewer than six sets p is never below {LEVEL}; its least value is {bounds}."]

    def _after_holm(self, place: int) -> list[str]:
        """The metrics whose macro difference of the later side number `place` is clear after Holm's
        correction over all metrics.
        """
        column = {metric: changes[place] for metric, changes in self.macro_differences.items()}
        return list(clear_after_holm(column))


def open_suites(paths: Sequence[PathLike]) -> list[SuiteSide] | None:
    """Read the evaluations of suites at these paths, which are folders or their `metrics.json`.
    Returns `None` if no path has one.

    Raises `ConfigError` if only some of them have one, if there is only one, or if one is named
    twice; and `DataError` for a file that cannot be read.
    """
    contents = {str(path): _suite_metrics(Path(path)) for path in paths}
    suites = {path: content for path, content in contents.items() if content is not None}
    if not suites:
        return None
    single_sets = [path for path in contents if path not in suites]
    for path in single_sets:
        folder, _, _ = path.partition("#")  # FOLDER#NAME is one evaluation of several in a folder
        _check_finished(Path(folder))
    if single_sets:
        raise ConfigError(
            f"{next(iter(suites))} holds several question sets and {single_sets[0]} does not: compare "
            "suites with suites, or the folder of one set (OUT/SET) with an evaluation of that set"
        )
    if len(suites) < 2:
        raise ConfigError(f"nothing to compare {paths[0]} with: name another evaluation")
    sides = []
    names = _names(list(suites))
    for (path, content), name in zip(suites.items(), names, strict=True):
        try:
            results = SuiteResults.from_dict(content)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        sides.append(SuiteSide(name, results, tuned_on(content)))
    return sides


def _suite_metrics(path: Path) -> Mapping[str, Any] | None:
    """The content of a `metrics.json` that has sets; `None` for anything else."""
    file = path / RESULTS if path.is_dir() else path
    if file.name != RESULTS or not file.is_file():
        return None
    try:
        content = loose_json.decode(file.read_bytes())
    except ValueError as error:
        raise DataError(f"{file}: no results ({error})") from error
    return content if isinstance(content, dict) and "sets" in content else None


def _check_finished(path: Path) -> None:
    """Raise `DataError` for a path without anything, and for the folder of an evaluation that has
    not ended.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if (path / UNFINISHED).exists() and not (path / RESULTS).exists():
        raise DataError(
            f"{path} holds an evaluation that has not ended: run the command that began it with "
            "--resume"
        )


def _names(paths: Sequence[str]) -> list[str]:
    """The names of the folders at these paths, which may be those of their `metrics.json`."""
    folders = []
    for path in paths:
        place = Path(path).resolve()
        folders.append(place.parent if place.name == RESULTS else place)
    return distinct_names(folders)


def compare_suites(sides: Sequence[SuiteSide]) -> SuiteComparison:
    """Compare each later side with the first, on the sets that all sides have.

    Raises `DataError` where they share no set, or no question of one.
    """
    first, *later = sides
    sets = _shared_sets(sides)
    if not sets:
        listed = "; ".join(f"{side.name}: {', '.join(side.results.sets)}" for side in sides)
        raise DataError(f"these suites share no question set ({listed})")
    notes = []
    for side in sides:
        not_shared = [name for name in side.results.sets if name not in sets]
        if not_shared:
            notes.append(f"{side.name} also has {', '.join(not_shared)}, which not all sides have.")
    notes += one_sided([side.name for side in sides], [side.tuned_on for side in sides])
    rows: dict[str, list[dict[str, Estimate]]] = {}
    macro: dict[str, list[MacroMean]] = {}
    differences: dict[str, list[dict[str, Estimate]]] = {}
    macro_differences: dict[str, list[MacroMean]] = {}
    wilcoxon: dict[str, list[SignedRank]] = {}
    for metric in _metrics(sides, sets):
        rows[metric] = [_estimates(side, sets, metric) for side in sides]
        macro[metric] = [macro_mean(estimates) for estimates in rows[metric]]
        differences[metric] = [_changes(first, side, sets, metric) for side in later]
        macro_differences[metric] = [macro_mean(changes) for changes in differences[metric]]
        wilcoxon[metric] = [_wilcoxon(changes) for changes in differences[metric]]
    return SuiteComparison(
        names=[side.name for side in sides],
        sets=sets,
        rows=rows,
        macro=macro,
        differences=differences,
        macro_differences=macro_differences,
        wilcoxon=wilcoxon,
        notes=notes,
        tool_calls=[_tool_calls(side, sets) for side in sides],
        paired=[_shared_questions(first, side, sets) for side in later],
    )


def _shared_sets(sides: Sequence[SuiteSide]) -> list[str]:
    """The names of the sets that all sides have, in the order of the first side."""
    first, *later = sides
    shared = list(first.results.sets)
    for side in later:
        shared = [name for name in shared if name in side.results.sets]
    return shared


def _metrics(sides: Sequence[SuiteSide], sets: Sequence[str]) -> list[str]:
    """The metrics that any side has on any of these sets, each once, in order of appearance."""
    metrics: dict[str, None] = {}
    for side in sides:
        for name in sets:
            metrics |= dict.fromkeys(side.results.sets[name].rows)
    return list(metrics)


def _estimates(side: SuiteSide, sets: Sequence[str], metric: str) -> dict[str, Estimate]:
    """The estimate of a metric on each set."""
    return {name: side.results.sets[name].rows.get(metric, NOTHING) for name in sets}


def _tool_calls(side: SuiteSide, sets: Sequence[str]) -> dict[str, dict[str, int]]:
    """The number of calls of each tool, by set."""
    return {name: side.results.sets[name].calls_by_tool() for name in sets}


def _changes(
    first: SuiteSide, side: SuiteSide, sets: Sequence[str], metric: str
) -> dict[str, Estimate]:
    """The paired difference of a metric on each set; there is none where a side has no mean."""
    changes = {}
    for name in sets:
        before = first.results.sets[name]
        after = side.results.sets[name]
        _check_shared(name, before, after)
        mean_before = before.rows.get(metric, NOTHING).value
        mean_after = after.rows.get(metric, NOTHING).value
        if mean_before is None or mean_after is None:
            changes[name] = NOTHING
        else:
            changes[name] = difference(before, after, metric)
    return changes


def _shared_questions(first: SuiteSide, side: SuiteSide, sets: Sequence[str]) -> dict[str, int]:
    """The number of questions that both sides have, by set."""
    counts = {}
    for name in sets:
        questions_before = set(first.results.sets[name].questions)
        counts[name] = len(questions_before.intersection(side.results.sets[name].questions))
    return counts


def _check_shared(name: str, before: Evaluation, after: Evaluation) -> None:
    if not set(before.questions) & set(after.questions):
        raise DataError(
            f"{name}: the two evaluations share no question; measure both with the same --limit "
            "and suite"
        )


def _wilcoxon(changes: Mapping[str, Estimate]) -> SignedRank:
    """Wilcoxon's test of the sets' differences, without sets that have none."""
    values = [change.value for change in changes.values()]
    return signed_rank([value for value in values if value is not None])
