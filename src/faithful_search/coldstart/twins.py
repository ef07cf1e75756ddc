"""Twins of a response: the same state with the opposite truth, so that only reading tells them
apart.

A policy learns its verdicts from whatever predicts them. If unhelpful evidence is always blank, or
comes from a tool that never holds such facts, it learns these signs instead of reading. So each
response of an expert's episode gets a twin that differs in whether the fact is there, and as far as
possible in nothing else.
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
"""What replaces evidence that states the fact, and how often: another relation of the same subject,
the same relation of another subject, or something unrelated from the same tool (foils); or all
evidence is blanked.
"""
ALONE = 0.5
"""How often a response holds foils of one kind only. Among other evidence a foil is told by subject
and relation of one passage together; alone, either will do and is learnt first.
"""
TRAINING_BLANKS: tuple[str, ...] = tuple(bundled_json("training_blanks.json"))
"""What blanked titles and texts read in training. `measure.probes.UNSEEN_BLANKS` are kept for
measuring.
"""


class Shelf:
    """The evidence returned so far, by what it is about; of each relation and tool the latest 256
    pieces.
    """

    def __init__(self) -> None:
        pieces = partial(deque[Evidence], maxlen=256)
        self._by_relation: defaultdict[tuple[str, str], deque[Evidence]] = defaultdict(pieces)
        self._by_title: defaultdict[str, dict[str, Evidence]] = defaultdict(dict)
        self._by_tool: defaultdict[str, deque[Evidence]] = defaultdict(pieces)
        self._gold: dict[str, Evidence] = {}

    def put(self, hop: Hop, tool: str, evidence: Sequence[Evidence]) -> None:
        """Keep what a tool returned when the hop's fact was searched for."""
        gold = hop.gold(evidence)
        for passage in gold:
            if passage.source:
                self._gold[passage.source] = passage
        if hop.relation:
            self._by_relation[tool, hop.relation].extend(gold)
        self._by_tool[tool].extend(evidence)
        for passage in evidence:
            about_title = self._by_title[plain(passage.title)]
            about_title[passage.text] = passage

    def stating(self, hop: Hop) -> list[Evidence]:
        """Evidence that states the hop's fact, from any tool."""
        return [self._gold[source] for source in sorted(hop.gold_ids) if source in self._gold]

    def foils(
        self, kind: str, hop: Hop, tool: str, excluded: Sequence[Evidence] = ()
    ) -> list[Evidence]:
        """Evidence of a kind that does not state the hop's fact: each text once, and none of those
        excluded. The kind "other_tools" is of any tool but this.
        """
        passages: Iterable[Evidence]
        if kind == "relation":
            passages = self._by_title[plain(hop.subject)].values()
        elif kind == "subject":
            passages = self._by_relation[tool, hop.relation]
        elif kind == "unrelated":
            passages = self._by_tool[tool]
        else:
            by_tool = self._by_tool.items()
            passages = chain.from_iterable(pieces for name, pieces in by_tool if name != tool)
        texts = {passage.text for passage in excluded}
        by_text: dict[str, Evidence] = {}
        for passage in passages:
            if passage.text not in texts and not hop.gold([passage]):
                by_text[passage.text] = passage
        return list(by_text.values())


def drawn_kind(rng: random.Random) -> str:
    """One of `KINDS`, as often as it says."""
    [kind] = rng.choices(list(KINDS), weights=list(KINDS.values()))
    return kind


