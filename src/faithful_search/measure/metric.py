"""The base of the `evaluate` modules in `evaluate_metrics/`: trajectories in, one estimate for each result out."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import evaluate
import msgspec
from datasets import Features, Value

from .. import dialects, judges
from ..errors import ConfigError, DataError, FaithfulSearchError
from ..inference.base import Generator
from ..judges import Judge, Writer, prompting
from ..rewards import Reward, Score
from ..trajectory import Trajectory
from . import metrics
from .behaviour import tool_counts, tool_ratios
from .evaluation import entropy_estimate, mean_of
from .report.asks import WARNING
from .scoring import open_policy, shown
from .settings import How
from .stats import Estimate

ARGUMENTS = """
Args:
    predictions: trajectories. Each is a text, a list of chat messages, a `Trajectory` or its JSON.
    references: the gold answers of each, one string or a list of strings. Only `answer_correctness` needs them.
    questions: the question of each, where the trajectory does not hold it.
    dialect: how the trajectories are written; detected row by row when left out.
    fenced: whether our own engine wrote the texts (`Trajectory.text` of a rollout): then what was escaped in tool
        responses is given back, and the environment's notes are not taken for evidence.
    judge: a `Judge`, or its kind: "lexical", "embedding", "nli", "generator" or "endpoint".
    judge_model: the judge's model, a Hub id, a directory, or the name a server knows it by.
    judge_url: the server of an "endpoint" judge.
    judge_options: further settings of the judge, a dictionary.
    how: the normaliser of compared answers, "squad" or "pokee".
    policy: the agent itself, for `evidence_sensitivity`: a `Generator`, or a model's Hub id or directory.
    tools: names of the tools that were available, for `tool_use`; those that were called when left out.
    details: whether to add a list with the value, the reason and the parts of every trajectory.
    knobs: fields of the rewards behind the metric, by name: `soft=True`, `evidence="retrieved"`, `budget=2`,
        `snippets=[…]`; a name that the metric does not have is an error that lists those it has.
"""
"""The arguments of `compute`, the same for every module."""
RESULTS = """
Returns:
    A dictionary: {returns}
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained, and NAME_warning where words are compared; and once judge,
    trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("{name}")
    >>> metric.compute({example})  # doctest: +SKIP
