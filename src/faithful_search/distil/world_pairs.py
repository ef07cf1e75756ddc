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

SOURCE = "world"
QUESTIONS = "world_passages"
DIALECT = "search_r1"
HABITS = Habits(wrong_tool=0.0, dropped=0.15, nothing=0.03, blind=0.06, shuffled=0.5)
SPLITS: dict[str, Split] = {"train": "train", "validation": "heldout", "test": "heldout"}
"""By split of the questions, that of the pairs."""
_DENIALS = ("Nothing on ", "This does not give ")
"""How a thought begins that misses a fact, before the hop's need."""


def world_pairs(seed: int = 0, limit: int | None = None, swap: bool = True) -> list[Labelled]:
    """As many true as false pairs; the same for the same arguments.

    Those of validation and test questions are held out: no fact is on both sides. `limit` is the
    most episodes of each split. With `swap` the names of training pairs are replaced by others of
    their type, so that a judge learns to read instead of remembering.
    """
    names = bundled_json("world/names.json")
    maker = _Maker(names, seed)
    rows: list[Labelled] = []
    for split in SPLITS:
        rows += maker.rows(split, limit)
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
    """Makes the true pairs of the expert's episodes, and a false one of each.

    Attributes:
        names: the type of each name of the world.
        names_of_type: the names of each type, in order.
        facts: the (subject, relation, object) that passages state.
    """

    def __init__(self, names: Mapping[str, str], seed: int) -> None:
        self.names = names
        self.seed = seed
        self.finder = NameFinder(names)
        self.passages = list(read_rows(world_file("passages.jsonl.gz")))
        self.facts: set[tuple[str, ...]] = set()
        for passage in self.passages:
            self.facts.update(tuple(fact) for fact in passage["facts"])
        self.names_of_type: defaultdict[str, list[str]] = defaultdict(list)
        for name, type_ in sorted(names.items()):
            self.names_of_type[type_].append(name)

    def rows(self, split: str, limit: int | None) -> list[Labelled]:
        """The pairs of a split, each true one before its false one."""
        thoughts = self._split_thoughts(split, limit)
        writer = _FalseThoughts(self, [thought for thought in thoughts if thought.states])
        rows: list[Labelled] = []
        for number, thought in enumerate(thoughts):
            pair = thought.pair
            place = f"{split}:{number}"
            question = normalize(pair.question, "pokee")
            true = Labelled(
                id=f"{SOURCE}:{place}:true",
                premise=pair.premise,
                hypothesis=pair.hypothesis,
                question=pair.question,
                label=True,
                source=SOURCE,
                split=SPLITS[split],
                group=hashlib.sha256(question.encode()).hexdigest()[:16],
                task="info_think",
            )
            kind, false_thought = writer.write(thought, random.Random(f"{self.seed} {place}"))
            false = msgspec.structs.replace(
                true, id=f"{SOURCE}:{place}:{kind}", hypothesis=false_thought, label=False
            )
            rows += [true, false]
        return rows

    def _split_thoughts(self, split: str, limit: int | None) -> list[_Thought]:
        """The thoughts of the expert's episodes about a split's questions."""
        tasks = load_tasks(QUESTIONS, split, limit)
        plans, _ = plan_all(tasks, planner_for("world"))
        corpus = self.passages
        if split == "train":  # no held-out passage is trained on
            corpus = [row for row in self.passages if row["split"] == "train"]
        dialect = dialects.load(DIALECT)
        tool = LocalSearch.from_corpus(corpus, top_k=3)
        search = replace(tool, name=dialect.search_tool or "search")
        with Toolbox([search]) as toolbox:
            played = run_experts(plans, toolbox, dialect, HABITS, self.seed)
        thoughts: list[_Thought] = []
        for plan, (episode, _) in zip(plans, played, strict=True):
            thoughts += _thoughts(plan, episode)
        return thoughts

    def wrong_names(self, hop: Hop, names: Iterable[str]) -> list[str]:
        """Those of the names that have the type of what was found and make the hop's fact wrong,
        in order.
        """
        type_ = self.names[hop.object]
        wrong: list[str] = []
        for name in sorted({*names}):
            fits = self.names[name] == type_ and name != hop.subject
            if fits and (hop.subject, hop.relation, name) not in self.facts:
                wrong.append(name)
        return wrong


