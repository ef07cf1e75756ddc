"""Information-think pairs of the bundled world whose labels are known by construction.

Experts play the questions in Search-R1's form; each response with the thought after it is a true
pair, and gives one false pair with the same response. A pair is true if the thought states what the
response says about the current need, or says that the response does not have it.

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
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

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
from ..json_lines import read_rows
from ..judges import Pair
from ..measure.agreement.labelled import Labelled, Split
from ..rewards import InfoThink
from ..tasks import load_tasks
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

    Those of validation and test questions are held out: no fact is on both sides. `limit` is the
    most episodes of each split. With `swap` the names of training pairs are replaced by others of
    their type, so that a judge learns to read instead of remembering.
    """
    names = bundled_json("world/names.json")
    maker = _Maker(names, seed)
    rows = [row for split in SPLITS for row in maker.rows(split, limit)]
    return _swapped(rows, names, seed) if swap else rows


class _Thought(NamedTuple):
    """A response and the thought after it.

    Attributes:
        pair: the response as premise, the thought as hypothesis.
        hop: what the agent was looking for.
        next_hop: what it looks for next; `None` at the end.
        answer: the question's answer.
        states: whether the thought states what was found.
    """

    pair: Pair
    hop: Hop
    next_hop: Hop | None
    answer: str
    states: bool


class _Maker:
    """Makes true pairs of the expert's episodes, and a false one of each.

    Its methods that take a thought write a false one: with a wrong name (`_name`), a claim or a
    denial that the evidence does not bear out, or nothing of what was found.
    """

    def __init__(self, names: Mapping[str, str], seed: int) -> None:
        self.names, self.seed = names, seed
        self.finder = NameFinder(names)
        self.passages = list(read_rows(world_file("passages.jsonl.gz")))
        self.facts = {tuple(fact) for row in self.passages for fact in row["facts"]}
        self.kinds: dict[str, list[str]] = defaultdict(list)
        for name, kind in sorted(names.items()):
            self.kinds[kind].append(name)

    def rows(self, split: str, limit: int | None) -> list[Labelled]:
        """The pairs of a split, each true one before its false one."""
        plans, _ = plan_all(load_tasks(QUESTIONS, split, limit), planner_for("world"))
        corpus = [row for row in self.passages if split != "train" or row["split"] == "train"]
        dialect = dialects.load(DIALECT)
        tool = LocalSearch.from_corpus(corpus, top_k=3)
        search = replace(tool, name=dialect.search_tool or "search")
        with Toolbox([search]) as toolbox:
            played = run_experts(plans, toolbox, dialect, HABITS, self.seed)
        thoughts: list[_Thought] = []
        for plan, game in zip(plans, played, strict=True):
            thoughts += _thoughts(plan, game.episode)
        self.stating = [thought for thought in thoughts if thought.states]
        rows: list[Labelled] = []
        for number, thought in enumerate(thoughts):
            pair = thought.pair
            place = f"{split}:{number}"
            rng = random.Random(f"{self.seed} {place}")
            if thought.states:
                makers = (self._name, self._denial, self._unsaid, self._other)
                maker = rng.choices(makers, weights=(3, 2, 2, 1))[0]
            else:
                maker = rng.choices((self._claim, self._other), weights=(3, 1))[0]
            group = hashlib.sha256(normalize(pair.question, "pokee").encode()).hexdigest()[:16]
            true = Labelled(
                id=f"{SOURCE}:{place}:true",
                premise=pair.premise,
                hypothesis=pair.hypothesis,
                question=pair.question,
                label=True,
                source=SOURCE,
                split=SPLITS[split],
                group=group,
                task="info_think",
            )
            kind = maker.__name__.removeprefix("_")
            false_thought = maker(thought, rng)
            false = msgspec.structs.replace(
                true, id=f"{SOURCE}:{place}:{kind}", hypothesis=false_thought, label=False
            )
            rows += [true, false]
        return rows

    def _wrong_names(self, hop: Hop, names: Iterable[str]) -> list[str]:
        """Names of the type of what was found with which the hop's fact is wrong."""
        kind = self.names.get(hop.object)
        alike = {name for name in names if self.names[name] == kind and name != hop.subject}
        return [
            name for name in sorted(alike) if (hop.subject, hop.relation, name) not in self.facts
        ]

    def _name(self, thought: _Thought, rng: random.Random) -> str:
        """The thought with a wrong name of the right type, half of the time one of the evidence."""
        object_ = thought.hop.object
        of_the_type = self.kinds[self.names.get(object_, "")]
        in_evidence = rng.random() < 0.5
        names = self.finder.find(thought.pair.premise) if in_evidence else of_the_type
        fit = [name for name in self._wrong_names(thought.hop, names) if name != object_]
        others = [name for name in of_the_type if name != object_]
        return thought.pair.hypothesis.replace(object_, rng.choice(fit or others))

    def _claim(self, thought: _Thought, rng: random.Random) -> str:
        """A finding where the evidence has none: the right one, or one with a name of the
        evidence.
        """
        hop = thought.hop
        in_evidence = rng.random() < 0.5
        names = self.finder.find(thought.pair.premise) if in_evidence else ()
        name = rng.choice(self._wrong_names(hop, names) or [hop.object])
        finding = f"The {hop.relation} of {hop.subject} is {name}."
        if thought.next_hop is not None:
            return rng.choice(NEXT).format(found=finding, need=thought.next_hop.need)
        phrases = DONE if contains(finding, thought.answer) else CONCLUDE
        return rng.choice(phrases).format(found=finding, answer=thought.answer)

    def _denial(self, thought: _Thought, rng: random.Random) -> str:
        """That nothing was found, where something was."""
        return rng.choice((*REWORD, *GIVE_UP)).format(need=thought.hop.need)

    def _unsaid(self, thought: _Thought, rng: random.Random) -> str:
        """A thought that goes on without a word of what was found."""
        if thought.next_hop is None:
            first = rng.choice(FIRST).format(need=thought.hop.need)
            return rng.choice((*UNSAID, first))
        template = rng.choice(FIRST)
        hop = rng.choice((thought.hop, thought.next_hop))
        return template.format(need=hop.need)

    def _other(self, thought: _Thought, rng: random.Random) -> str:
        """What another episode found and this evidence does not state."""
        pair = thought.pair
        for _ in range(50):
            candidate = rng.choice(self.stating)
            other_question = candidate.pair.question != pair.question
            if other_question and not contains(pair.premise, candidate.hop.subject):
                return candidate.pair.hypothesis
        raise DataError(f"no thought of another episode fits the question {pair.question!r}")


