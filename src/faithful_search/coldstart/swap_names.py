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

# For each type of value, the fields that may hold names; and the fields that are wrong in a copy
# about other names, with what they are in it
_PARTS: dict[type, tuple[tuple[str, ...], dict[str, Any]]] = {
    Trajectory: (("steps", "question", "answer", "answers"), {"text": "", "tokens": None}),
    Step: (("think", "call", "evidence", "note", "answer"), {"spans": {}}),
    ToolCall: (("arguments",), {"raw": ""}),
    Evidence: (("title", "text"), {}),
}


class NameSwapper:
    """Swaps names of a trajectory for others of the same type, one to one and consistently in all
    of its text.

    Args:
        names: every name, with its type.
        forbidden: pairs of subject and object that no swapped passage may name together.
    """

    tries: ClassVar[int] = 50
    """How often names are drawn before a trajectory is given up."""

    def __init__(self, names: Mapping[str, str], forbidden: Iterable[tuple[str, str]] = ()) -> None:
        self.finder = NameFinder(names)
        self._names_of_type: dict[str, list[str]] = defaultdict(list)
        for name, name_type in sorted(names.items()):
            self._names_of_type[name_type].append(name)
        self._forbidden: dict[str, set[str]] = defaultdict(set)  # by subject, the objects
        for subject, object_ in forbidden:
            self._forbidden[subject].add(object_)
        # Also finds the forbidden objects, which need not be names that may be swapped.
        objects = set().union(*self._forbidden.values())
        self._finder_of_forbidden = NameFinder({**dict.fromkeys(objects, ""), **names})

    def swap(self, trajectory: Trajectory, rng: random.Random, id: str | None = None) -> Trajectory:
        """A copy of `trajectory` about other names, also in its gold answers. Words that are no
        known names stay. Token ids, spans and text are dropped.

        Args:
            id: that of the copy; `None` keeps the trajectory's.

        Raises:
            DataError: every draw produced a forbidden pair.
        """
        names_in_it: set[str] = set()

        def collect(text: str) -> str:
            names_in_it.update(self.finder.find(text))
            return text

        _mapped(trajectory, collect)
        by_type: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(names_in_it):
            by_type[self.finder.names[name]].append(name)
        for _ in range(self.tries):
            new_names: dict[str, str] = {}
            for name_type, names in by_type.items():
                drawn = rng.sample(self._names_of_type[name_type], len(names))
                new_names |= zip(names, drawn, strict=True)
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
            text = f"{passage.title}\n{passage.text}"
            names = set(self._finder_of_forbidden.find(text))
            for subject in self._forbidden.keys() & names:
                if self._forbidden[subject] & names:
                    return True
        return False


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a trajectory, or of a part of one, with `change` applied to all of its texts."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(entry, change) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(entry, change) for entry in value)
    if type(value) not in _PARTS:
        return value
    names, wrong_fields = _PARTS[type(value)]
    changed_fields = {name: _mapped(getattr(value, name), change) for name in names}
    return replace(value, **changed_fields, **wrong_fields)


def world_swapper(names: Mapping[str, str]) -> NameSwapper:
    """Swaps these names, but never into a fact that the bundled world holds out."""
    tasks: list[Task] = []
    for split in ("validation", "test"):
        tasks += load_tasks("world", split)
    rows = [*world_part("passages", train=False), *world_part("triples", train=False)]
    return NameSwapper(names, held_out_facts(tasks, rows))


def world_part(name: str, train: bool = True) -> list[dict[str, Any]]:
    """The world's `passages` or `triples`.

    Args:
        train: those on which no held-out question rests; `False`: the other ones.
    """
    rows = read_rows(world_file(f"{name}.jsonl.gz"))
    return [row for row in rows if (row["split"] == "train") is train]


def swapped_copies(
    trajectories: Sequence[Trajectory],
    swapper: NameSwapper,
    copies: int,
    seed: int = 0,
    progress: bool = False,
) -> list[Trajectory]:
    """`copies` of each trajectory, each about other names; their ids get `~1`, `~2`, … appended."""
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
        facts = row.get("facts") or [(row["subject"], row["relation"], row["object"])]
        held_out.update((subject, object_) for subject, _, object_ in facts)
    return held_out


def check_unseen(trajectories: Iterable[Trajectory], held_out: Collection[str]) -> None:
    """Raise `DataError` if a tool response holds a held-out passage."""
    for trajectory in trajectories:
        texts = {passage.text for passage in trajectory.passages}
        for text in texts.intersection(held_out):
            raise DataError(f"episode {trajectory.id!r} holds the held-out passage {text[:80]!r}")
