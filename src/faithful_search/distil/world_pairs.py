"""Information-think pairs of the bundled world whose labels are known by construction.

Experts play the questions in Search-R1's form; each response with the thought after it is a true pair, and gives one
false pair with the same response. A pair is true if the thought states what the response says about the current need,
or says that the response does not have it.

| false pair | the thought |
|---|---|
| `name` | states the finding with another name of the same type, from the evidence if it has one |
| `claim` | states a finding that the evidence lacks |
| `denial` | says that the evidence lacks what it holds |
| `unsaid` | goes on as if nothing had been read |
| `other` | states what another episode found |
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from .. import dialects
from ..bundled import bundled_json, world_file
from ..coldstart.experts import (
    CONCLUDE,
    DONE,
    FIRST,
    GIVE_UP,
    NEXT,
    REWORD,
    UNSAID,
    Habits,
    run_experts,
)
from ..coldstart.plans import Hop, Plan, contains, plan_all, planner_for
from ..coldstart.swap_names import world_swapper
from ..errors import DataError
from ..judges import Pair
from ..measure.agreement.labelled import Labelled, Split
from ..rewards import InfoThink
from ..tasks import load_tasks, read_rows
from ..text import NameFinder, normalize
from ..tools.local_search import LocalSearch
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, Step, Trajectory

SOURCE, QUESTIONS, DIALECT = "world", "world_passages", "search_r1"
HABITS = Habits(wrong_tool=0.0, dropped=0.15, nothing=0.03, blind=0.06, shuffled=0.5)
SPLITS: dict[str, Split] = {"train": "train", "validation": "heldout", "test": "heldout"}
_DENIES = ("Nothing on ", "This does not give ")


def world_pairs(seed: int = 0, limit: int | None = None, swap: bool = True) -> list[Labelled]:
    """As many true as false pairs; the same for the same arguments.

    Those of validation and test questions are held out: no fact is on both sides. `limit` is the most episodes of each
    split. With `swap` the names of training pairs are replaced by others of their type, so that a judge learns to read
    instead of remembering.
    """
    names = bundled_json("world/names.json")
    maker = _Maker(names, seed)
    rows = [row for split in SPLITS for row in maker.rows(split, limit)]
    return _swapped(rows, names, seed) if swap else rows


class _Read(NamedTuple):
    """A response and the thought after it; the agent was looking for `hop`, and `following` comes next."""

    pair: Pair
    hop: Hop
    following: Hop | None
    answer: str
    found: bool


class _Maker:
    def __init__(self, names: Mapping[str, str], seed: int) -> None:
        self.names, self.seed = names, seed
        self.finder = NameFinder(names)
        self.passages = list(read_rows(world_file("passages.jsonl.gz")))
        self.facts = {tuple(fact) for row in self.passages for fact in row["facts"]}
        self.kinds: dict[str, list[str]] = defaultdict(list)
        for name, kind in sorted(names.items()):
            self.kinds[kind].append(name)

    def rows(self, split: str, limit: int | None) -> list[Labelled]:
        plans, _ = plan_all(load_tasks(QUESTIONS, split, limit), planner_for("world"))
        corpus = [row for row in self.passages if split != "train" or row["split"] == "train"]
        dialect = dialects.load(DIALECT)
        search = replace(
            LocalSearch.from_corpus(corpus, top_k=3), name=dialect.search_tool or "search"
        )
        with Toolbox([search]) as toolbox:
            played = run_experts(plans, toolbox, dialect, HABITS, self.seed)
        read = [
            own for plan, one in zip(plans, played, strict=True) for own in _read(plan, one.episode)
        ]
        self.others = [own for own in read if own.found]
        made: list[Labelled] = []
        for number, own in enumerate(read):
            id, pair = f"{split}:{number}", own.pair
            rng = random.Random(f"{self.seed} {id}")
            makers = (
                (self._name, self._denial, self._unsaid, self._other)
                if own.found
                else (self._claim, self._other)
            )
            maker = rng.choices(makers, weights=(3, 2, 2, 1) if own.found else (3, 1))[0]
            group = hashlib.sha256(normalize(pair.question, "pokee").encode()).hexdigest()[:16]
            texts = pair.premise, pair.hypothesis, pair.question
            true = Labelled(
                f"{SOURCE}:{id}:true", *texts, True, SOURCE, SPLITS[split], group, "info_think"
            )
            kind, said = maker.__name__.removeprefix("_"), maker(own, rng)
            made += [
                true,
                msgspec.structs.replace(
                    true, id=f"{SOURCE}:{id}:{kind}", hypothesis=said, label=False
                ),
            ]
        return made

    def _others_of_its_type(self, hop: Hop, names: Iterable[str]) -> list[str]:
        """Names of the type of what was found with which the hop's fact is wrong."""
        fit = {
            name
            for name in names
            if self.names[name] == self.names.get(hop.object) and name != hop.subject
        }
        return [name for name in sorted(fit) if (hop.subject, hop.relation, name) not in self.facts]

    def _name(self, own: _Read, rng: random.Random) -> str:
        found = own.hop.object
        every = self.kinds[self.names.get(found, "")]
        pool = self.finder.find(own.pair.premise) if rng.random() < 0.5 else every
        fit = [name for name in self._others_of_its_type(own.hop, pool) if name != found]
        return own.pair.hypothesis.replace(found, rng.choice(fit or every))

    def _claim(self, own: _Read, rng: random.Random) -> str:
        hop = own.hop
        near = self.finder.find(own.pair.premise) if rng.random() < 0.5 else ()
        said = rng.choice(self._others_of_its_type(hop, near) or [hop.object])
        found = f"The {hop.relation} of {hop.subject} is {said}."
        if own.following is not None:
            return rng.choice(NEXT).format(found=found, need=own.following.need)
        return rng.choice(DONE if contains(found, own.answer) else CONCLUDE).format(
            found=found, answer=own.answer
        )

    def _denial(self, own: _Read, rng: random.Random) -> str:
        return rng.choice((*REWORD, *GIVE_UP)).format(need=own.hop.need)

    def _unsaid(self, own: _Read, rng: random.Random) -> str:
        if own.following is None:
            return rng.choice((*UNSAID, rng.choice(FIRST).format(need=own.hop.need)))
        return rng.choice(FIRST).format(need=rng.choice((own.hop, own.following)).need)

    def _other(self, own: _Read, rng: random.Random) -> str:
        """What another episode found and this evidence does not state."""
        for _ in range(50):
            other = rng.choice(self.others)
            if (
                not contains(own.pair.premise, other.hop.subject)
                and other.pair.question != own.pair.question
            ):
                return other.pair.hypothesis
        raise DataError(f"no thought of another episode fits the question {own.pair.question!r}")