def _thoughts(plan: Plan, episode: Trajectory) -> list[_Thought]:
    """The episode's pairs with the hop of each thought; thoughts without a recognisable hop are
    left out.
    """
    thoughts = []
    for judged in InfoThink().pairs(episode):
        text = judged.pair.hypothesis
        place = _hop_of(plan, text)
        if judged.settled is not None or place is None:
            continue
        thought = _Thought(
            pair=judged.pair,
            hop=plan.hops[place],
            next_hop=plan.hops[place + 1] if place + 1 < len(plan.hops) else None,
            answer=plan.answers[0],
            states=not text.startswith(_DENIES),
        )
        thoughts.append(thought)
    return thoughts


def _hop_of(plan: Plan, thought: str) -> int | None:
    """The index of the hop whose finding, or whose need, the thought is about."""
    for place, hop in enumerate(plan.hops):
        denials = [f"{beginning}{hop.need}." for beginning in _DENIES]
        if thought.startswith((hop.statement, *denials)):
            return place
    return None


def _swapped(rows: Sequence[Labelled], names: Mapping[str, str], seed: int) -> list[Labelled]:
    """The rows, with other names in training rows; a true pair and the false one after it get the
    same ones.
    """
    swapper = world_swapper(names)
    result: list[Labelled] = []
    for true, false in zip(rows[::2], rows[1::2], strict=True):
        response = Step(evidence=(Evidence(true.premise),))
        steps = (response, Step(true.hypothesis), Step(false.hypothesis))
        draft = Trajectory(steps, true.question)
        if true.split == "train":
            # with many names each draw can state a held-out fact; these pairs stay as they are
            with suppress(DataError):
                draft = swapper.swap(draft, random.Random(f"{seed} {true.id}"))
        for row, step in zip((true, false), draft.steps[1:], strict=True):
            changed = msgspec.structs.replace(
                row,
                premise=draft.steps[0].evidence[0].text,
                question=draft.question,
                hypothesis=step.think,
            )
            result.append(changed)
    return result
