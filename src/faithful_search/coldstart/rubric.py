"""Teaching a policy to score search trajectories, and measuring how well it does.

The expert's episodes are good ones. `spoiled` makes a bad one of each by a mistake, and
`WorldRubric` says, by the world's facts, what score each deserves and why. Trajectories that
somebody else scored are read by `scored_file`. Trajectory-level self-evaluation, section 2.2
("Trajectory reward").
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch.random import fork_rng
from transformers import TrainerCallback

from ..errors import ConfigError, DataError
from ..inference.chat import ChatFormat
from ..inference.transformers import TransformersGenerator
from ..rewards import SelfCorrectness, SelfRubric, WorldRubric
from ..rewards.self_rubric import LABEL, RUBRIC, rubric_reply
from ..rewards.world_rubric import explained
from ..text import NameFinder, exact_match
from ..training.processes import gathered
from ..trajectory import Step, Trajectory, read_jsonl
from .plans import UNKNOWN, contains
from .sft import IGNORED

MISTAKES = ("guess", "recite", "invent", "early", "lost", "misread", "silent", "extras")
"""The mistakes that `spoiled` can make."""
REPORT = "evaluator.json"
UNREADABLE = "unreadable"
"""In a report's table: a reply without a score."""


@dataclass(frozen=True)
class Teaching:
    """How a policy is taught to score trajectories.

    Args:
        spoiled: copies of each episode with a mistake in it; the episode itself is scored, too.
        verdicts: share of the scored trajectories whose answer is also compared with the reference.
        held_out: questions whose scored trajectories are not trained on, to measure the evaluator.
        reply_weight: how many times a reply's tokens count in the loss.
    """

    spoiled: int = 2
    verdicts: float = 0.5
    held_out: int = 100
    reply_weight: float = 1.0

    def __post_init__(self) -> None:
        smallest = min(self.spoiled, self.held_out, self.reply_weight)
        if smallest < 0 or not 0 <= self.verdicts <= 1:
            raise ConfigError(
                f"rubric: counts must be at least 0 and verdicts a share in [0, 1], got {self}"
            )

    def split(
        self, scored: Sequence[Trajectory], seed: int
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """The trajectories to train on, and those of `held_out` questions. Raises `ConfigError`
        when none would be left to train on.
        """
        questions = sorted({row.question or "" for row in scored})
        if self.held_out >= len(questions):
            raise ConfigError(
                f"rubric: {self.held_out} questions to hold out, but there are {len(questions)}"
            )
        held_out = set(random.Random(seed).sample(questions, self.held_out))
        to_train = [row for row in scored if row.question not in held_out]
        to_measure = [row for row in scored if row.question in held_out]
        return to_train, to_measure


def scored_episodes(
    episodes: Iterable[Trajectory], teaching: Teaching, names: NameFinder, seed: int
) -> list[Trajectory]:
    """The episodes and their spoiled copies, each with the world's verdict in `meta["rubric"]`."""
    rng = random.Random(f"{seed}:rubric")
    rows: list[Trajectory] = []
    for episode in episodes:
        rows.append(episode)
        for number in range(teaching.spoiled):
            copy = spoiled(episode, rng.choice(MISTAKES), names, rng)
            rows.append(replace(copy, id=f"{episode.id}!{number}"))
    labelled_rows = [labelled(row) for row in rows]
    return [row for row in labelled_rows if LABEL in row.meta]


def labelled(trajectory: Trajectory) -> Trajectory:
    """The trajectory with the world's verdict on it; as it is where the world has none."""
    score = WorldRubric().score(trajectory)
    if score.value is None:
        return trajectory
    label = {"score": score.value, "why": score.why, "error": score.parts["error"]}
    return replace(trajectory, meta={**trajectory.meta, LABEL: label})


def relabelled(trajectory: Trajectory) -> Trajectory:
    """A labelled trajectory whose names were swapped, with the explanation in its new names."""
    label = trajectory.meta[LABEL]
    renamed = {**label, "why": explained(label["error"], trajectory)}
    return replace(trajectory, meta={**trajectory.meta, LABEL: renamed})


def spoiled(episode: Trajectory, mistake: str, names: NameFinder, rng: random.Random) -> Trajectory:
    """A copy of a good episode with a mistake that the rubric knows.

    | mistake | what is different |
    |---|---|
    | guess | answered at once, with any name |
    | recite | answered rightly, before the evidence states it |
    | invent | searched, then answered with any name |
    | early | stopped before the last search, answered with a name that was found |
    | lost | answered with a name of the question |
    | misread | answered with another name of the evidence |
    | silent | answered "unknown" in spite of the evidence |
    | extras | the right answer, and another name |
    """
    all_calls = [step for step in episode.steps if step.call is not None]
    gold = episode.answers[0]
    calls = _calls_before(mistake, all_calls, gold, rng)
    answer = _wrong_answer(mistake, episode, calls, names, rng)
    conclusion = f"So the answer is {answer}."
    # Where all calls are kept, so is the expert's last thought, with the other name in it.
    if mistake in ("misread", "invent"):
        think = episode.steps[-1].think or ""
        is_complete = len(calls) == len(episode.steps) - 1
        if is_complete and contains(think, gold):
            conclusion = think.replace(gold, answer)
    steps = (*calls, Step(conclusion, answer=answer))
    return replace(episode, steps=steps, answer=answer, text="", tokens=None, issues=())


def _calls_before(
    mistake: str, calls: Sequence[Step], gold: str, rng: random.Random
) -> Sequence[Step]:
    """The calls that come before the spoiled answer."""
    if mistake == "guess":
        return []
    if mistake == "recite":
        return _without(gold, calls[: rng.randrange(len(calls) + 1)])
    if mistake == "early":
        count = rng.randint(min(1, len(calls) - 1), len(calls) - 1)
        return _without(gold, calls[:count] or calls[:1])
    return calls


def _wrong_answer(
    mistake: str,
    episode: Trajectory,
    calls: Sequence[Step],
    names: NameFinder,
    rng: random.Random,
) -> str:
    """The answer of a spoiled episode, which has made these calls."""
    gold = episode.answers[0]
    texts: list[str] = []
    for step in calls:
        texts += [f"{passage.title}\n{passage.text}" for passage in step.evidence]
    in_evidence = sorted({*names.find(" ".join(texts))} - {gold})
    in_question = sorted({*names.find(episode.question or "")} - {gold})
    near = in_question if mistake == "lost" else in_evidence
    all_names = sorted(names.names)
    # The same draws are made for every mistake: which of them are used must not change the others.
    other = rng.choice(near or in_question or all_names)
    guess = rng.choice((gold, rng.choice(all_names)))
    invented = rng.choice(all_names)
    extras = rng.choice((f"{gold} and {other}", f"{other}, {gold}", f"{gold} in {other}"))
    answers = {
        "guess": guess,
        "recite": gold,
        "invent": invented,
        "silent": UNKNOWN,
        "extras": extras,
    }
    return answers.get(mistake, other)


def _without(gold: str, calls: Sequence[Step]) -> list[Step]:
    """The calls without the evidence that names the right answer."""
    steps = []
    for step in calls:
        evidence = []
        for passage in step.evidence:
            names_it = contains(passage.text, gold) or contains(passage.title, gold)
            if not names_it:
                evidence.append(passage)
        steps.append(replace(step, evidence=tuple(evidence), spans={}))
    return steps


def scored_file(path: str | Path) -> list[Trajectory]:
    """Trajectories that somebody scored: JSON lines of `Trajectory`, each with `meta["rubric"]` of
    `score` and `why`. Those about questions of the bundled world need no score: its facts give it.
    A row without a score of the rubric or a reference answer is a `DataError`.
    """
    rows: list[Trajectory] = []
    for row in read_jsonl(path):
        rows.append(row if LABEL in row.meta else labelled(row))
    for number, row in enumerate(rows, start=1):
        label = row.meta.get(LABEL)
        is_scored = isinstance(label, dict) and label.get("score") in RUBRIC.values()
        if not is_scored or not row.answers:
            scores = ", ".join(map(str, RUBRIC.values()))
            raise DataError(
                f"{path}, row {number}: expected reference answers, and meta['rubric'] with a "
                f"'score' of {scores} and its reason 'why'"
            )
    return rows


def evaluator_rows(
    scored: Sequence[Trajectory],
    chat: ChatFormat,
    teaching: Teaching,
    seed: int,
    loss_on: str,
    max_length: int | None,
) -> list[dict[str, Any]]:
    """Rows as `coldstart.sft.build_dataset` makes them: what a policy is asked about a labelled
    trajectory, and the reply to learn.
    """
    rng = random.Random(f"{seed}:verdicts")
    ask_for_score = SelfRubric().asker(chat)
    ask_for_comparison = SelfCorrectness().asker(chat)
    examples: list[tuple[list[int], str]] = []  # prompt and reply
    for trajectory in scored:
        label = trajectory.meta[LABEL]
        reply = rubric_reply(label["why"], label["score"])
        examples.append((ask_for_score(trajectory), reply))
        is_of_world = "error" in label
        if is_of_world and trajectory.answer and rng.random() < teaching.verdicts:
            # an answer with extras is not the same: it could list names
            is_right = bool(exact_match(trajectory.answer, trajectory.answers))
            examples.append((ask_for_comparison(trajectory), str(is_right)))
    rows: list[dict[str, Any]] = []
    for prompt, reply in examples:
        reply_ids = chat.encode(reply)
        reply_ids = reply_ids + chat.closing_ids(reply_ids)
        length = len(prompt) + len(reply_ids)
        if max_length is not None and length > max_length:
            continue
        prompt_labels = prompt if loss_on == "all" else [IGNORED] * len(prompt)
        row = {
            "input_ids": prompt + reply_ids,
            "labels": prompt_labels + reply_ids,
            "loss_weights": [1.0] * len(prompt) + [teaching.reply_weight] * len(reply_ids),
            "length": length,
        }
        rows.append(row)
    return rows


@dataclass(frozen=True)
class EvaluatorReport:
    """How well a policy scores trajectories.

    Args:
        n: the number of trajectories that it was asked about.
        unreadable: the share of the replies without a score.
        rmse: the root mean square error of the other scores, in [0, 1]; `None` where there are
            none.
        exact: the share of all trajectories that got exactly their score.
        table: by true score, how often each score was given, "unreadable" included.
    """

    n: int
    unreadable: float
    rmse: float | None
    exact: float
    table: dict[str, dict[str, int]]

    @classmethod
    def of(cls, scored: Sequence[Trajectory], rubric: SelfRubric) -> "EvaluatorReport":
        """Ask a bound `SelfRubric` about labelled trajectories, and compare. Raises `DataError`
        without any.
        """
        if not scored:
            raise DataError("there is no trajectory with a score to compare with: give one or more")
        counts: defaultdict[float, Counter[str]] = defaultdict(Counter)
        squared_errors: list[float] = []
        exact = 0
        for trajectory, score in zip(scored, rubric.score_batch(scored), strict=True):
            true_score = trajectory.meta[LABEL]["score"]
            if score.value is None:
                counts[true_score][UNREADABLE] += 1
                continue
            counts[true_score][str(score.value)] += 1
            squared_errors.append((true_score - score.value) ** 2)
            exact += score.value == true_score
        table = {}
        for true_score in sorted(counts, reverse=True):
            table[str(true_score)] = dict(sorted(counts[true_score].items()))
        n = len(scored)
        rmse = None
        if squared_errors:
            rmse = (sum(squared_errors) / len(squared_errors)) ** 0.5
        return cls(
            n=n,
            unreadable=1 - len(squared_errors) / n,
            rmse=rmse,
            exact=exact / n,
            table=table,
        )

    def lines(self, when: str) -> list[str]:
        """Lines to print; `when` is "before" or "after" training."""
        rmse = "no readable reply" if self.rmse is None else f"RMSE {self.rmse:.3f}"
        lines = [
            f"evaluator {when}: {rmse}, exact {self.exact:.3f}, unreadable {self.unreadable:.3f}, "
            f"n = {self.n}"
        ]
        for true_score, counts in self.table.items():
            lines.append(f"  true {true_score}: {counts}")
        return lines


class EvaluatorCheck(TrainerCallback):
    """Measures the evaluator when supervised training begins and when it is told to, and writes
    `evaluator.json`.
    """

    def __init__(
        self, trainer: Any, scored: Sequence[Trajectory], tokens: int, say: Callable[[str], None]
    ) -> None:
        self.trainer = trainer
        self.scored = scored
        self.say = say
        self.rubric = SelfRubric(reply_tokens=tokens)
        self.path = Path(trainer.args.output_dir) / REPORT

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.global_step:  # a resumed run keeps what its beginning was
            self.measure("before")

    def measure(self, when: str) -> None:
        """Ask about the held-out trajectories, print and write what comes of it. All processes call
        it.
        """
        trainer = self.trainer
        accelerator = trainer.accelerator
        # Replies are sampled: what is drawn for them must not change what is trained.
        with gathered(trainer.model_wrapped, accelerator), accelerator.autocast(), fork_rng():
            if not accelerator.is_main_process:
                return
            model = accelerator.unwrap_model(trainer.model)
            policy = TransformersGenerator(model, trainer.processing_class)
            report = EvaluatorReport.of(self.scored, self.rubric.bind(policy=policy))
        self.say("\n".join(report.lines(when)))
        # "after" joins what "before" wrote; a new run begins the file anew.
        reports = {}
        if self.path.exists() and when == "after":
            reports = json.loads(self.path.read_text(encoding="utf-8"))
        reports[when] = asdict(report)
        self.path.write_text(json.dumps(reports, indent=1), encoding="utf-8")
