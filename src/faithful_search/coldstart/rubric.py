"""Teaching a policy to score search trajectories, with labels from the world's facts, and measuring how well it does.

The expert's episodes are good ones; `spoiled` makes the others out of them, one mistake each, and `WorldRubric` says
what score each deserves and why. Trajectories that somebody else scored are read by `scored_file`. Trajectory-level
self-evaluation, section 2.2 ("Trajectory reward").
"""

import json
import random
from collections import Counter
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
from ..rewards.self_rubric import RUBRIC, rubric_reply
from ..rewards.world_rubric import explained
from ..text import NameFinder, exact_match
from ..training.processes import gathered
from ..trajectory import Step, Trajectory, read_jsonl
from .plans import UNKNOWN, contains
from .sft import IGNORED

LABEL = "rubric"
"""In a trajectory's meta: `{"score": 0.4, "why": "…"}`, and the world's name of the error where it is known."""
MISTAKES = ("guess", "recite", "invent", "early", "lost", "misread", "silent", "extras")
REPORT = "evaluator.json"


@dataclass(frozen=True)
class Teaching:
    spoiled: int = (
        2  # copies of each episode with a mistake in it; the episode itself is scored, too
    )
    verdicts: float = (
        0.5  # share of the scored trajectories whose answer is also compared with the reference
    )
    held_out: int = (
        100  # questions whose scored trajectories are not trained on, to measure the evaluator with
    )
    reply_weight: float = 1.0  # how many times a reply's tokens count in the loss

    def __post_init__(self) -> None:
        if min(self.spoiled, self.held_out, self.reply_weight) < 0 or not 0 <= self.verdicts <= 1:
            raise ConfigError(
                f"rubric: counts must be at least 0 and verdicts a share in [0, 1], got {self}"
            )

    def split(
        self, scored: Sequence[Trajectory], seed: int
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """Those to train on, and those of `held_out` questions. Raises `ConfigError` when none would be left."""
        questions = sorted({item.question or "" for item in scored})
        if self.held_out >= len(questions):
            raise ConfigError(
                f"rubric: {self.held_out} questions to hold out, but there are {len(questions)}"
            )
        aside = {*random.Random(seed).sample(questions, self.held_out)}
        learnt = [item for item in scored if item.question not in aside]
        return learnt, [item for item in scored if item.question in aside]


def scored_episodes(
    episodes: Iterable[Trajectory], teaching: Teaching, names: NameFinder, seed: int
) -> list[Trajectory]:
    """The episodes and their spoiled copies, each with the world's verdict in `meta["rubric"]`."""
    rng, rows = random.Random(f"{seed}:rubric"), list[Trajectory]()
    for episode in episodes:
        copies = [
            spoiled(episode, rng.choice(MISTAKES), names, rng) for _ in range(teaching.spoiled)
        ]
        rows += [
            episode,
            *(replace(copy, id=f"{episode.id}!{number}") for number, copy in enumerate(copies)),
        ]
    return [row for row in map(labelled, rows) if LABEL in row.meta]


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
    return replace(
        trajectory,
        meta={**trajectory.meta, LABEL: {**label, "why": explained(label["error"], trajectory)}},
    )


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
    calls = [step for step in episode.steps if step.call is not None]
    gold = episode.answers[0]
    if mistake == "guess":
        calls = []
    elif mistake == "recite":
        calls = _without(gold, calls[: rng.randrange(len(calls) + 1)])
    elif mistake == "early":
        calls = _without(
            gold, calls[: rng.randint(min(1, len(calls) - 1), len(calls) - 1)] or calls[:1]
        )
    told = " ".join(f"{item.title}\n{item.text}" for step in calls for item in step.evidence)
    found = sorted({*names.find(told)} - {gold})
    own = sorted({*names.find(episode.question or "")} - {gold})
    other = rng.choice((own if mistake == "lost" else found) or own or sorted(names.names))
    answer = {
        "guess": rng.choice((gold, rng.choice(sorted(names.names)))),
        "recite": gold,
        "invent": rng.choice(sorted(names.names)),
        "silent": UNKNOWN,
        "extras": rng.choice((f"{gold} and {other}", f"{other}, {gold}", f"{gold} in {other}")),
    }.get(mistake, other)
    # Where all calls are kept, so is the expert's last thought, with the other name in it.
    think = episode.steps[-1].think or ""
    whole = len(calls) == len(episode.steps) - 1 and contains(think, gold)
    said = (
        think.replace(gold, answer)
        if whole and mistake in ("misread", "invent")
        else f"So the answer is {answer}."
    )
    steps = (*calls, Step(said, answer=answer))
    return replace(episode, steps=steps, answer=answer, text="", tokens=None, issues=())


def _without(gold: str, calls: Sequence[Step]) -> list[Step]:
    steps = []
    for step in calls:
        kept = [
            item
            for item in step.evidence
            if not (contains(item.text, gold) or contains(item.title, gold))
        ]
        steps.append(replace(step, evidence=tuple(kept), spans={}))
    return steps


def scored_file(path: str | Path) -> list[Trajectory]:
    """Trajectories that somebody scored: JSON lines of `Trajectory`, each with `meta["rubric"]` of `score` and `why`.
    Those about questions of the bundled world need no score: its facts give it. A row without a score of the rubric or
    a reference answer is a `DataError`."""
    rows = [row if LABEL in row.meta else labelled(row) for row in read_jsonl(path)]
    for number, row in enumerate(rows, start=1):
        label = row.meta.get(LABEL)
        if (
            not isinstance(label, dict)
            or label.get("score") not in RUBRIC.values()
            or not row.answers
        ):
            wanted = f"meta['rubric'] with a 'score' of {', '.join(map(str, RUBRIC.values()))} and its reason 'why'"
            raise DataError(f"{path}, row {number}: expected reference answers, and {wanted}")
    return rows


def evaluator_rows(
    scored: Sequence[Trajectory],
    chat: ChatFormat,
    teaching: Teaching,
    seed: int,
    loss_on: str,
    max_length: int | None,
) -> list[dict[str, Any]]:
    """Rows as `coldstart.sft.build_dataset` makes them: the question about a trajectory, and the reply to learn."""
    rng = random.Random(f"{seed}:verdicts")
    rate, compare = SelfRubric().asker(chat), SelfCorrectness().asker(chat)
    asked: list[tuple[list[int], str]] = []
    for item in scored:
        label = item.meta[LABEL]
        asked.append((rate(item), rubric_reply(label["why"], label["score"])))
        if "error" in label and item.answer and rng.random() < teaching.verdicts:
            # an answer with extras is not the same: it could list names
            asked.append((compare(item), str(bool(exact_match(item.answer, item.answers)))))
    rows: list[dict[str, Any]] = []
    for prompt, reply in asked:
        own = chat.encode(reply)
        own += chat.closing_ids(own)
        labels = (prompt if loss_on == "all" else [IGNORED] * len(prompt)) + own
        weights = [1.0] * len(prompt) + [teaching.reply_weight] * len(own)
        if max_length is None or len(weights) <= max_length:
            rows.append(
                {
                    "input_ids": prompt + own,
                    "labels": labels,
                    "loss_weights": weights,
                    "length": len(weights),
                }
            )
    return rows


@dataclass(frozen=True)
class EvaluatorReport:
    n: int
    unreadable: float  # share of the replies without a score
    rmse: (
        float | None
    )  # root mean square error of the others' scores, in [0, 1]; `None` where there are none
    exact: float  # share of all trajectories that got exactly their score
    table: dict[
        str, dict[str, int]
    ]  # how often each true score (first key) was given each, "unreadable" included

    @classmethod
    def of(cls, scored: Sequence[Trajectory], rubric: SelfRubric) -> "EvaluatorReport":
        """Ask a bound `SelfRubric` about labelled trajectories, and compare."""
        values = [score.value for score in rubric.score_batch(scored)]
        pairs = [
            (item.meta[LABEL]["score"], value) for item, value in zip(scored, values, strict=True)
        ]
        read = [(true, value) for true, value in pairs if value is not None]
        table = {}
        for true in sorted({true for true, _ in pairs}, reverse=True):
            given = Counter(
                "unreadable" if value is None else str(value) for own, value in pairs if own == true
            )
            table[str(true)] = dict(sorted(given.items()))
        rmse = (
            (sum((true - value) ** 2 for true, value in read) / len(read)) ** 0.5 if read else None
        )
        exact = sum(true == value for true, value in pairs) / len(pairs)
        return cls(len(pairs), 1 - len(read) / len(pairs), rmse, exact, table)

    def lines(self, what: str) -> list[str]:
        rmse = "no readable reply" if self.rmse is None else f"RMSE {self.rmse:.3f}"
        head = f"evaluator {what}: {rmse}, exact {self.exact:.3f}, unreadable {self.unreadable:.3f}, n = {self.n}"
        return [head, *(f"  true {true}: {counts}" for true, counts in self.table.items())]


class EvaluatorCheck(TrainerCallback):
    """Measures the evaluator when supervised training begins and when it is told to, and writes `evaluator.json`."""

    def __init__(
        self, trainer: Any, scored: Sequence[Trajectory], tokens: int, say: Callable[[str], None]
    ) -> None:
        self.trainer, self.scored, self.say = trainer, scored, say
        self.rubric = SelfRubric(reply_tokens=tokens)
        self.path = Path(trainer.args.output_dir) / REPORT

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.global_step:  # a resumed run keeps what its beginning was
            self.measure("before")

    def measure(self, when: str) -> None:
        """Ask about the held-out trajectories, print and write what comes of it. All processes call it."""
        trainer = self.trainer
        # Replies are sampled: what is drawn for them must not change what is trained.
        with (
            gathered(trainer.model_wrapped, trainer.accelerator),
            trainer.accelerator.autocast(),
            fork_rng(),
        ):
            if not trainer.accelerator.is_main_process:
                return
            model = trainer.accelerator.unwrap_model(trainer.model)
            policy = TransformersGenerator(model, trainer.processing_class)
            report = EvaluatorReport.of(self.scored, self.rubric.bind(policy=policy))
        self.say("\n".join(report.lines(when)))
        # "after" joins what "before" wrote; a new run begins the file anew.
        kept = (
            json.loads(self.path.read_text(encoding="utf-8"))
            if self.path.exists() and when == "after"
            else {}
        )
        self.path.write_text(json.dumps({**kept, when: asdict(report)}, indent=1), encoding="utf-8")