class Response(NamedTuple):
    """What a tool returned when a hop's fact was searched for; its methods make the evidence of its
    twins.
    """

    hop: Hop
    tool: str
    evidence: Sequence[Evidence]
    shelf: Shelf
    rng: random.Random

    def without(self, kind: str) -> list[Evidence]:
        """As many pieces as before, none of which states the fact. What stated it is replaced by
        foils of the kind, or of another one if the shelf holds none of it; pieces for which it
        holds nothing are left out.
        """
        if kind == "blank":
            return self._blanked()
        if self.rng.random() < ALONE:
            # As many foils of the kind as there were pieces, and nothing else.
            foils = self._foils(kind)
            if kind != "relation":
                foils = [passage for passage in foils if not self._is_about_subject(passage)]
            alone = self.rng.sample(foils, min(len(foils), len(self.evidence)))
            if alone:
                return alone
        result = [passage for passage in self.evidence if not self.hop.gold([passage])]
        excluded = list(self.evidence)  # the same passage twice would give the exchange away
        for place, passage in enumerate(self.evidence):
            if not self.hop.gold([passage]):
                continue
            foils = self._foils_of_first_kind(kind, excluded)
            if foils:
                foil = self.rng.choice(foils)
                excluded.append(foil)
                result.insert(min(place, len(result)), foil)
        return result

    def _foils_of_first_kind(self, kind: str, excluded: Sequence[Evidence]) -> list[Evidence]:
        """The foils of the kind; where the shelf holds none, those of the next kind."""
        for name in dict.fromkeys((kind, "subject", "unrelated", "relation")):
            foils = self._foils(name, excluded)
            if foils:
                return foils
        return []

    def planted(self) -> list[Evidence]:
        """The evidence with a random piece replaced by the fact; empty if the shelf does not hold
        it.
        """
        gold = self.shelf.stating(self.hop)
        if not gold:
            return []
        result = list(self.evidence)
        passage = self.rng.choice(gold)
        result[self.rng.randrange(len(result))] = passage
        return result

    def among_foreign(self) -> list[Evidence]:
        """The pieces that state the fact among unrelated ones, sometimes of another tool, in any
        order; empty if there are none.
        """
        gold = self.hop.gold(self.evidence)
        kind = "other_tools" if self.rng.random() < 0.3 else "unrelated"
        foils = self._foils(kind, self.evidence)
        to_replace = len(self.evidence) - len(gold)
        if not to_replace or not foils:
            return []
        result = gold + self.rng.sample(foils, min(to_replace, len(foils)))
        self.rng.shuffle(result)
        return result

    def drill(self) -> list[Evidence]:
        """Three to six pieces; half of the time one states the fact, and the others nearly do.

        The others are about another subject, or about another relation of this one, or of all
        kinds. Empty if the shelf holds too little yet.
        """
        rng = self.rng
        stating = self.hop.gold(self.evidence) or self.shelf.stating(self.hop)
        if not stating:
            return []
        chosen = rng.sample(stating, 1) if rng.random() < 0.5 else []
        every_kind = ("relation", "subject", "unrelated")
        kinds = rng.choice((("subject",), ("subject",), ("relation",), every_kind, every_kind))
        for _ in range(rng.randint(3, 6) - len(chosen)):
            kind = rng.choice(kinds)
            foils = self._foils(kind, chosen)
            if kind == "subject":
                foils = [passage for passage in foils if not self._is_about_subject(passage)]
            chosen += rng.sample(foils, min(1, len(foils)))
        rng.shuffle(chosen)  # the fact must not be told by its place
        return chosen

    def _blanked(self) -> list[Evidence]:
        """The evidence with every title and text replaced by the same few words: a phrase, one of
        its titles, or words of its texts. Addresses stay: their absence would tell a blank without
        reading.
        """
        rng = self.rng
        draw = rng.random()
        words: list[str] = []
        for passage in self.evidence:
            words += passage.text.split()
        if draw < 0.6 or not words:
            text = rng.choice(TRAINING_BLANKS)
        elif draw < 0.8:
            text = rng.choice(self.evidence).title or rng.choice(words)
        else:
            text = " ".join(rng.sample(words, min(len(words), rng.randint(1, 4))))
        return [
            msgspec.structs.replace(passage, title=text, text=text, source="")
            for passage in self.evidence
        ]

    def _foils(self, kind: str, excluded: Sequence[Evidence] = ()) -> list[Evidence]:
        return self.shelf.foils(kind, self.hop, self.tool, excluded)

    def _is_about_subject(self, passage: Evidence) -> bool:
        return plain(passage.title) == plain(self.hop.subject)
