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

_FIELDS_WITH_NAMES: dict[type, tuple[str, ...]] = {
    Trajectory: ("steps", "question", "answer", "answers"),
    Step: ("think", "call", "evidence", "note", "answer"),
    ToolCall: ("arguments",),
    Evidence: ("title", "text"),
}
_EMPTIED_FIELDS: dict[type, dict[str, Any]] = {
    Trajectory: {"text": "", "tokens": None},
    Step: {"spans": {}},
    ToolCall: {"raw": ""},
}
"""What a copy about other names has in the fields that are true of the original alone."""


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
        types_of_all = dict(names)
        for subject, objects in self._forbidden.items():
            for name in (subject, *objects):
                types_of_all.setdefault(name, "")
        self._finder_of_facts = NameFinder(types_of_all)

    def swap(self, trajectory: Trajectory, rng: random.Random, id: str | None = None) -> Trajectory:
        """A copy of `trajectory` about other names, gold answers too; token ids, spans and text are
        dropped. Words that are no known names stay, and a name may be drawn for itself. Raises
        `DataError` when every draw produced a forbidden pair.
        """
        names: set[str] = set()

        def collect(text: str) -> str:
            names.update(self.finder.find(text))
            return text

        _with_texts_changed(trajectory, collect)
        by_type: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(names):
            by_type[self.finder.names[name]].append(name)
        for _ in range(self.tries):  # a draw may happen to state a held-out fact
            new_names: dict[str, str] = {}
            for type_, old in by_type.items():
                drawn = rng.sample(self._names_of_type[type_], len(old))
                new_names |= zip(old, drawn, strict=True)
            rename = partial(self.finder.sub, new_names.__getitem__)
            swapped: Trajectory = _with_texts_changed(trajectory, rename)
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


def _with_texts_changed(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a trajectory, or of what stands in one, with every text in it changed that may hold
    names.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _with_texts_changed(entry, change) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_texts_changed(entry, change) for entry in value)
    kind = type(value)
    if kind not in _FIELDS_WITH_NAMES:
        return value
    changed = dict(_EMPTIED_FIELDS.get(kind, {}))
    for name in _FIELDS_WITH_NAMES[kind]:
        changed[name] = _with_texts_changed(getattr(value, name), change)
    return replace(value, **changed)


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
    subjects_and_objects: set[tuple[str, str]] = set()
    for task in tasks:
        for fact in task.meta.get("chain", ()):
            subjects_and_objects.add((fact["subject"], fact["object"]))
    for row in rows:
        # a passage states several facts, a triple is one
        facts = row["facts"] if "facts" in row else [(row["subject"], None, row["object"])]
        for subject, _, object_ in facts:
            subjects_and_objects.add((subject, object_))
    return subjects_and_objects


def check_unseen(trajectories: Iterable[Trajectory], held_out_texts: Collection[str]) -> None:
    """Raise `DataError` if a tool response holds one of these passages."""
    for trajectory in trajectories:
        texts = {passage.text for passage in trajectory.passages}
        for text in texts.intersection(held_out_texts):
            raise DataError(f"episode {trajectory.id!r} holds the held-out passage {text[:80]!r}")
