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
        self._names_of_type: defaultdict[str, list[str]] = defaultdict(list)
        for name, type_ in sorted(names.items()):
            self._names_of_type[type_].append(name)
        self._forbidden: defaultdict[str, set[str]] = defaultdict(set)  # objects by subject
        for subject, object_ in forbidden:
            self._forbidden[subject].add(object_)
        # Neither the subject nor the object of a held-out fact need be a name that may be swapped
        of_facts = self._forbidden.keys() | set().union(*self._forbidden.values())
        self._finder_of_facts = NameFinder({**dict.fromkeys(of_facts, ""), **names})

    def swap(self, trajectory: Trajectory, rng: random.Random, id: str | None = None) -> Trajectory:
        """A copy of `trajectory` about other names, gold answers too; token ids, spans and text are
        dropped. Words that are no known names stay, and a name may be drawn for itself. Raises
        `DataError` when every draw produced a forbidden pair.
        """
        names: set[str] = set()

        def collect(text: str) -> str:
            names.update(self.finder.find(text))
            return text

        _mapped(trajectory, collect)
        by_type: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(names):
            by_type[self.finder.names[name]].append(name)
        for _ in range(self.tries):  # a draw may happen to state a held-out fact
            new_names: dict[str, str] = {}
            for type_, old in by_type.items():
                drawn = rng.sample(self._names_of_type[type_], len(old))
                new_names |= zip(old, drawn, strict=True)
            rename = partial(self.finder.sub, new_names.__getitem__)
            swapped: Trajectory = _mapped(trajectory, rename)
            if not self.leaks(swapped):
                return replace(swapped, id=trajectory.id if id is None else id)
        raise DataError(
            f"trajectory {trajectory.id!r}: {self.tries} draws of names each stated a held-out "
            "fact; give more names"
        )

    def leaks(self, trajectory: Trajectory) -> bool:
        """Whether a passage names subject and object of a forbidden fact together."""
        for passage in trajectory.passages:
            names = set(self._finder_of_facts.find(f"{passage.title}\n{passage.text}"))
            for subject in self._forbidden.keys() & names:
                if self._forbidden[subject] & names:
                    return True
        return False


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of the value with every text in it that may hold names changed."""
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
    tasks = [*load_tasks("world", "validation"), *load_tasks("world", "test")]
    rows = [*world_part("passages", train=False), *world_part("triples", train=False)]
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
    swapped = []
    for trajectory in tqdm(trajectories, "swapping names", unit="episode", disable=not progress):
        for number in range(1, copies + 1):
            swapped.append(swapper.swap(trajectory, rng, f"{trajectory.id}~{number}"))
    return swapped


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
        # a passage states several facts, a triple is one
        facts = row["facts"] if "facts" in row else [(row["subject"], None, row["object"])]
        for subject, _, object_ in facts:
            held_out.add((subject, object_))
    return held_out


def check_unseen(trajectories: Iterable[Trajectory], held_out: Collection[str]) -> None:
    """Raise `DataError` if a tool response holds a held-out passage."""
    for trajectory in trajectories:
        texts = {passage.text for passage in trajectory.passages}
        for text in texts.intersection(held_out):
            raise DataError(f"episode {trajectory.id!r} holds the held-out passage {text[:80]!r}")
