"""The base of the `evaluate` modules in `evaluate_metrics/`: trajectories in, one estimate for each result out."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, ClassVar

import evaluate
import msgspec
from datasets import Features, Value

from .. import dialects, judges
from ..errors import ConfigError, DataError
from ..inference.base import Generator
from ..judges import Judge, Writer, prompting
from ..rewards import Reward
from ..tasks import gold_answers
from ..trajectory import Trajectory
from .metrics import WARNING
from .rows import Raw, Reader, Row
from .scores import LINE, Scorer, open_policy
from .settings import How
from .stats import Estimate
from .summary import Audit, summarize

USAGE = (files(__package__) / "metric_usage.txt").read_text("utf-8")
"""What `compute` takes and returns, the same for every module."""
PROOF_OF_USE, VERITAS = (files(__package__) / "metric_papers.bib").read_text("utf-8").split("\n\n")
NO_ROWS = "no predictions to score: predictions is empty"


class TrajectoryMetric(evaluate.Metric):
    """One of `measure.metrics` as an `evaluate` module. A subclass names it and says what it is.

    `USAGE` says what `compute` takes and returns. What is added is kept as it is, in memory: Arrow, where `evaluate`
    keeps it, takes neither messages nor half a character.
    """

    measure: ClassVar[str]  # a name of `measure.metrics`
    about: ClassVar[str]
    returns: ClassVar[str]
    paper: ClassVar[str]  # BibTeX
    example: ClassVar[str] = "predictions=[text], details=True"
    prompts: ClassVar[
        tuple[str, ...]
    ] = ()  # files in `judges/prompts` that a prompted judge may be asked with
    needs_references: ClassVar[bool] = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.num_process > 1:
            raise ConfigError(
                f"{self.measure} is computed in one process: gather the trajectories there"
            )
        self._added: list[tuple[Any, Any, str | None]] = []

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": Value("string"), "references": Value("string")})
        told = USAGE.format(returns=self.returns, name=self.measure, example=self.example)
        return evaluate.MetricInfo(self.about, self.paper, features, told, license="Apache-2.0")

    def add(
        self, *, prediction: Any = None, reference: Any = None, question: Any = None, **plural: Any
    ) -> None:
        """Add one trajectory."""
        # `evaluate.combine` adds single rows under the plural names
        row = {"predictions": prediction, "references": reference, "questions": question} | plural
        self.add_batch(**{name: [value] for name, value in row.items()})

    def add_batch(
        self, *, predictions: Any = None, references: Any = None, questions: Any = None
    ) -> None:
        """Add several trajectories, to be measured by the next `compute()`."""
        if isinstance(predictions, (str, bytes, Mapping, Trajectory)) or not isinstance(
            predictions, Iterable
        ):
            raise ConfigError(
                f"predictions must be a list of trajectories, not one {type(predictions).__name__}"
            )
        rows = list(predictions)
        if not rows:
            raise DataError(NO_ROWS)
        if all(isinstance(row, Mapping) and "role" in row for row in rows):
            raise ConfigError(
                "predictions is one conversation, not a list of them: pass predictions=[messages]"
            )
        columns = [rows]
        for name, column in (("references", references), ("questions", questions)):
            if column is not None and (
                isinstance(column, (str, bytes)) or len(column) != len(rows)
            ):
                raise ConfigError(
                    f"give a list {name}=[…] with one for each of the {len(rows)} predictions"
                )
            columns.append([None] * len(rows) if column is None else column)
        self._added += zip(*columns, strict=True)

    def compute(
        self,
        *,
        predictions: Any = None,
        references: Any = None,
        questions: Any = None,
        dialect: str | None = None,
        fenced: bool = False,
        judge: Judge | str | None = None,
        judge_model: str | None = None,
        judge_url: str | None = None,
        judge_options: Mapping[str, Any] | None = None,
        how: How = "squad",
        policy: Generator | str | os.PathLike[str] | None = None,
        tools: Sequence[str] | None = None,
        details: bool = False,
        **knobs: Any,
    ) -> dict[str, Any]:
        """Measure the trajectories given here and those added before. Raises `DataError` when none can be read, and
        `ConfigError` for settings that do not fit together, and without what this metric needs.
        """
        if predictions is not None:
            self.add_batch(predictions=predictions, references=references, questions=questions)
        given, self._added = self._added, []  # also after an error the next `compute()` begins anew
        if isinstance(judge, str):
            address = {"url": judge_url} if judge_url else {}
            judge = judges.load(judge, judge_model, **(judge_options or {}), **address)
        elif judge_model or judge_url or judge_options:
            raise ConfigError(
                "judge_model, judge_url and judge_options need the judge's kind: judge='endpoint', say"
            )
        elif judge is not None and not isinstance(judge, Judge):
            raise ConfigError(
                f"judge must be a Judge or one of {', '.join(judges.KINDS)}, not {judge!r:.80}"
            )
        if isinstance(policy, (str, os.PathLike)):
            policy = open_policy(str(policy), "a policy")
        scorer = Scorer((self.measure,), judge, how, policy, knobs=knobs)
        if policy is None and any(reward.needs_policy for reward in scorer.rewards.values()):
            asked = "the Generator that wrote the trajectories, its Hub id or directory"
            raise ConfigError(f"{self.measure} measures a model: pass policy=, {asked}")
        rows = _read(given, dialect, fenced)
        if self.needs_references and not any(
            row.trajectory.answers for row in rows if row.trajectory
        ):
            asked = "pass references=[…], one string or list each"
            raise ConfigError(f"{self.measure} compares with gold answers: {asked}")
        written = scorer.score_rows(rows)
        bounds = {name: reward.bounds for name, reward in scorer.rewards.items()}
        found = summarize(map(LINE.decode, written.values()), bounds, tools)
        result: dict[str, Any] = {}
        for name in scorer.rewards:
            result |= _flat(name, found.rows[name], found.n)
        result |= {
            "judge": self._judged_by(scorer.rewards),
            "trajectories": found.n,
            "dialects": found.dialects,
        }
        result |= self.corpus(found)
        told = [{"index": at, **msgspec.json.decode(line)} for at, line in written.items()]
        for own in told:
            del own["row"], own["digest"]  # these are of a row in a file
        result["errors"] = [own for own in told if "error" in own]
        return result | ({"details": told} if details else {})

    def corpus(self, found: Audit) -> dict[str, Any]:
        """Results about all trajectories together; none unless a subclass adds some."""
        return {}

    def _judged_by(self, rewards: Mapping[str, Reward]) -> str | None:
        """The judge's name, as in its verdicts: with the prompts and their versions where it is prompted."""
        judge = next(
            filter(None, (getattr(reward, "judge", None) for reward in rewards.values())), None
        )
        if not isinstance(judge, Writer):
            return judge and judge.name
        return " ".join([judge.name, *(prompting.load(name).id for name in self.prompts)])  # type: ignore[attr-defined]


