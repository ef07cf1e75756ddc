"""Twins of a response: the same state with the opposite truth, so that only reading tells them apart.

A policy learns its verdicts from whatever predicts them. If unhelpful evidence is always blank, or comes from a tool
that never holds such facts, it learns these signs instead of reading. So each response of an expert's episode gets a
twin that differs in whether the fact is there, and as far as possible in nothing else.
"""

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec

from ..bundled import bundled_json
from ..text import plain
from ..trajectory import Evidence
from .plans import Hop

KINDS = {"relation": 0.3, "subject": 0.3, "unrelated": 0.15, "blank": 0.25}
"""What replaces evidence that states the fact, and how often: another relation of the same subject, the same relation
of another subject, or something unrelated from the same tool (foils); or all evidence is blanked."""
ALONE = 0.5
"""How often a response holds foils of one kind only. Among other evidence a foil is told by subject and relation of one
passage together; alone, either will do and is learnt first."""
TRAINING_BLANKS: tuple[str, ...] = tuple(bundled_json("training_blanks.json"))
"""What blanked titles and texts read in training. `measure.probes.UNSEEN_BLANKS` are kept for measuring."""


class Shelf:
    """The evidence returned so far, by what it is about; of each relation and tool the latest 256 pieces."""

    def __init__(self) -> None:
        pieces = partial(deque[Evidence], maxlen=256)
        self._by_relation: defaultdict[tuple[str, str], deque[Evidence]] = defaultdict(pieces)
        self._by_title: defaultdict[str, dict[str, Evidence]] = defaultdict(dict)
        self._by_tool: defaultdict[str, deque[Evidence]] = defaultdict(pieces)
        self._gold: dict[str, Evidence] = {}

    def put(self, hop: Hop, tool: str, evidence: Sequence[Evidence]) -> None:
        """Keep what a tool returned when the hop's fact was searched for."""
        gold = hop.gold(evidence)
        self._gold |= {item.source: item for item in gold if item.source}
        if hop.relation:
            self._by_relation[tool, hop.relation].extend(gold)
        self._by_tool[tool].extend(evidence)
        for item in evidence:
            self._by_title[plain(item.title)][item.text] = item

    def stating(self, hop: Hop) -> list[Evidence]:
        """Evidence that states the hop's fact, from any tool."""
        return [self._gold[source] for source in sorted(hop.gold_ids) if source in self._gold]

    def foils(
        self, kind: str, hop: Hop, tool: str, taken: Sequence[Evidence] = ()
    ) -> list[Evidence]:
        """Evidence of a kind that does not state the hop's fact: each text once, and none of those taken. The kind
        "other_tools" is of any tool but this."""
        found: Iterable[Evidence]
        if kind == "relation":
            found = self._by_title[plain(hop.subject)].values()
        elif kind == "subject":
            found = self._by_relation[tool, hop.relation]
        elif kind == "unrelated":
            found = self._by_tool[tool]
        else:
            found = chain.from_iterable(
                items for name, items in self._by_tool.items() if name != tool
            )
        texts = {item.text for item in taken}
        return [
            *{
                item.text: item for item in found if item.text not in texts and not hop.gold([item])
            }.values()
        ]


def drawn_kind(rng: random.Random) -> str:
    return rng.choices([*KINDS], [*KINDS.values()])[0]


class Response(NamedTuple):
    """What a tool returned when a hop's fact was searched for, as its twins are made of it."""

    hop: Hop
    tool: str
    evidence: Sequence[Evidence]
    shelf: Shelf
    rng: random.Random

    def without(self, kind: str) -> list[Evidence]:
        """As many pieces as before, none of which states the fact. What stated it is replaced by foils of the kind, or
        of another one if the shelf holds none of it; pieces for which it holds nothing are left out."""
        if kind == "blank":
            return self._blanked()
        if self.rng.random() < ALONE:
            # As many foils of the kind as there were pieces, and nothing else.
            foils = [
                item for item in self._foils(kind) if kind == "relation" or not self._about(item)
            ]
            if alone := self.rng.sample(foils, min(len(foils), len(self.evidence))):
                return alone
        order = [kind, *(other for other in ("subject", "unrelated", "relation") if other != kind)]
        result = [item for item in self.evidence if not self.hop.gold([item])]
        taken = [*self.evidence]  # the same passage twice would give the exchange away
        for place, item in enumerate(self.evidence):
            if not self.hop.gold([item]):
                continue
            if found := next(filter(None, (self._foils(name, taken) for name in order)), None):
                taken.append(self.rng.choice(found))
                result.insert(min(place, len(result)), taken[-1])
        return result

    def planted(self) -> list[Evidence]:
        """With a random piece replaced by the fact; empty if the shelf does not hold it."""
        gold, result = self.shelf.stating(self.hop), list(self.evidence)
        if gold:
            result[self.rng.randrange(len(result))] = self.rng.choice(gold)
        return result if gold else []

    def among_foreign(self) -> list[Evidence]:
        """Its gold among unrelated pieces, sometimes of another tool, in any order; empty if there are none."""
        gold = self.hop.gold(self.evidence)
        kind = "other_tools" if self.rng.random() < 0.3 else "unrelated"
        others = self._foils(kind, self.evidence)
        if len(gold) == len(self.evidence) or not others:
            return []
        result = gold + self.rng.sample(others, min(len(self.evidence) - len(gold), len(others)))
        self.rng.shuffle(result)
        return result

    def drill(self) -> list[Evidence]:
        """Three to six pieces; half of the time one states the fact, and the others nearly do. They are about another
        subject, or about another relation of this one, or of all kinds. Empty if the shelf holds too little yet."""
        rng, stating = self.rng, self.hop.gold(self.evidence) or self.shelf.stating(self.hop)
        if not stating:
            return []
        chosen = rng.sample(stating, 1) if rng.random() < 0.5 else []
        every = ("relation", "subject", "unrelated")
        kinds = rng.choice((("subject",), ("subject",), ("relation",), every, every))
        for _ in range(rng.randint(3, 6) - len(chosen)):
            kind = rng.choice(kinds)
            found = [
                item
                for item in self._foils(kind, chosen)
                if kind != "subject" or not self._about(item)
            ]
            chosen += rng.sample(found, min(1, len(found)))
        rng.shuffle(chosen)  # the fact must not be told by its place
        return chosen

    def _blanked(self) -> list[Evidence]:
        """Every title and text replaced: by a word or phrase, by one of its titles, or by words of its texts."""
        rng, draw = self.rng, self.rng.random()
        words = [word for item in self.evidence for word in item.text.split()]
        if draw < 0.6 or not words:
            text = rng.choice(TRAINING_BLANKS)
        elif draw < 0.8:
            text = rng.choice(self.evidence).title or rng.choice(words)
        else:
            text = " ".join(rng.sample(words, min(len(words), rng.randint(1, 4))))
        return [
            msgspec.structs.replace(item, title=text, text=text, url="", source="")
            for item in self.evidence
        ]

    def _foils(self, kind: str, taken: Sequence[Evidence] = ()) -> list[Evidence]:
        return self.shelf.foils(kind, self.hop, self.tool, taken)

    def _about(self, item: Evidence) -> bool:
        return plain(item.title) == plain(self.hop.subject)
