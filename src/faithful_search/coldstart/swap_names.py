"""Counterfactual copies of an episode: names swapped, so that a policy learns to read instead of remembering."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from ..errors import DataError
from ..names import NameFinder
from ..trajectory import Evidence, Step, ToolCall, Trajectory

Pairs = Iterable[tuple[str, str]]


class NameSwapper:
    """Swaps names of a trajectory for others of the same type, one to one and consistently in all of its text.

    Args:
        names: type of every name.
        forbidden: (subject, object) pairs that no swapped evidence may contain together: held-out facts.
        tries: how many draws to make before giving up.
    """

    def __init__(self, names: Mapping[str, str], forbidden: Pairs = (), tries: int = 50) -> None:
        self.finder, self.tries = NameFinder(names), tries
        self._pools: dict[str, list[str]] = defaultdict(list)
        for name, kind in sorted(names.items()):
            self._pools[kind].append(name)
        self._forbidden: dict[str, set[str]] = defaultdict(set)
        for subject, found in forbidden:
            self._forbidden[subject].add(found)
        self._stated = NameFinder({**dict.fromkeys(set().union(*self._forbidden.values()), ""), **names})

    def swap(self, trajectory: Trajectory, rng: random.Random, id: str | None = None) -> Trajectory:
        """A copy of `trajectory` about other names, gold answers too; token ids, spans and text are dropped.

        Args:
            trajectory: an episode about known names; all other words stay.
            rng: where the draws come from.
            id: of the copy (default: the same id).

        Raises:
            DataError: when every draw produced a forbidden pair.
        """
        names = sorted({name for text in _texts(trajectory) for name in self.finder.find(text)})
        for _ in range(self.tries):
            image = self._draw(names, rng).__getitem__
            swapped = _mapped(trajectory, partial(self.finder.sub, image))
            if not self.leaks(swapped):
                return msgspec.structs.replace(swapped, id=trajectory.id if id is None else id)
        raise DataError(
            f"trajectory {trajectory.id!r}: {self.tries} draws of names each stated a held-out fact; give more names"
        )

    def leaks(self, trajectory: Trajectory) -> bool:
        """Whether a piece of its evidence holds both subject and object of a forbidden pair."""
        return any(self._leaks(item) for step in trajectory.steps for item in step.evidence)

    def _leaks(self, item: Evidence) -> bool:
        names = set(self._stated.find(f"{item.title}\n{item.text}"))
        return any(self._forbidden[subject] & names for subject in self._forbidden.keys() & names)

    def _draw(self, names: list[str], rng: random.Random) -> dict[str, str]:
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            kinds[self.finder.names[name]].append(name)
        images: dict[str, str] = {}
        for kind, members in kinds.items():
            images |= zip(members, rng.sample(self._pools[kind], len(members)), strict=True)
        return images


def swap_names(
    trajectory: Trajectory, names: Mapping[str, str], rng: random.Random, forbidden: Pairs = ()
) -> Trajectory:
    """One swapped copy of `trajectory`; for many, build a `NameSwapper` once.

    >>> episode = Trajectory(question="Who is Ann's father?", answer="Bob", answers=("Bob",))
    >>> swap_names(episode, {"Ann": "woman", "Eve": "woman", "Bob": "man"}, random.Random(1)).answer
    'Bob'
    """
    return NameSwapper(names, forbidden).swap(trajectory, rng)


def _texts(trajectory: Trajectory) -> list[str]:
    """Every text of the trajectory that a swap rewrites."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    _mapped(trajectory, note)
    return texts


def _mapped(trajectory: Trajectory, change: Callable[[str], str]) -> Trajectory:
    def optional(text: str | None) -> str | None:
        return None if text is None else change(text)

    return msgspec.structs.replace(
        trajectory,
        steps=tuple(_mapped_step(step, change) for step in trajectory.steps),
        question=optional(trajectory.question),
        answer=optional(trajectory.answer),
        answers=tuple(map(change, trajectory.answers)),
        text="",
        tokens=None,
    )


def _mapped_step(step: Step, change: Callable[[str], str]) -> Step:
    return msgspec.structs.replace(
        step,
        think=None if step.think is None else change(step.think),
        call=None if step.call is None else ToolCall(step.call.name, _mapped_value(step.call.arguments, change)),
        evidence=tuple(
            msgspec.structs.replace(item, title=change(item.title), text=change(item.text)) for item in step.evidence
        ),
        note=change(step.note),
        answer=None if step.answer is None else change(step.answer),
        spans={},
    )


def _mapped_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped_value(item, change) for key, item in value.items()}
    return [_mapped_value(item, change) for item in value] if isinstance(value, list | tuple) else value
