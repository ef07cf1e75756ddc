"""`TrajectoryMetric`, the base of the modules for `evaluate` in `evaluate_metrics/`.

```
predictions, references, questions ─ Reader ─> Row, … ─ RowScorer ─> Line, … ─ summarize ─> Audit
```
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, ClassVar

import evaluate
import msgspec
from datasets import Features, Value

from .. import dialects, judges
from ..columns import answers as gold_answers
from ..errors import ConfigError, DataError
from ..inference.base import Generator
from ..judges import Judge, Writer, prompting
from ..reading.rows import Raw, Reader, Row
from ..rewards import Reward
from ..trajectory import Trajectory
from .metrics import warning
from .scores import LINE, RowScorer, open_policy
from .settings import How
from .stats import Estimate
from .summary import Audit, summarize

USAGE = (files(__package__) / "metric_usage.txt").read_text("utf-8")
"""The description of what `compute` takes and returns, which all modules share."""
PROOF_OF_USE, VERITAS = (files(__package__) / "metric_papers.bib").read_text("utf-8").split("\n\n")
NO_ROWS = "no predictions to score: predictions is empty"


class TrajectoryMetric(evaluate.Metric):
    """A metric of `measure.metrics` as a module for `evaluate`.

    `USAGE` describes what `compute` takes and returns. Predictions that are added are kept in
    memory, as they are: Arrow, where `evaluate` keeps them, takes neither messages nor half a
    surrogate pair.

    Class attributes that a subclass sets:
        measure: the name in `measure.metrics`.
        about: the description of the module.
        returns: the description of its results.
        paper: BibTeX.
        example: the arguments of `compute` in the description.
        prompts: files in `judges/prompts` that a prompted judge may be asked with.
        needs_references: whether `compute` needs gold answers.
    """

    measure: ClassVar[str]
    about: ClassVar[str]
    returns: ClassVar[str]
    paper: ClassVar[str]
    example: ClassVar[str] = "predictions=[text], details=True"
    prompts: ClassVar[tuple[str, ...]] = ()
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
        usage = USAGE.format(returns=self.returns, name=self.measure, example=self.example)
        return evaluate.MetricInfo(self.about, self.paper, features, usage, license="Apache-2.0")

    def add(
        self, *, prediction: Any = None, reference: Any = None, question: Any = None, **plural: Any
    ) -> None:
        """Add one trajectory."""
        # `evaluate.combine` adds single rows under the plural names
        row = {"predictions": prediction, "references": reference, "questions": question}
        row |= plural
        self.add_batch(**{name: [value] for name, value in row.items()})

    def add_batch(
        self, *, predictions: Any = None, references: Any = None, questions: Any = None
    ) -> None:
        """Add several trajectories, which the next `compute()` measures."""
        is_one = isinstance(predictions, (str, bytes, Mapping, Trajectory))
        if is_one or not isinstance(predictions, Iterable):
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
        references = _column("references", references, len(rows))
        questions = _column("questions", questions, len(rows))
        self._added += zip(rows, references, questions, strict=True)

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
        how: How = "unicode",
        policy: Generator | str | os.PathLike[str] | None = None,
        tools: Sequence[str] | None = None,
        details: bool = False,
        **knobs: Any,
    ) -> dict[str, Any]:
        """Measure these trajectories and those that were added before.

        Raises `DataError` when none of them can be read, and `ConfigError` for settings that do not
        fit together, or that lack what this metric needs.
        """
        if predictions is not None:
            self.add_batch(predictions=predictions, references=references, questions=questions)
        # Emptied now, so that the next `compute()` begins anew after an error, too
        added = self._added
        self._added = []
        judge = _judge(judge, judge_model, judge_url, judge_options)
        if isinstance(policy, (str, os.PathLike)):
            policy = open_policy(str(policy), "a policy")
        scorer = RowScorer((self.measure,), judge, how, policy, knobs=knobs)
        if policy is None and any(reward.needs_policy for reward in scorer.rewards.values()):
            raise ConfigError(
                f"{self.measure} measures a model: pass policy=, the Generator that wrote the "
                "trajectories, its Hub id or directory"
            )
        rows = _read(added, dialect, fenced)
        has_golds = any(row.trajectory.answers for row in rows if row.trajectory)
        if self.needs_references and not has_golds:
            raise ConfigError(
                f"{self.measure} compares with gold answers: pass references=[…], one string or "
                "list each"
            )
        lines = scorer.score_rows(rows)
        bounds = {name: reward.bounds for name, reward in scorer.rewards.items()}
        audit = summarize(map(LINE.decode, lines.values()), bounds, tools)
        result: dict[str, Any] = {}
        for name in scorer.rewards:
            result |= _flat(name, audit.rows[name], audit.n)
        result |= {
            "judge": self._judged_by(scorer.rewards),
            "trajectories": audit.n,
            "evidence_in_text": audit.in_text,
            "dialects": audit.dialects,
        }
        result |= self.corpus(audit)
        records = [{"index": at, **msgspec.json.decode(line)} for at, line in lines.items()]
        for record in records:
            del record["row"], record["digest"]  # which say where a row lies in a file
        result["errors"] = [record for record in records if "error" in record]
        if details:
            result["details"] = records
        return result

    def corpus(self, audit: Audit) -> dict[str, Any]:
        """Results about all trajectories together. A subclass may add some."""
        return {}

    def _judged_by(self, rewards: Mapping[str, Reward]) -> str | None:
        """The name of the judge as in its verdicts, with its prompts and their versions if it has
        any; `None` if no judge is asked.
        """
        # `Correctness` has a judge, too, without being a JudgedReward
        judges_of_rewards = [vars(reward).get("judge") for reward in rewards.values()]
        judge = next((judge for judge in judges_of_rewards if judge is not None), None)
        if judge is None:
            return None
        if not isinstance(judge, Writer):
            return str(judge.name)
        prompts = [prompting.load(name).id for name in self.prompts]
        return " ".join([judge.name, *prompts])


def tool_figures(audit: Audit) -> dict[str, Any]:
    """Over all trajectories, the calls of each tool (`tool_calls`), their shares (`tool_ratios`)
    and the normalised entropy of the shares (`tool_entropy`).
    """
    entropy = _flat("tool_entropy", audit.tools.entropy, audit.n)
    return entropy | {"tool_calls": audit.tools.counts, "tool_ratios": audit.tools.ratios}


def _column(name: str, column: Any, rows: int) -> Sequence[Any]:
    """A column of the arguments of `add_batch`, with one entry for each row."""
    if column is None:
        return [None] * rows
    if isinstance(column, (str, bytes)) or len(column) != rows:
        raise ConfigError(f"give a list {name}=[…] with one for each of the {rows} predictions")
    return list(column)


def _judge(
    judge: Judge | str | None,
    model: str | None,
    url: str | None,
    options: Mapping[str, Any] | None,
) -> Judge | None:
    """The judge that the arguments of `compute` name."""
    if isinstance(judge, str):
        address = {"url": url} if url else {}
        return judges.load(judge, model, **(options or {}), **address)
    if model or url or options:
        raise ConfigError(
            "judge_model, judge_url and judge_options need the judge's kind: judge='endpoint', say"
        )
    if judge is not None and not isinstance(judge, Judge):
        raise ConfigError(
            f"judge must be a Judge or one of {', '.join(judges.names())}, not {judge!r:.80}"
        )
    return judge


def _read(
    added: Sequence[tuple[Any, Any, str | None]], dialect: str | None, fenced: bool
) -> list[Row]:
    """The predictions, read as an audit reads the rows of a file. Their references and questions
    replace those that the rows hold. Raises `DataError` when none can be read.
    """
    if not added:
        raise DataError(NO_ROWS)
    if dialect is not None:
        dialects.load(dialect)  # checked here, so that an unknown name is one error
    raws = []
    for number, (prediction, _, _) in enumerate(added):
        if isinstance(prediction, Trajectory):
            prediction = msgspec.to_builtins(prediction)
        elif isinstance(prediction, (list, tuple)):
            prediction = {"trajectory": prediction}
        raws.append(Raw(number, "", json.dumps(prediction, default=_plain).encode()))
    reader = Reader(dialect, fenced=fenced).beside(raws)
    rows = [reader(raw) for raw in raws]
    if all(row.trajectory is None for row in rows):
        raise DataError(f"none of {len(rows)} predictions can be read; the first: {rows[0].error}")
    for number, (_, reference, question) in enumerate(added):
        row = rows[number]
        if row.trajectory is None:
            continue
        fields: dict[str, Any] = {}
        if reference is not None:
            fields["answers"] = gold_answers(reference)
        if question is not None:
            fields["question"] = question
        trajectory = msgspec.structs.replace(row.trajectory, **fields)
        rows[number] = msgspec.structs.replace(row, trajectory=trajectory)
    return rows


def _plain(value: Any) -> Any:
    """A value that JSON has no form for, such as a message of a client library, as one that it
    has.
    """
    if hasattr(value, "model_dump"):  # pydantic, which such messages are made of
        return value.model_dump(exclude_none=True)
    return dict(value) if isinstance(value, Mapping) else str(value)


def _flat(name: str, estimate: Estimate, rows: int) -> dict[str, Any]:
    """The fields of an estimate over so many rows, under names of their own."""
    values: dict[str, Any] = {
        name: estimate.value,
        f"{name}_stderr": estimate.stderr,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_n": estimate.n,
        f"{name}_not_applicable": estimate.not_applicable,
        f"{name}_abstained": estimate.abstained,
        f"{name}_not_applicable_share": estimate.not_applicable / rows,
    }
    if estimate.n and warning(name):
        values[f"{name}_warning"] = warning(name)
    return values
