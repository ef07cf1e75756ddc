"""An audit (`write`) or a comparison (`write_comparison`) as an HTML page.

The figures stand at the top. Below them are trajectories, step by step with their scores and
reasons, or the questions that differ. `fields` has what is shown of a trajectory; the demo uses it,
too.

A page is a single file that loads nothing and needs no server. Everything that an agent or a tool
wrote is untrusted: it is escaped, and a content security policy lets only the page's own script
run.
"""

import base64
import hashlib
import math
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from ... import __version__
from ...citations import Referent, read_answer
from ...escape import printable
from ...judges.lexical import pieces
from ...reading.files import PathLike
from ...rewards import Score
from ...rewards.citation import CHECKS
from ...rewards.citation_returned import different
from ...rewards.format import TRANSCRIPT
from ...trajectory import ToolCall, Trajectory
from ..comparison import Comparison, Side, changes
from ..metrics import about, arrow, asks
from ..scores import read_scores
from ..stats import Estimate
from ..summary import Audit
from ..writing import write_whole
from . import RIGHT, extremes, interval, meaning, sentences, telling

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"
BINS = 20
"""The number of bars in a histogram."""
PAGE = 10_000_000
"""The largest number of characters in all texts of a page."""
LOW, HIGH = 0.5, 0.999
"""Scores below `LOW` are marked as low, and those above `HIGH` as high."""
OPEN = 1_500
"""The largest number of characters of a text that are shown."""
FOLDED = 20_000
"""The largest number of characters of a text that are folded after those."""
ROW = 200_000
"""The largest number of characters in all texts of a row."""
MOST = 100
"""The largest number of steps of a row, and of entries of any kind at a step."""
_LINE = 1_000  # the largest number of characters in a name


def write(
    path: PathLike, audit: Audit, scores: PathLike, rollouts: Iterable[tuple[int, Trajectory]]
) -> Path:
    """Write the page of an audit.

    Args:
        path: of the page.
        audit: its figures.
        scores: its `scores.jsonl`.
        rollouts: the trajectories to show, with the numbers of their rows.

    Returns `path`. Raises `DataError` when the scores cannot be read, or the page cannot be
    written.
    """
    trajectories = dict(rollouts)
    values, scores_by_row = _scores(scores, audit, trajectories)
    limits = dict.fromkeys((*audit.rows, *values), (0.0, 1.0))
    limits["calls"] = (0.0, math.inf)
    limits |= audit.bounds
    examples: dict[str, str] = {}
    for trajectory in trajectories.values():
        for issue in trajectory.all_issues():
            examples[issue.kind] = issue.why
    first = telling(audit)
    characters = min(ROW, PAGE // max(1, len(trajectories)))  # of a row
    shown = []
    for row, trajectory in trajectories.items():
        scores_of_row = scores_by_row.get(row, {})
        shown.append(fields(row, trajectory, scores_of_row, characters, first))
    source = Path(str(audit.settings.get("source", "trajectories")))
    return render(
        path,
        "audit.html",
        audit=audit,
        title=source.name,
        sentences=_sentences_with_views(audit),
        bars={name: _scale(estimate, limits[name]) for name, estimate in audit.rows.items()},
        first=first,
        others=[name for name in audit.rows if name not in first],
        histograms=[_histogram(name, column, limits[name]) for name, column in values.items()],
        examples=examples,
        lower=[name for name in audit.rows if about(name).direction < 0],
        rollouts=shown,
    )


def _scores(
    path: PathLike, audit: Audit, shown: Collection[int]
) -> tuple[Mapping[str, Sequence[float]], dict[int, dict[str, Score]]]:
    """The values of all rows by metric, and the scores of the rows that are shown, by row and
    metric.
    """
    values: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    scores_by_row: dict[int, dict[str, Score]] = {}
    for line in read_scores(path, audit.n + audit.errors):
        for name, cell in line.scores.items():
            if cell.value is not None:
                values[name].append(cell.value)
        if line.row in shown:
            scores_by_row[line.row] = {name: cell.score for name, cell in line.scores.items()}
    return values, scores_by_row


def _sentences_with_views(audit: Audit) -> list[tuple[str, dict[str, str | None] | None]]:
    """The sentences about an audit, each with how the page's script orders the rows for it; `None`
    for a sentence without a metric.
    """
    best, worst = extremes(audit) or (None, None)
    right = next((name for name in audit.rows if name.startswith(RIGHT)), None)
    views = {
        "Right": {"metric": right, "order": "worst"},
        "Best": {"metric": best, "order": "best"},
        "Worst": {"metric": worst, "order": "worst"},
    }
    pairs = []
    for sentence in sentences(audit):
        first_word, _, _ = sentence.partition(":")
        pairs.append((sentence, views.get(first_word)))
    return pairs


def write_comparison(path: PathLike, comparison: Comparison, sides: Sequence[Side]) -> Path:
    """Write the page of a comparison. Questions link to their rows in the reports of the audits,
    where there are any.
    """
    reports: list[str | None] = []  # the address of each side's report, seen from the page
    for side in sides:
        report = Path(side.folder) / REPORT
        address = None
        if side.rows and report.is_file():
            address = quote(Path(os.path.relpath(report, Path(path).parent)).as_posix())
        reports.append(address)
    return render(
        path,
        "comparison.html",
        comparison=comparison,
        header=comparison.table()[0],
        summaries=[_summary(comparison, place) for place in range(len(comparison.shared))],
        rows=[_compared(comparison, metric) for metric in comparison.rows],
        changed={metric: changes(sides, metric) for metric in comparison.rows},
        reports=reports,
    )


def _summary(comparison: Comparison, place: int) -> dict[str, Any]:
    """The clear differences between the later side number `place` and the first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for word, clear_changes in comparison.clear(place).items():
        groups[word] = []
        for metric, change in clear_changes.items():
            groups[word].append((metric, interval(change, sign=True)))
    return {
        "title": comparison.title(place),
        "groups": groups,
        "unclear": comparison.unclear(place),
    }


def _compared(comparison: Comparison, metric: str) -> dict[str, Any]:
    """A line of the table: each estimate and each difference as text and as a bar. All bars of the
    line have one scale.
    """
    estimates = comparison.rows[metric]
    low, high = _common_scale(estimates)
    width = high - low
    differences = []
    for place, change in enumerate(comparison.differences[metric]):
        cell = {
            "text": comparison.marked(metric, place),
            "bar": _scale(change, (-width, width)),
            "meaning": meaning(metric, change),
        }
        differences.append(cell)
    return {
        "name": metric,
        "arrow": arrow(metric),
        "sides": [(interval(estimate), _scale(estimate, (low, high))) for estimate in estimates],
        "differences": differences,
    }


def _common_scale(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """The limits 0 and 1, or further apart where an estimate or an interval is outside of them."""
    ends = [0.0, 1.0]
    for estimate in estimates:
        for end in (estimate.value, estimate.low, estimate.high):
            if end is not None:
                ends.append(end)
    return min(ends), max(ends)


def digest(source: str) -> str:
    """The digest by which the page's security policy allows a style or script."""
    sha256 = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(sha256).decode()}"


