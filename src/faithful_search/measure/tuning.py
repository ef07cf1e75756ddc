"""The questions that a policy was trained on, and whether it is measured on some of them.

They stand in `metrics.json`: in that of a training under `settings`, in that of an evaluation under
`tuned_on`, which it copies from the policy's.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

TRAIN = "train"


class TunedOn(msgspec.Struct, frozen=True):
    """Questions that a policy was trained on.

    Attributes:
        questions: as `--questions` names them: a name that is known here, a file or an id on the
            Hub.
        split: of them.
    """

    questions: str
    split: str = TRAIN

    def __str__(self) -> str:
        return f"{self.questions} ({self.split})"


def tuned_on(metrics: Mapping[str, Any]) -> list[TunedOn]:
    """The training questions that the content of a `metrics.json` names; empty where it names none."""
    settings = metrics.get("tuned_on") or metrics.get("settings")
    questions = settings.get("questions") if isinstance(settings, Mapping) else None
    if isinstance(questions, str):
        return [TunedOn(questions)]
    if isinstance(questions, list):
        return [TunedOn(str(name)) for name in questions]
    return []


def measured_on(metrics: Mapping[str, Any]) -> str:
    """The questions of an evaluation or a training's evaluations, as `QUESTIONS/SPLIT`; empty where
    the content of its `metrics.json` does not say.
    """
    script = metrics.get("script")
    settings = metrics.get("settings")
    if isinstance(script, Mapping) and "questions" in script:
        return f"{script['questions']}/{script.get('split', '')}"
    if isinstance(settings, Mapping) and "eval_questions" in settings:
        return f"{settings['eval_questions']}/{settings.get('eval_split', '')}"
    return ""


def remarks(name: str, trained: Sequence[TunedOn], place: str) -> list[str]:
    """A sentence where a side was trained on the questions that it is measured on, a
    `QUESTIONS/SPLIT`.
    """
    questions, _, split = place.rpartition("/")
    sentences = []
    for source in trained:
        if source == TunedOn(questions, split):
            sentences.append(
                f"{name} was trained on {source}, which it is measured on here: its results are "
                "not those of unseen questions."
            )
    return sentences


def one_sided(names: Sequence[str], trained: Sequence[Sequence[TunedOn]]) -> list[str]:
    """A sentence for each side that was trained on questions that the first was not, or the other
    way round.
    """
    first_name, *later_names = names
    first, *later = [set(sources) for sources in trained]
    sentences: list[str] = []
    for name, sources in zip(later_names, later, strict=True):
        sentences += _trained_alone(name, sources - first, first_name)
        sentences += _trained_alone(first_name, first - sources, name)
    return sentences


def _trained_alone(name: str, sources: Collection[TunedOn], other_name: str) -> list[str]:
    """A sentence about the questions that only the side of this name was trained on, if any."""
    if not sources:
        return []
    listed = ", ".join(sorted(map(str, sources)))
    return [f"{name} was trained on {listed}, and {other_name} was not."]
