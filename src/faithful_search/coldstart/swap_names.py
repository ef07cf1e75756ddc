"""Counterfactual copies of an episode: names swapped, so that a policy learns to read instead of
remembering. None may state a held-out fact.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace
from tqdm.auto import tqdm

from ..bundled import world_file
from ..errors import DataError
from ..json_lines import read_rows
from ..tasks import Task, load_tasks
from ..text import NameFinder
from ..trajectory import Evidence, Step, ToolCall, Trajectory

_PARTS: dict[type, tuple[tuple[str, ...], dict[str, Any]]] = {
    Trajectory: (("steps", "question", "answer", "answers"), {"text": "", "tokens": None}),
    Step: (("think", "call", "evidence", "note", "answer"), {"spans": {}}),
    ToolCall: (("arguments",), {"raw": ""}),
    Evidence: (("title", "text"), {}),
}
"""Which fields may hold names, and what is no longer true of a changed copy."""


class NameSwapper:
    """Swaps names of a trajectory for others of the same type, one to one and consistently in all
    of its text. `names` gives the type of every name; `forbidden` are the (subject, object) pairs
    that no swapped evidence may contain together.
    """

    tries: ClassVar[int] = 50
    """How many draws of names are made before a trajectory is given up."""

    def __init__(self, names: Mapping[str, str], forbidden: Iterable[tuple[str, str]] = ()) -> None:
        self.finder = NameFinder(names)
        self._pools: dict[str, list[str]] = defaultdict(list)
        for name, kind in sorted(names.items()):
            self._pools[kind].append(name)
        self._forbidden: dict[str, set[str]] = defaultdict(set)
        for subject, object_ in forbidden:
            self._forbidden[subject].add(object_)
        # A held-out object need not be a name that may be swapped.
        self._stated = NameFinder(
            {**dict.fromkeys(set().union(*self._forbidden.values()), ""), **names}
        )

    def swap(self, trajectory: Trajectory, rng: random.Random, id: str | None = None) -> Trajectory:
        """A copy of `trajectory` about other names, gold answers too; token ids, spans and text are
        dropped. Words that are no known names stay. Raises `DataError` when every draw produced a
        forbidden pair.
        """
        names: set[str] = set()

        def collect(text: str) -> str:
            names.update(self.finder.find(text))
            return text

        _mapped(trajectory, collect)
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(names):
            kinds[self.finder.names[name]].append(name)
        for _ in range(self.tries):  # a draw may happen to state a held-out fact
            images: dict[str, str] = {}
            for kind, members in kinds.items():
                images |= zip(members, rng.sample(self._pools[kind], len(members)), strict=True)
            swapped: Trajectory = _mapped(trajectory, partial(self.finder.sub, images.__getitem__))
            if not self.leaks(swapped):
                return replace(swapped, id=trajectory.id if id is None else id)
        raise DataError(
            f"trajectory {trajectory.id!r}: {self.tries} draws of names each stated a held-out "
            "fact; "
            "give more names"
        )

    def leaks(self, trajectory: Trajectory) -> bool:
        """Whether a passage names subject and object of a forbidden fact together."""
        for passage in trajectory.passages:
            names = set(self._stated.find(f"{passage.title}\n{passage.text}"))
            for subject in self._forbidden.keys() & names:
                if self._forbidden[subject] & names:
                    return True
        return False


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(entry, change) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(entry, change) for entry in value)
    names, stale = _PARTS.get(type(value), ((), {}))
    if not names:
        return value
    parts = {name: _mapped(getattr(value, name), change) for name in names}
    return replace(value, **parts, **stale)


def world_swapper(names: Mapping[str, str]) -> NameSwapper:
    """Swaps these names, but never into a fact that the bundled world holds out."""
    tasks = [task for split in ("validation", "test") for task in load_tasks("world", split)]
    rows = [row for part in ("passages", "triples") for row in world_part(part, train=False)]
    return NameSwapper(names, held_out_facts(tasks, rows))


def world_part(name: str, train: bool = True) -> list[dict[str, Any]]:
    """The world's passages or triples that no held-out question rests on, or the other ones."""
    return [
        row
        for row in read_rows(world_file(f"{name}.jsonl.gz"))
        if (row["split"] == "train") is train
    ]


def swapped_copies(
    trajectories: Sequence[Trajectory],
    swapper: NameSwapper,
    copies: int,
    seed: int = 0,
    progress: bool = False,
) -> list[Trajectory]:
    """`copies` counterfactual versions of each trajectory, drawn afresh; ids get `~1`, `~2`, …
    appended.
    """
    rng = random.Random(seed)
    bar = tqdm(trajectories, "swapping names", unit="episode", disable=not progress)
    return [
        swapper.swap(trajectory, rng, f"{trajectory.id}~{number}")
        for trajectory in bar
        for number in range(1, copies + 1)
    ]


def held_out_facts(
    tasks: Iterable[Task], rows: Iterable[Mapping[str, Any]] = ()
) -> set[tuple[str, str]]:
    """(subject, object) of every fact that swapped evidence may not state: those that the held-out
    questions rest on (`meta["chain"]`), and those of held-out passages (`facts`) and triples.
    """
    held_out: set[tuple[str, str]] = set()
    for task in tasks:
        for fact in task.meta.get("chain", ()):
            held_out.add((fact["subject"], fact["object"]))
    for row in rows:
        facts = row.get("facts") or [(row["subject"], row["relation"], row["object"])]
        held_out.update((subject, object_) for subject, _, object_ in facts)
    return held_out


def check_unseen(trajectories: Iterable[Trajectory], held_out: Collection[str]) -> None:
    """Raise `DataError` if a tool response holds a held-out passage."""
    for trajectory in trajectories:
        texts = {passage.text for passage in trajectory.passages}
        for text in texts.intersection(held_out):
            raise DataError(f"episode {trajectory.id!r} holds the held-out passage {text[:80]!r}")