class _FalseThoughts:
    """Writes a false thought in the place of a true one; the kinds are those of the module's table.

    Args:
        maker: knows names and facts.
        stating: the thoughts of the split that state a finding.
    """

    def __init__(self, maker: _Maker, stating: Sequence[_Thought]) -> None:
        self.maker = maker
        self.stating = stating

    def write(self, thought: _Thought, rng: random.Random) -> tuple[str, str]:
        """The kind of the false thought, and the thought."""
        if thought.states:
            kinds = ("name", "denial", "unsaid", "other")
            kind = rng.choices(kinds, weights=(3, 2, 2, 1))[0]
        else:
            kind = rng.choices(("claim", "other"), weights=(3, 1))[0]
        writers = {
            "name": self._name,
            "claim": self._claim,
            "denial": self._denial,
            "unsaid": self._unsaid,
            "other": self._other,
        }
        return kind, writers[kind](thought, rng)

    def _name(self, thought: _Thought, rng: random.Random) -> str:
        """The thought with a wrong name of the right type, half of the time one of the evidence."""
        right = thought.hop.object
        of_type = self.maker.names_of_type[self.maker.names[right]]
        names: Iterable[str] = of_type
        if rng.random() < 0.5:
            names = self.maker.finder.find(thought.pair.premise)
        wrong = [name for name in self.maker.wrong_names(thought.hop, names) if name != right]
        if not wrong:
            wrong = [name for name in of_type if name != right]
        return thought.pair.hypothesis.replace(right, rng.choice(wrong))

    def _claim(self, thought: _Thought, rng: random.Random) -> str:
        """A finding where the evidence has none: the right one, or one with a name of the
        evidence.
        """
        hop, next_hop = thought.hop, thought.next_hop
        wrong: list[str] = []
        if rng.random() < 0.5:
            wrong = self.maker.wrong_names(hop, self.maker.finder.find(thought.pair.premise))
        name = rng.choice(wrong or [hop.object])
        finding = f"The {hop.relation} of {hop.subject} is {name}."
        if next_hop is not None:
            return rng.choice(NEXT).format(found=finding, need=next_hop.need)
        phrases = DONE if contains(finding, thought.answer) else CONCLUDE
        return rng.choice(phrases).format(found=finding, answer=thought.answer)

    def _denial(self, thought: _Thought, rng: random.Random) -> str:
        """That nothing was found, where something was."""
        return rng.choice((*REWORD, *GIVE_UP)).format(need=thought.hop.need)

    def _unsaid(self, thought: _Thought, rng: random.Random) -> str:
        """A thought that goes on without a word of what was found."""
        template = rng.choice(FIRST)
        if thought.next_hop is None:
            return rng.choice((*UNSAID, template.format(need=thought.hop.need)))
        hop = rng.choice((thought.hop, thought.next_hop))
        return template.format(need=hop.need)

    def _other(self, thought: _Thought, rng: random.Random) -> str:
        """What another episode found and this evidence does not state."""
        pair = thought.pair
        for _ in range(50):
            candidate = rng.choice(self.stating)
            is_of_other_question = candidate.pair.question != pair.question
            if is_of_other_question and not contains(pair.premise, candidate.hop.subject):
                return candidate.pair.hypothesis
        raise DataError(f"no thought of another episode fits the question {pair.question!r}")


def _thoughts(plan: Plan, episode: Trajectory) -> list[_Thought]:
    """The episode's pairs with the hop of each thought; thoughts without a recognisable hop are
    left out.
    """
    thoughts = []
    for judged in InfoThink().pairs(episode):
        if judged.settled is not None:  # no judge is needed to tell
            continue
        text = judged.pair.hypothesis
        number = _hop_number(plan, text)
        if number is None:
            continue
        is_last = number + 1 == len(plan.hops)
        thought = _Thought(
            pair=judged.pair,
            hop=plan.hops[number],
            next_hop=None if is_last else plan.hops[number + 1],
            answer=plan.answers[0],
            states=not text.startswith(_DENIALS),
        )
        thoughts.append(thought)
    return thoughts


def _hop_number(plan: Plan, thought: str) -> int | None:
    """Which hop's finding, or need, the thought begins with; `None`: no hop's."""
    for number, hop in enumerate(plan.hops):
        denials = [f"{beginning}{hop.need}." for beginning in _DENIALS]
        if thought.startswith((hop.statement, *denials)):
            return number
    return None


def _swapped(rows: Sequence[Labelled], names: Mapping[str, str], seed: int) -> list[Labelled]:
    """The rows, with other names in training rows; a true pair and the false one after it get the
    same ones.
    """
    swapper = world_swapper(names)
    result: list[Labelled] = []
    for true, false in zip(rows[::2], rows[1::2], strict=True):
        if true.split != "train":
            result += [true, false]
            continue
        # An episode with both thoughts, so that both get the same names
        response = Step(evidence=(Evidence(true.premise),))
        draft = Trajectory((response, Step(true.hypothesis), Step(false.hypothesis)), true.question)
        # With many names each draw can state a held-out fact; these pairs stay as they are
        with suppress(DataError):
            draft = swapper.swap(draft, random.Random(f"{seed} {true.id}"))
        response, *thoughts = draft.steps
        for row, thought in zip((true, false), thoughts, strict=True):
            changed = msgspec.structs.replace(
                row,
                premise=response.evidence[0].text,
                question=draft.question,
                hypothesis=thought.think,
            )
            result.append(changed)
    return result