def _read(plan: Plan, episode: Trajectory) -> list[_Read]:
    """The episode's pairs with the hop of each thought; thoughts without a recognisable hop are left out."""
    found = []
    for asked in InfoThink().pairs(episode):
        said = asked.pair.hypothesis
        about = (
            said.startswith((hop.statement, *(f"{deny}{hop.need}." for deny in _DENIES)))
            for hop in plan.hops
        )
        place = next((place for place, right in enumerate(about) if right), None)
        if asked.settled is None and place is not None:
            following = plan.hops[place + 1] if place + 1 < len(plan.hops) else None
            denied = said.startswith(_DENIES)
            found.append(
                _Read(asked.pair, plan.hops[place], following, plan.answers[0], not denied)
            )
    return found


def _swapped(rows: Sequence[Labelled], names: Mapping[str, str], seed: int) -> list[Labelled]:
    """The rows, with other names in training rows; a true pair and the false one after it get the same ones."""
    swapper = world_swapper(names)
    done: list[Labelled] = []
    for true, false in zip(rows[::2], rows[1::2], strict=True):
        steps = (
            Step(evidence=(Evidence(true.premise),)),
            Step(true.hypothesis),
            Step(false.hypothesis),
        )
        draft = Trajectory(steps, true.question)
        try:
            swapped = (
                swapper.swap(draft, random.Random(f"{seed} {true.id}"))
                if true.split == "train"
                else draft
            )
        except (
            DataError
        ):  # with many names each draw can state a held-out fact; these pairs stay as they are
            swapped = draft
        about: dict[str, Any] = {
            "premise": swapped.steps[0].evidence[0].text,
            "question": swapped.question,
        }
        thoughts = zip((true, false), swapped.steps[1:], strict=True)
        done += [
            msgspec.structs.replace(row, hypothesis=step.think, **about) for row, step in thoughts
        ]
    return done