def render(path: PathLike, template: str, **values: Any) -> Path:
    """Write a page from a template of `page_files/`. Raises `DataError` when it cannot be written."""
    templates = environment(arrow=arrow, asks=asks, digest=digest, file=_page_file)
    page = templates.get_template(template)
    text = page.render(version=__version__, date=date.today().isoformat(), **values)
    # Half a surrogate pair has no form in UTF-8
    return write_whole(Path(path), text.encode("utf-8", "replace"))


def _scale(estimate: Estimate, limits: tuple[float, float]) -> list[float] | None:
    """The places of the interval's low end, its high end and the mean between the limits, from 0 to
    1; `None` where there is no value or no scale.
    """
    lowest, highest = limits
    width = highest - lowest
    if estimate.value is None or not math.isfinite(width):
        return None
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    places = [(end - lowest) / width for end in (low, high, estimate.value)]
    return [min(1.0, max(0.0, place)) for place in places]


def _histogram(name: str, column: Sequence[float], limits: tuple[float, float]) -> dict[str, Any]:
    """The histogram of a metric. `bins` has the bars that are not empty: number, beginning, end,
    and count of values.
    """
    low, high = limits
    if not math.isfinite(low):
        low = min(column)
    if not math.isfinite(high):
        high = max(*column, low + 1)
    step = (high - low) / BINS
    counts: Counter[int] = Counter()
    for value in column:
        place = int((value - low) / step)
        counts[min(BINS - 1, max(0, place))] += 1
    bins = []
    for place, count in sorted(counts.items()):
        bins.append((place, low + place * step, low + (place + 1) * step, count))
    return {
        "name": name,
        "n": len(column),
        "most": max(counts.values()),
        "bins": bins,
        "low": low,
        "high": high,
    }


