"""Twins of a response: the same state with the opposite truth, so that only reading tells them apart.

A policy learns its verdicts from whatever predicts them. If unhelpful evidence is always blank, or comes from a tool
that never holds such facts, it learns these signs instead of reading. So each response of an expert's episode gets a
twin that differs in whether the fact is there, and as far as possible in nothing else.
"""

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial

import msgspec

from ..trajectory import Evidence
from .plans import Hop, plain

KINDS = {"relation": 0.3, "subject": 0.3, "unrelated": 0.15, "blank": 0.25}
"""What replaces evidence that states the fact, and how often: another relation of the same subject, the same relation
of another subject, or something unrelated from the same tool (foils); or all evidence is blanked."""
ALONE = 0.5
"""How often a response holds foils of one kind only. Among other evidence a foil is told by subject and relation of one
passage together; alone, either will do and is learnt first."""
TRAINING_BLANKS = (
    *("text", "nothing", "empty", "none", "blank", "document", "passage", "page", "title", "words", "data", "result"),
    *("apple", "river bank", "window", "seven", "green", "music", "paper", "winter morning", "table", "salt", "the"),
    *("no text", "no data here", "not available", "page not found", "access denied", "error", "404", "loading", "..."),
    *("-", "?", "???", "x", "xxx", "abc", "test", "sample text", "placeholder", "removed", "deleted", "hidden"),
    *("this text was removed", "there is no entry", "an empty page", "read more", "click here", "sign in to go on"),
    *("dolor sit amet", "some words", "a b c", "1", "12 34", "yes", "no", "unknown", "the answer is here", "end"),
    *("stop", "house", "old road", "small dog", "blue sky", "bread and butter", "one two three", "to be or not to be"),
)
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

    def foils(self, kind: str, hop: Hop, tool: str, taken: Sequence[Evidence] = ()) -> list[Evidence]:
        """Evidence of a kind that does not state the hop's fact: each text once, and none of those taken.

        The kind "other_tools" is of any tool but this.
        """
        if kind == "relation":
            found = [*self._by_title[plain(hop.subject)].values()]
        elif kind == "subject":
            found = [*self._by_relation[tool, hop.relation]]
        elif kind == "unrelated":
            found = [*self._by_tool[tool]]
        else:
            found = [item for name, items in self._by_tool.items() if name != tool for item in items]
        texts = {item.text for item in taken}
        return [*{item.text: item for item in found if item.text not in texts and not hop.gold([item])}.values()]


def drawn_kind(rng: random.Random) -> str:
    """One of `KINDS`, as often as it says."""
    return rng.choices([*KINDS], [*KINDS.values()])[0]


def without(
    hop: Hop, tool: str, evidence: Sequence[Evidence], shelf: Shelf, kind: str, rng: random.Random
) -> list[Evidence]:
    """As many pieces as before, none of which states the hop's fact.

    What stated it is replaced by foils of the kind, or of another one if the shelf holds none of it; pieces for which
    it holds nothing are left out.
    """
    if kind == "blank":
        return blanked(evidence, rng)
    if rng.random() < ALONE:
        # As many foils of the kind as there were pieces, and nothing else.
        foils = [item for item in shelf.foils(kind, hop, tool) if kind == "relation" or not _about(hop, item)]
        if alone := rng.sample(foils, min(len(foils), len(evidence))):
            return alone
    order = [kind, *(other for other in ("subject", "unrelated", "relation") if other != kind)]
    result = [item for item in evidence if not hop.gold([item])]
    taken = [*evidence]  # the same passage twice would give the exchange away
    for place, item in enumerate(evidence):
        if not hop.gold([item]):
            continue
        if found := next(filter(None, (shelf.foils(name, hop, tool, taken) for name in order)), None):
            taken.append(rng.choice(found))
            result.insert(min(place, len(result)), taken[-1])
    return result


def planted(hop: Hop, evidence: Sequence[Evidence], shelf: Shelf, rng: random.Random) -> list[Evidence] | None:
    """The response with a random piece replaced by the hop's fact; `None` if the shelf does not hold it."""
    gold = shelf.stating(hop)
    if not gold or not evidence:
        return None
    result = list(evidence)
    result[rng.randrange(len(result))] = rng.choice(gold)
    return result


def among_foreign(
    hop: Hop, tool: str, evidence: Sequence[Evidence], shelf: Shelf, rng: random.Random
) -> list[Evidence] | None:
    """The response's gold among unrelated pieces, sometimes of another tool, in any order."""
    gold = hop.gold(evidence)
    kind = "other_tools" if rng.random() < 0.3 else "unrelated"
    others = shelf.foils(kind, hop, tool, evidence)
    if len(gold) == len(evidence) or not others:
        return None
    result = gold + rng.sample(others, min(len(evidence) - len(gold), len(others)))
    rng.shuffle(result)
    return result


def drill(hop: Hop, tool: str, evidence: Sequence[Evidence], shelf: Shelf, rng: random.Random) -> list[Evidence] | None:
    """Three to six pieces; half of the time one states the hop's fact, and the others nearly do.

    They are about another subject, or about another relation of this one, or of all kinds. `None` if the shelf holds
    too little yet.
    """
    stating = hop.gold(evidence) or shelf.stating(hop)
    if not stating:
        return None
    chosen = rng.sample(stating, 1) if rng.random() < 0.5 else []
    every = ("relation", "subject", "unrelated")
    kinds = rng.choice((("subject",), ("subject",), ("relation",), every, every))
    for _ in range(rng.randint(3, 6) - len(chosen)):
        kind = rng.choice(kinds)
        found = [item for item in shelf.foils(kind, hop, tool, chosen) if kind != "subject" or not _about(hop, item)]
        chosen += rng.sample(found, min(1, len(found)))
    rng.shuffle(chosen)  # the fact must not be told by its place
    return chosen or None


def blanked(evidence: Sequence[Evidence], rng: random.Random) -> list[Evidence]:
    """Every title and text replaced: by a word or phrase, by a title of the response, or by words of its texts."""
    draw = rng.random()
    words = [word for item in evidence for word in item.text.split()]
    if draw < 0.6 or not words:
        text = rng.choice(TRAINING_BLANKS)
    elif draw < 0.8:
        text = rng.choice(evidence).title or rng.choice(words)
    else:
        text = " ".join(rng.sample(words, min(len(words), rng.randint(1, 4))))
    return [msgspec.structs.replace(item, title=text, text=text, url="", source="") for item in evidence]


def _about(hop: Hop, item: Evidence) -> bool:
    return plain(item.title) == plain(hop.subject)
