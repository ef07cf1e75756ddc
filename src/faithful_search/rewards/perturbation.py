"""What takes the place of evidence when a verdict is tested: unrelated passages, and lures."""

import json
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..errors import ConfigError, DataError
from ..text import content_words
from ..trajectory import Evidence, Step, Trajectory
from ..world import Change

Passage = tuple[str, str]
Source = tuple[str, str, str]

TRIES = 32  # passages drawn from the pool before a neutral one is taken
FOIL_TRIES = 4  # how often foils are asked for a passage that the response does not hold yet
_BUILT_IN = json.loads(
    (files("faithful_search") / "data" / "replacements.json").read_text(encoding="utf-8")
)
# passages on nothing in particular, and ones that answer a `{query}` with a made-up `{name}`
NEUTRAL: tuple[Passage, ...] = tuple((title, text) for title, text in _BUILT_IN["neutral"])
LURES: tuple[str, ...] = tuple(_BUILT_IN["lures"])
_WORD = re.compile(r"\w+")


@runtime_checkable
class Foils(Protocol):
    """Evidence that differs from what a query asks for in the fact alone, for corpora whose facts are known.

    Whatever is drawn comes from `rng`, so that the same draw gives the same passage; `None` where there is none.
    """

    def changed(self, change: Change) -> "Foils":
        """Those of a changed world: what a passage states depends on the world it was read in."""

    def states(self, query: str, item: Evidence) -> bool:
        """Whether a passage states what the query asks for."""

    def replace(self, query: str, item: Evidence, rng: random.Random) -> Passage | None:
        """Title and text of a passage that looks like what the query asks for and does not state it."""

    def lure(self, query: str, rng: random.Random) -> Passage | None:
        """Title and text of a wrong answer to the query in the corpus's own sentences."""


def corpus_snippets(
    rows: Iterable[Mapping[str, Any]], n: int = 256, seed: int = 0
) -> tuple[Passage, ...]:
    """`n` pairs of title and text drawn from a corpus (rows `title`, `text`), for `EvidenceSensitivity(snippets=…)`;
    all of them, where there are no more. The same rows in any order give the same pairs. Raises `ConfigError` when `n`
    is below 1, `DataError` when no row has a text.
    """
    if n < 1:
        raise ConfigError(f"corpus_snippets: n must be at least 1, not {n}")
    passages = {
        (str(row.get("title") or ""), str(row["text"]))
        for row in rows
        if str(row.get("text") or "").strip()
    }
    if not passages:
        raise DataError("corpus_snippets: no row has a text; rows need `title` and `text`")
    # sorted, since a set has another order in each process
    return tuple(random.Random(f"snippets:{seed}").sample(sorted(passages), min(n, len(passages))))


def sources(
    trajectories: Sequence[Trajectory],
    snippets: Sequence[str | Passage] = (),
    gather: Callable[[list[Any]], list[Any]] = list,
) -> list[Source]:
    """(question, title, text) of what may replace evidence, of all processes that `gather` knows; sorted, so that the
    order of a batch does not matter."""
    if snippets:
        return sorted(
            ("", "", given) if isinstance(given, str) else ("", *given) for given in snippets
        )
    found = {
        (trajectory.question, item.title, item.text)
        for trajectory in trajectories
        if trajectory.question
        for step in trajectory.steps
        for item in step.evidence
    }
    return sorted(set(gather(sorted(found))))


def degrade(
    previous: Step,
    refs: Collection[str],
    question: str | None,
    pool: list[Source],
    rng: random.Random,
    foils: Foils | None = None,
) -> tuple[tuple[Evidence, ...], bool]:
    """`previous`'s evidence with the passages named in `refs` exchanged, each for another one where possible, and
    whether one of the foils is among them. What these have nothing for becomes unrelated."""
    taken = {item.text for item in previous.evidence}
    topic = frozenset(content_words(f"{question or ''} {query_of(previous)}"))
    changed, by_foils = [], False
    for item in previous.evidence:
        if item.id in refs:
            tries = [foils] * FOIL_TRIES if foils else []
            drawn = (one.replace(asked_for(previous, question), item, rng) for one in tries)
            foil = next((passage for passage in drawn if passage and passage[1] not in taken), None)
            by_foils = by_foils or foil is not None
            passage = foil or _draw(pool, question, topic, taken, rng)
            taken.add(passage[1])
            item = _exchange(item, passage)
        changed.append(item)
    return tuple(changed), by_foils


def _draw(
    pool: list[Source],
    question: str | None,
    topic: frozenset[str],
    taken: set[str],
    rng: random.Random,
) -> Passage:
    """A passage of another question that shares no content word with `topic`; else one of the neutral ones."""
    # a pool may hold thousands of passages: some tries find an unrelated one nearly always
    for asked, title, text in rng.sample(pool, min(TRIES, len(pool))):
        if (
            asked != question
            and text not in taken
            and topic.isdisjoint(content_words(f"{title} {text}"))
        ):
            return title, text
    # in a random order, of which `min` takes the first that is neither there already nor on the topic
    neutral = rng.sample(NEUTRAL, len(NEUTRAL))
    return min(
        neutral,
        key=lambda found: (found[1] in taken, not topic.isdisjoint(content_words(" ".join(found)))),
    )


def lure(
    previous: Step, question: str | None, rng: random.Random, given: Passage | None = None
) -> tuple[list[Evidence], int]:
    """`previous`'s evidence with one random passage exchanged for `given`, or else for a template that answers the
    query with a made-up name; and which one it is."""
    if given is None:
        query = asked_for(previous, question)
        given = query, rng.choice(LURES).format(query=query, name=made_up_answer(question or query))
    evidence, place = list(previous.evidence), rng.randrange(len(previous.evidence))
    evidence[place] = _exchange(evidence[place], given)
    return evidence, place


def asked_for(step: Step, question: str | None) -> str:
    """What a call that brought evidence was after: its query, or what comes nearest to one."""
    return query_of(step) or question or step.evidence[0].title or "this question"


def query_of(step: Step) -> str:
    """The strings a call was made with, joined."""
    values = step.call.arguments.values() if step.call else ()
    lists = (value if isinstance(value, list) else [value] for value in values)
    return " ".join(value for part in lists for value in part if isinstance(value, str)).strip()


def made_up_answer(question: str) -> str:
    """The question's last capitalised word after the first, as it looks like a name; else its longest word."""
    words = _WORD.findall(question)
    names = [word for word in words[1:] if word[0].isupper()]
    return names[-1] if names else max(words, key=len, default="this")


def _exchange(item: Evidence, passage: Passage) -> Evidence:
    # a title that names the asked entity, and a page's address, would give the topic away
    return msgspec.structs.replace(item, title=passage[0], text=passage[1], url="")