@cache  # it keeps the templates that it has compiled
def environment(**filters: Callable[..., Any]) -> "Environment":
    """The templates of `page_files/`, with further filters. They escape everything but our own
    style and script, and spell out control characters and those that change the direction of
    writing.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    templates = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_finalized,
        loader=FunctionLoader(_page_file),
    )
    templates.filters |= {"line": _line, **filters}
    return templates


def _finalized(value: Any) -> Any:
    """A text without characters that cannot be shown; markup, a subclass of `str`, as it is."""
    return printable(value) if type(value) is str else value


def _page_file(name: str) -> str:
    return (files(__package__) / "page_files" / name).read_text("utf-8")


def fields(
    row: int | None,
    trajectory: Trajectory,
    scores: Mapping[str, Score],
    most: int = ROW,
    first: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What `rollout.html` shows of a trajectory.

    Args:
        row: its number on a page of several trajectories.
        trajectory: the trajectory.
        scores: by metric.
        most: the largest number of characters in all its texts.
        first: the metrics whose scores stand at the head, by default all.
    """
    text = _TextBudget(most)
    applicable: dict[str, Score] = {}
    not_applicable: dict[str, Score] = {}
    for name, score in scores.items():
        if score.value is not None or score.parts.get("abstained"):
            applicable[name] = score
        else:
            not_applicable[name] = score
    chips = []
    other_chips = []
    for name, score in applicable.items():
        if first is None or name in first:
            chips.append(_chip(name, score))
        else:
            other_chips.append(_chip(name, score))
    issues = trajectory.all_issues()
    return {
        "row": row,
        "trajectory": trajectory,
        "question": text(trajectory.question or "(no question)"),
        "issues": sum(issue.kind not in TRANSCRIPT for issue in issues),
        "kinds": sorted({issue.kind for issue in issues})[:MOST],
        "values": {name: score.value for name, score in scores.items()},
        "chips": chips,
        "others": other_chips,
        "reasons": _reasons(applicable),
        "left_out": _reasons(not_applicable),
        "steps": list(_steps(trajectory, text, _marks(scores), row)),
        "most": MOST,
    }


class _TextBudget:
    """Cuts the texts of a row, so that together they have no more than `characters`."""

    def __init__(self, characters: int) -> None:
        self.left = characters

    def __call__(self, text: str, reference: str | None = None) -> dict[str, Any]:
        """The pieces of a text that are shown and those that are folded, and how many characters
        are left out. With a `reference` text, words that it lacks are marked.
        """
        beginning = text[: min(OPEN + FOLDED, self.left)]
        self.left -= len(beginning)
        return {
            "shown": _pieces(beginning[:OPEN], reference),
            "folded": _pieces(beginning[OPEN:], reference),
            "left_out": len(text) - len(beginning),
        }


