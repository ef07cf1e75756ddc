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

_TEXTS: dict[type, tuple[str, ...]] = {
    Trajectory: ("steps", "question", "answer", "answers"),
    Step: ("think", "call", "evidence", "note", "answer"),
    ToolCall: ("arguments",),
    Evidence: ("title", "text"),
}
_STALE: dict[type, dict[str, Any]] = {
    Trajectory: {"text": "", "tokens": None},
    Step: {"spans": {}},
    ToolCall: {"raw": ""},
    Evidence: {},
}
"""What is no longer true of a changed copy."""


class NameSwapper:
    """Swaps names of a trajectory for others of the same type, one to one and consistently in all of its text.

    Args:
        names: type of every name.
        forbidden: (subject, object) pairs that no swapped evidence may contain together: held-out facts.
        tries: how many draws to make before giving up.

    Example:
        >>> episode = Trajectory(question="Who is Ann's father?", answer="Bob", answers=("Bob",))
        >>> swapper = NameSwapper({"Ann": "woman", "Eve": "woman", "Bob": "man"})
        >>> swapper.swap(episode, random.Random(1)).answer
        'Bob'
    """

    def __init__(self, names: Mapping[str, str], forbidden: Iterable[tuple[str, str]] = (), tries: int = 50) -> None:
        self.finder, self.tries = NameFinder(names), tries
        self._pools: dict[str, list[str]] = defaultdict(list)
        for name, kind in sorted(names.items()):
            self._pools[kind].append(name)
        self._forbidden: dict[str, set[str]] = defaultdict(set)
        for subject, found in forbidden:
            self._forbidden[subject].add(found)
        # A held-out object need not be a name that may be swapped.
        self._stated = NameFinder({**dict.fromkeys(set().union(*self._forbidden.values()), ""), **names})

    def swap(self, trajectory: Trajectory, rng: random.Random, id: str | None = None) -> Trajectory:
        """A copy of `trajectory` about other names, gold answers too; token ids, spans and text are dropped.

        Words that are no known names stay. Raises `DataError` when every draw produced a forbidden pair.
        """
        known: set[str] = set()

        def look(text: str) -> str:
            known.update(self.finder.find(text))
            return text

        _mapped(trajectory, look)
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(known):
            kinds[self.finder.names[name]].append(name)
        for _ in range(self.tries):  # a draw may happen to state a held-out fact
            images: dict[str, str] = {}
            for kind, members in kinds.items():
                images |= zip(members, rng.sample(self._pools[kind], len(members)), strict=True)
            swapped: Trajectory = _mapped(trajectory, partial(self.finder.sub, images.__getitem__))
            if not self.leaks(swapped):
                return msgspec.structs.replace(swapped, id=trajectory.id if id is None else id)
        raise DataError(
            f"trajectory {trajectory.id!r}: {self.tries} draws of names each stated a held-out fact; give more names"
        )

    def leaks(self, trajectory: Trajectory) -> bool:
        """Whether a piece of its evidence holds both subject and object of a forbidden pair."""
        evidence = [item for step in trajectory.steps for item in step.evidence]
        found = (set(self._stated.find(f"{item.title}\n{item.text}")) for item in evidence)
        return any(self._forbidden[subject] & names for names in found for subject in self._forbidden.keys() & names)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every text in it that may hold names changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    if type(value) not in _TEXTS:
        return value
    texts = {name: _mapped(getattr(value, name), change) for name in _TEXTS[type(value)]}
    return msgspec.structs.replace(value, **texts, **_STALE[type(value)])