"""
"""What `compute` returns, the same for every module."""
PROOF_OF_USE = """\
@article{ma2025proofofuse,
  title  = {Proof-of-Use: Mitigating Tool-Call Hacking in Deep Research Agents},
  author = {Ma, Shengjie and Deng, Chenlong and Mao, Jiaxin and Huang, Jiadeng and Wang, Teng and Wu, Junjie and
            Zhang, Changwang and Wang, Jun},
  year   = {2025}
}
"""
VERITAS = """\
@article{veritas2025,
  title  = {Beyond Correctness: Rewarding Faithful Reasoning in Retrieval-Augmented Generation},
  note   = {VERITAS: Verifying Entailed Reasoning through Intermediate Traceability in Agentic Search},
  year   = {2025}
}
"""
NO_ROWS = "no predictions to score: predictions is empty"


class TrajectoryMetric(evaluate.Metric):
    """One of `measure.metrics` as an `evaluate` module. A subclass names it and says what it is.

    `compute` takes `ARGUMENTS` and returns `RESULTS`. `trajectories` is how many were scored, `dialects` how many of
    each, `errors` has an `{"index", "error"}` for every prediction that could not be read and was left out; with
    `details` there is also a list `details`, one entry for each prediction in order.
    """

    measure: ClassVar[str]  # a name of `measure.metrics`
    about: ClassVar[str]
    returns: ClassVar[str]
    paper: ClassVar[str]  # BibTeX
    example: ClassVar[str] = "predictions=[text], details=True"
    prompts: ClassVar[tuple[str, ...]] = ()  # files in `judges/prompts` that a prompted judge may be asked with
    needs_references: ClassVar[bool] = False

    def _info(self) -> evaluate.MetricInfo:
        """The module's description. Its features are strings, because `compute` serialises whatever it is given."""
        features = Features({"predictions": Value("string"), "references": Value("string")})
        told = RESULTS.format(returns=self.returns, name=self.measure, example=self.example)
        return evaluate.MetricInfo(self.about, self.paper, features, ARGUMENTS + told, license="Apache-2.0")

    def add(self, *, prediction: Any = None, reference: Any = None, question: Any = None, **plural: Any) -> None:
        """Add one trajectory, to be measured by the next `compute()`."""
        # `evaluate.combine` adds single rows under the plural names
        prediction, reference = plural.pop("predictions", prediction), plural.pop("references", reference)
        question = plural.pop("questions", question)
        super().add(prediction=_packed(prediction, question), reference=_golds(reference, "the reference"), **plural)

    def add_batch(
        self, *, predictions: Any = None, references: Any = None, questions: Any = None, **other: Any
    ) -> None:
        """Add several trajectories, to be measured by the next `compute()`."""
        rows = _listed(predictions)
        answers, asked = _beside(references, rows, "references"), _beside(questions, rows, "questions")
        packed = [_packed(row, question) for row, question in zip(rows, asked, strict=True)]
        golds = [_golds(answer, f"references[{index}]") for index, answer in enumerate(answers)]
        super().add_batch(predictions=packed, references=golds, **other)

    def compute(
        self, *, predictions: Any = None, references: Any = None, questions: Any = None, **settings: Any
    ) -> dict[str, Any] | None:
        """Measure the trajectories given here and those added before.

        Raises:
            DataError: when there is no trajectory, or none that can be read.
            ConfigError: for settings that do not fit together, and without what this metric needs.
        """
        if predictions is not None:
            self.add_batch(predictions=predictions, references=references, questions=questions)
        outcome = super().compute(**settings)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def corpus(self, trajectories: Sequence[Trajectory], tools: Sequence[str] | None) -> dict[str, Any]:
        """Results about all trajectories together; none unless a subclass adds some."""
        return {}

    def _compute(self, *, predictions: Any, references: Any, **settings: Any) -> dict[str, Any] | FaithfulSearchError:
        # raised in here, an error would leave evaluate's temporary files locked: `compute` raises it
        try:
            return self._measure(list(predictions), list(references), **settings)
        except FaithfulSearchError as error:
            return error

    def _measure(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        *,
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
        if dialect is not None:
            dialects.load(dialect)  # an unknown name is one error, not one for each row
        rewards = metrics.load(self.measure, _judge(judge, judge_model, judge_url, judge_options or {}), how, **knobs)
        rows = list(zip(predictions, references, strict=True))
        # rows that several dialects could have written are read as the one that most others are written in
        usual = None if dialect else dialects.usual(_read(*row, fenced) for row in rows)
        read = [_read(*row, fenced, dialect, usual) for row in rows]
        kept = [item for item in read if isinstance(item, Trajectory)]
        if not kept:
            raise DataError(f"none of {len(read)} predictions can be read; the first: {read[0]}" if read else NO_ROWS)
        if self.needs_references and not any(item.answers for item in kept):
            raise ConfigError(
                f"{self.measure} compares with gold answers: pass references=[…], one string or list each"
            )
        if any(reward.needs_policy for reward in rewards.values()):
            rewards = self._bound(rewards, policy)
        scores = {name: reward.score_batch(kept) for name, reward in rewards.items()}
        result: dict[str, Any] = {}
        for name, reward in rewards.items():
            column = [reward.measure(score) for score in scores[name]]
            result |= _flat(name, mean_of(column, scores[name], _questions(kept), reward.bounds), len(kept))
        written = Counter(item.dialect or "unnamed" for item in kept)
        result |= {"judge": self._judged_by(rewards), "trajectories": len(kept), "dialects": dict(written)}
        result |= self.corpus(kept, tools)
        result["errors"] = [{"index": at, "error": item} for at, item in enumerate(read) if isinstance(item, str)]
        if details:
            by_row = iter(zip(*scores.values(), strict=True))
            result["details"] = [
                {"index": at, "error": item} if isinstance(item, str) else _details(at, item, rewards, next(by_row))
                for at, item in enumerate(read)
            ]
        return result

    def _bound(self, rewards: Mapping[str, Reward], policy: Any) -> dict[str, Reward]:
        if policy is None:
            raise ConfigError(
                f"{self.measure} measures a model: pass policy=, the Generator that wrote the trajectories, its Hub id "
                "or directory"
            )
        if isinstance(policy, (str, os.PathLike)):
            policy = open_policy(str(policy), "a policy")
        return {result: reward.bind(policy=policy) for result, reward in rewards.items()}

    def _judged_by(self, rewards: Mapping[str, Reward]) -> str | None:
        """The judge's name, as in its verdicts: with the prompts and their versions where it is prompted."""
        found = [getattr(reward, "judge", None) for reward in rewards.values()]
        judge = next((judge for judge in found if judge is not None), None)
        if not isinstance(judge, Writer):
            return judge and judge.name
        return " ".join([judge.name, *(prompting.load(name).id for name in self.prompts)])  # type: ignore[attr-defined]


def tool_figures(trajectories: Sequence[Trajectory], tools: Sequence[str] | None = None) -> dict[str, Any]:
    """`tool_calls` and `tool_ratios` by tool over all trajectories, and their normalised `tool_entropy`."""
    counts = tool_counts(trajectories)
    names = sorted(counts) if tools is None else list(tools)
    table = {name: [tool_counts([item])[name] for item in trajectories] for name in names}
    entropy = _flat("tool_entropy", entropy_estimate(table, _questions(trajectories)), len(trajectories))
    return entropy | {"tool_calls": dict(counts.most_common()), "tool_ratios": tool_ratios(counts, names)}


def _listed(predictions: Any) -> list[Any]:
    if isinstance(predictions, (str, bytes, Mapping, Trajectory)) or not isinstance(predictions, Iterable):
        raise ConfigError(f"predictions must be a list of trajectories, not one {type(predictions).__name__}")
    rows = list(predictions)
    if not rows:
        raise DataError(NO_ROWS)
    if all(isinstance(row, Mapping) and "role" in row for row in rows):
        raise ConfigError("predictions is one conversation, not a list of them: pass predictions=[messages]")
    return rows


def _beside(column: Any, rows: Sequence[Any], name: str) -> list[Any]:
    if column is None:
        return [None] * len(rows)
    if isinstance(column, (str, bytes)) or len(column) != len(rows):
        found = "one string" if isinstance(column, (str, bytes)) else f"{len(column)} {name}"
        raise ConfigError(f"{found} for {len(rows)} predictions: give a list {name}=[…] with one for each")
    return list(column)


def _packed(prediction: Any, question: str | None) -> str:
    """A row as ASCII: Arrow takes no lone surrogates. What cannot be written down becomes the row's error."""
    try:
        if isinstance(prediction, Trajectory):
            prediction = prediction.to_json()
        elif not isinstance(prediction, (str, Mapping, list, tuple)):
            raise TypeError(f"a prediction is text, chat messages or a Trajectory, not {type(prediction).__name__}")
        elif isinstance(prediction, Mapping):
            prediction = json.dumps(dict(prediction), default=_plain)
        return json.dumps({"prediction": prediction, "question": question}, default=_plain)
    except (TypeError, ValueError) as error:
        return json.dumps({"error": str(error)})


def _plain(value: Any) -> Any:
    """The message objects of client libraries know how to become dictionaries."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _golds(reference: Any, where: str) -> str:
    golds = [reference] if isinstance(reference, str) else reference
    if golds is not None:
        golds = list(golds) if isinstance(golds, Iterable) else [golds]
        if not all(isinstance(gold, str) for gold in golds):
            raise ConfigError(f"{where} must be a string or a list of strings, not {reference!r:.80}")
    return json.dumps(golds)


def _read(
    packed: str, golds: str, fenced: bool, dialect: str | None = None, usual: str | None = None
) -> Trajectory | str:
    """The trajectory of a row, or why there is none."""
    row, answers = json.loads(packed), json.loads(golds)
    if "error" in row:
        return row["error"]
    try:
        trajectory = dialects.parse(row["prediction"], dialect, row["question"], fenced=fenced, usual=usual)
    except FaithfulSearchError as error:
        return str(error)
    return trajectory if answers is None else msgspec.structs.replace(trajectory, answers=tuple(answers))


def _judge(judge: Judge | str | None, model: str | None, url: str | None, options: Mapping[str, Any]) -> Judge | None:
    if isinstance(judge, str):
        return judges.load(judge, model, **options, **({"url": url} if url else {}))
    if model or url or options:
        raise ConfigError("judge_model, judge_url and judge_options need the judge's kind: judge='endpoint', say")
    if judge is not None and not isinstance(judge, Judge):
        raise ConfigError(f"judge must be a Judge or one of {', '.join(judges.KINDS)}, not {judge!r:.80}")
    return judge


def _questions(trajectories: Sequence[Trajectory]) -> list[str]:
    """What makes rollouts belong together; one without a question stands for itself."""
    return [(item.question or "").strip() or f"#{number}" for number, item in enumerate(trajectories)]


def _flat(name: str, estimate: Estimate, rows: int) -> dict[str, Any]:
    parts = ("stderr", "low", "high", "n", "not_applicable", "abstained")
    found = {name: estimate.value, **{f"{name}_{part}": getattr(estimate, part) for part in parts}}
    found[f"{name}_not_applicable_share"] = estimate.not_applicable / rows
    return found | ({f"{name}_warning": WARNING} if name.endswith("_lexical") and estimate.n else {})


def _details(index: int, item: Trajectory, rewards: Mapping[str, Reward], scores: Sequence[Score]) -> dict[str, Any]:
    own = {name: shown(reward, score) for (name, reward), score in zip(rewards.items(), scores, strict=True)}
    issues = dict(Counter(issue.kind for issue in item.all_issues()))
    read_as = {"id": item.id, "question": item.question, "answer": item.answer, "dialect": item.dialect}
    return {"index": index, **read_as, "scores": own, "issues": issues}