def tool_figures(found: Audit) -> dict[str, Any]:
    """`tool_calls` and `tool_ratios` by tool over all trajectories, and their normalised `tool_entropy`."""
    entropy = _flat("tool_entropy", found.tools.entropy, found.n)
    return entropy | {"tool_calls": found.tools.counts, "tool_ratios": found.tools.ratios}


def _read(
    given: Sequence[tuple[Any, Any, str | None]], dialect: str | None, fenced: bool
) -> list[Row]:
    """Each prediction as the audit reads a row of a file; a question and answers that are given stand for its own."""
    if not given:
        raise DataError(NO_ROWS)
    if dialect is not None:
        dialects.load(dialect)  # an unknown name is one error, not one for each row
    raws = []
    for at, (prediction, _, _) in enumerate(given):
        whole = (
            msgspec.to_builtins(prediction) if isinstance(prediction, Trajectory) else prediction
        )
        row = {"trajectory": whole} if isinstance(whole, (list, tuple)) else whole
        raws.append(Raw(at, "", json.dumps(row, default=_plain).encode()))
    reader = Reader(dialect, fenced=fenced).beside(raws)
    rows = [reader(raw) for raw in raws]
    if all(row.trajectory is None for row in rows):
        raise DataError(f"none of {len(rows)} predictions can be read; the first: {rows[0].error}")
    for at, (row, (_, reference, question)) in enumerate(zip(rows, given, strict=True)):
        known: dict[str, Any] = {} if reference is None else {"answers": gold_answers(reference)}
        known |= {} if question is None else {"question": question}
        if row.trajectory is not None:
            rows[at] = msgspec.structs.replace(
                row, trajectory=msgspec.structs.replace(row.trajectory, **known)
            )
    return rows


def _plain(value: Any) -> Any:
    """The message objects of client libraries know how to become dictionaries."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    return dict(value) if isinstance(value, Mapping) else str(value)


def _flat(name: str, estimate: Estimate, rows: int) -> dict[str, Any]:
    parts = ("stderr", "low", "high", "n", "not_applicable", "abstained")
    found = {name: estimate.value, **{f"{name}_{part}": getattr(estimate, part) for part in parts}}
    found[f"{name}_not_applicable_share"] = estimate.not_applicable / rows
    return found | (
        {f"{name}_warning": WARNING} if name.endswith("_lexical") and estimate.n else {}
    )