def _pieces(text: str, reference: str | None) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it is marked."""
    if reference is not None:
        return pieces(text, reference)
    return [(text, False)] if text else []


def _steps(
    trajectory: Trajectory,
    text: _TextBudget,
    marks: Mapping[int, list[Any]],
    row: int | None,
) -> Iterator[dict[str, Any]]:
    """What is shown of each step. Words that stand neither in the question nor in the evidence up
    to the step are marked.
    """
    returned = set(trajectory.evidence)
    cited = {name for step in trajectory.steps for name in step.refs}
    reading = read_answer(trajectory)
    sources = different(reading)
    for source in sources:
        cited.update(passage.evidence.id for passage in source.passages)
    citations = "\n".join(reading.text[cut.start : cut.end] for cut in reading.cuts)
    last_answer = _last_answer(trajectory)
    text_so_far = trajectory.question or ""
    has_evidence = False
    for number, step in enumerate(trajectory.steps[:MOST], start=1):
        # Before the first evidence every word would be marked
        reference = text_so_far if has_evidence else None
        think = call = answer = None
        if step.think is not None:
            think = text(step.think.strip(), reference)
        if step.call is not None and step.call.name:
            call = text(arguments_of(step.call))
        if step.answer is not None:
            with_citations = f"{reference}\n{citations}" if reference else reference
            answer = text(step.answer, with_citations)
        step_sources = sources[:MOST] if number == last_answer else []
        yield {
            "number": number,
            "step": step,
            # An id that was never returned is made up, and shown as such
            "refs": [(name[:_LINE], name in returned) for name in step.refs[:MOST]],
            "think": think,
            "call": call,
            "answer": answer,
            "sources": [_linked(row, source) for source in step_sources],
            "evidence": [
                (passage, passage.id in cited, text(passage.text))
                for passage in step.evidence[:MOST]
            ],
            "note": text(step.note),
            "marks": marks.get(number, [])[:MOST],
        }
        has_evidence = has_evidence or bool(step.evidence)
        passages = [f"{passage.title}\n{passage.text}" for passage in step.evidence]
        text_so_far = "\n".join([text_so_far, *passages, step.note])


def _last_answer(trajectory: Trajectory) -> int:
    """The number of the last step with an answer; 0 where there is none."""
    number_of_last = 0
    for number, step in enumerate(trajectory.steps, start=1):
        if step.answer is not None:
            number_of_last = number
    return number_of_last


def _linked(row: int | None, source: Referent) -> dict[str, Any]:
    """A source that the answer cites: its name, and the titles of its passages with their anchors
    on the page, which are empty for passages that are not shown.
    """
    places = []
    for passage in source.passages[:MOST]:
        anchor = ""
        if row is not None and passage.step <= MOST and passage.place <= MOST:
            anchor = f"row-{row}-step-{passage.step}-passage-{passage.place}"
        places.append((passage.evidence.title or passage.evidence.id, anchor))
    return {"name": source.name, "places": places}


def _line(text: object) -> str:
    line = str(text)
    if len(line) <= _LINE:
        return line
    return f"{line[:_LINE]} … ({len(line) - _LINE:,} characters more)"


def _chip(name: str, score: Score) -> dict[str, str]:
    """A score at the head of a trajectory. `level` is "low", "high" or empty."""
    if score.value is None:
        return {"name": name, "shown": "abstained", "level": ""}
    direction = about(name).direction
    quality = 1 - score.value if direction < 0 else score.value
    level = ""
    if direction and quality < LOW:
        level = "low"
    elif direction and quality > HIGH:
        level = "high"
    return {"name": name, "shown": f"{score.value:.2f}", "level": level}


def _reasons(scores: Mapping[str, Score]) -> dict[str, list[str]]:
    """Each reason with the metrics that gave it, without reasons that object to nothing."""
    reasons: dict[str, list[str]] = {}
    for name, score in scores.items():
        if score.why and score.why != about(name).clean:
            reasons.setdefault(score.why, []).append(name)
    return reasons


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call as text: only the query where there is nothing else."""
    if not call.arguments:
        return call.raw
    query = call.arguments.get("query")
    if len(call.arguments) == 1 and isinstance(query, str):
        return query
    return msgspec.json.encode(call.arguments).decode()


def _marks(scores: Mapping[str, Score]) -> dict[int, list[dict[str, Any]]]:
    """What the scores say of each step, by its number: the verdicts on pairs, the checks of the
    agent's own verdicts, and the steps that count against a metric or were probed.
    """
    marks: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for name, score in scores.items():
        marks_of_score = chain(_pair_marks(score), _check_marks(score), _step_marks(score))
        for step, entry in marks_of_score:
            mark = {"metric": name, "level": "", "p": None, "claim": "", "why": ""}
            marks[step].append(mark | entry)
    return dict(marks)


def _pair_marks(score: Score) -> Iterator[tuple[int, dict[str, Any]]]:
    """The judge's verdicts on pairs."""
    claims = score.parts.get("texts", ())
    for place, pair in enumerate(score.parts.get("pairs", ())):
        label = pair.get("label")
        p = pair.get("p")
        entry: dict[str, Any] = {
            "shown": "abstained",
            "claim": claims[place] if len(claims) > 1 else "",
            "why": pair.get("why") or "",
        }
        if label is not None:
            entry["shown"] = "upheld" if label else "not upheld"
            entry["level"] = "yes" if label else "no"
            entry["p"] = p
            if p is not None:
                entry["shown"] += f" ({p:.2f})"
        yield pair.get("step", 0), entry


def _check_marks(score: Score) -> Iterator[tuple[int, dict[str, Any]]]:
    """The checks of the agent's own verdicts. The first step has none, since nothing was returned
    before it.
    """
    columns = [score.parts.get(check, ()) for check in CHECKS]
    for step, passed in enumerate(zip(*columns, strict=True), start=2):
        failed = [check for check, ok in zip(CHECKS, passed, strict=True) if not ok]
        entry = {
            "shown": f"not {', '.join(failed)}" if failed else "holds",
            "level": "no" if failed else "yes",
            "p": sum(passed) / len(passed),
        }
        yield step, entry


def _step_marks(score: Score) -> Iterator[tuple[int, dict[str, Any]]]:
    """The steps that count against the metric, as numbers, or that were probed with other
    evidence.
    """
    for step in score.parts.get("steps", ()):
        if isinstance(step, int):
            yield step, {"shown": "counts against it", "level": "no"}
        else:
            change = f"p(yes) {step['q']:.2f}, with changed evidence {step['q_perturbed']:.2f}"
            yield step["step"], {"shown": change}
