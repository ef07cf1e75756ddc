"""What takes the place of evidence when a verdict is tested: other texts, and lures.

Only the words of a text change. Id, title, address and place stay, and the new text is about as
long as the old one, ends alike, and names the title where the old one did. So the form of a
response says nothing about whether it is the real one: whoever wants to know must read.
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, DataError
from ..text import content_words, sentences
from ..trajectory import Evidence, Step, Trajectory
from .form import cut, ended_like, gap, mention, renamed, slack
from .lures import Passage, lure_name, statement, with_lure

TRIES = 64
"""Passages of the pool that are looked at for one replacement, if they are long enough together."""
MOST_TIMES_AS_LONG = 2
"""A lure stands in no text that is shorter than half of it: it would show by its length."""
FOIL_TRIES = 4
"""Foils that are looked at for one replacement."""
SHORTEST_KNOWN = 32
"""The characters of the shortest text that shows, within another, that it was read before."""
_ENDS = " \n.\u2026"


@runtime_checkable
class Foils(Protocol):
    """Evidence that differs from what a query asks for in the fact alone, for corpora whose facts
    are known.

    All draws come from `rng`, so that the same generator gives the same passage; `None` where there
    is none. Of a passage that they give only the text is shown, under the title that stands there.
    """

    def in_context(self, context: str) -> "Foils":
        """The foils of a rollout's world: what a passage states depends on it. `context` is
        `tasks.world_context` of the rollout, empty where nothing is changed.
        """

    def states(self, query: str, passage: Evidence) -> bool:
        """Whether a passage states what the query asks for."""

    def replace(self, query: str, passage: Evidence, rng: random.Random) -> Passage | None:
        """Title and text of a passage that looks like `passage` and does not state what the query
        asks for.
        """

    def lure(self, query: str, rng: random.Random) -> Passage | None:
        """Title and text of a wrong answer to the query in the corpus's own sentences."""


class Donor(NamedTuple):
    """A passage whose text may take the place of another's.

    Attributes:
        question: the question of the rollout that found it; empty for snippets of a corpus, as are
            the next two.
        query: the query that found it.
        tool: the tool that found it.
        title: its title.
        text: its text.
        url: its address.
        cited: whether the agent cited it for that query.
    """

    question: str
    query: str
    tool: str
    title: str
    text: str
    url: str = ""
    cited: bool = False

    @property
    def words(self) -> set[str]:
        return set(content_words(f"{self.query} {self.title} {self.text}"))


def corpus_snippets(
    rows: Iterable[Mapping[str, Any]], n: int = 256, seed: int = 0
) -> tuple[Passage, ...]:
    """Draw `n` pairs of title and text from a corpus (rows `title`, `text`), for
    `EvidenceSensitivity(snippets=…)`; all pairs, where there are fewer.

    The same rows in any order give the same pairs. Raises `ConfigError` when `n` is below 1,
    `DataError` when no row has a text.
    """
    if n < 1:
        raise ConfigError(f"corpus_snippets: n must be at least 1, not {n}")
    passages: set[Passage] = set()
    for row in rows:
        if str(row.get("text") or "").strip():
            passages.add((str(row.get("title") or ""), str(row["text"])))
    if not passages:
        raise DataError("corpus_snippets: no row has a text; rows need `title` and `text`")
    rng = random.Random(f"snippets:{seed}")
    # sorted, since a set has another order in each process
    return tuple(rng.sample(sorted(passages), min(n, len(passages))))


def donors_of(
    trajectories: Sequence[Trajectory],
    snippets: Sequence[str | Passage] = (),
    gather: Callable[[list[Any]], list[Any]] = list,
) -> list[Donor]:
    """The passages that may replace evidence: the snippets, or else the evidence of the
    trajectories of all processes that `gather` knows. They are sorted, so that the order of a batch
    does not matter.
    """
    if snippets:
        pairs = [("", snippet) if isinstance(snippet, str) else snippet for snippet in snippets]
        return sorted(Donor("", "", "", title, text) for title, text in pairs)
    donors: set[Donor] = set()
    for trajectory in trajectories:
        if trajectory.question:
            donors.update(_donors_of_one(trajectory.question, trajectory.steps))
    return sorted({Donor(*fields) for fields in gather(sorted(donors))})


def _donors_of_one(question: str, steps: Sequence[Step]) -> Iterator[Donor]:
    """The passages of one rollout; the agent cites them in the step behind theirs, if at all."""
    for step, next_step in zip_longest(steps, steps[1:]):
        cited = next_step.refs if next_step else ()
        for passage in step.evidence:
            yield Donor(
                question=question,
                query=query_of(step),
                tool=step.call.name if step.call else "",
                title=passage.title,
                text=passage.text,
                url=passage.url,
                cited=passage.id in cited,
            )


def known_texts(steps: Sequence[Step]) -> list[frozenset[str]]:
    """For each step the texts of its passages that the agent knows from before in another form: a
    snippet of a page, the page of a snippet, or a text that it was given before and has quoted.

    Exchanged, such a text would show by what the agent remembers, whether or not it reads it. The
    same text in an earlier response is no matter: `exchanged_before` exchanges it, too.
    """
    remembered: list[frozenset[str]] = []
    earlier: set[str] = set()
    thoughts = ""
    for step in steps:
        thoughts = f"{thoughts}\n{step.think or ''}"
        # without the end of each, since a snippet breaks off with a mark of its own
        cores = {passage.text: passage.text.rstrip(_ENDS) for passage in step.evidence}
        texts = [text for text, core in cores.items() if _is_known(core, earlier, thoughts)]
        remembered.append(frozenset(texts))
        earlier.update(cores.values())
    return remembered


def _is_known(core: str, earlier: Collection[str], thoughts: str) -> bool:
    """Whether a text was read before in another form, or before and was quoted in the thoughts."""
    if any(_overlap(core, text) for text in earlier):
        return True
    if core not in earlier:
        return False
    quotable = [sentence for sentence in sentences(core) if len(sentence) >= SHORTEST_KNOWN]
    return any(sentence.rstrip(_ENDS) in thoughts for sentence in quotable)


def _overlap(text: str, another: str) -> bool:
    """Whether one of two different texts stands in the other."""
    if len(text) > len(another):
        text, another = another, text
    return SHORTEST_KNOWN <= len(text) < len(another) and text in another


def exchanged_before(
    steps: Sequence[Step], evidence: Sequence[Evidence]
) -> dict[int, list[Evidence]]:
    """What earlier responses hold where the last one holds this `evidence`, by the index of their
    step: each text that is exchanged in the last response is exchanged in them, too.
    """
    new_texts = {
        passage.text: replaced.text
        for passage, replaced in zip(steps[-1].evidence, evidence, strict=True)
        if replaced.text != passage.text
    }
    responses = {}
    for index, step in enumerate(steps[:-1]):
        if any(passage.text in new_texts for passage in step.evidence):
            responses[index] = [_exchanged(passage, new_texts) for passage in step.evidence]
    return responses


def _exchanged(passage: Evidence, new_texts: Mapping[str, str]) -> Evidence:
    text = new_texts.get(passage.text, passage.text)
    return msgspec.structs.replace(passage, text=text)


class Degraded(NamedTuple):
    """Evidence with some passages exchanged; `by_foils`: one of the foils is among them."""

    evidence: list[Evidence]
    by_foils: bool = False


def degrade(
    previous: Step,
    refs: Collection[str],
    question: str | None,
    pool: Sequence[Donor],
    rng: random.Random,
    foils: Foils | None = None,
    hidden: str = "",
) -> Degraded | None:
    """`previous`'s evidence with the texts of the passages named in `refs` exchanged, each for
    another one; `None` where there is nothing to exchange one for.

    A text comes from `foils`, or is made of passages of `pool` that have nothing to do with what
    was asked. `hidden` must not remain anywhere: a title or an address that holds it is exchanged,
    too.
    """
    used_texts = {passage.text for passage in previous.evidence}
    query = asked_for(previous, question)
    evidence: list[Evidence] = []
    by_foils = False
    for passage in previous.evidence:
        if passage.id not in refs:
            evidence.append(passage)
            continue
        foil = _foil(foils, query, passage, used_texts, rng) if foils else None
        if foil is not None:
            by_foils = True
            replaced = msgspec.structs.replace(passage, text=foil)
        else:
            donors = _unrelated(passage, previous, question, pool, used_texts, rng)
            rewritten = _rewritten(passage, donors, hidden)
            if rewritten is None:
                return None
            replaced, used_donors = rewritten
            used_texts.update(donor.text for donor in used_donors)
        used_texts.add(replaced.text)
        evidence.append(replaced)
    return Degraded(evidence, by_foils)


def _foil(
    foils: Foils, query: str, passage: Evidence, used_texts: Collection[str], rng: random.Random
) -> str | None:
    """Of some that the response does not hold yet, the foil that is most nearly as long."""
    drawn = [foils.replace(query, passage, rng) for _ in range(FOIL_TRIES)]
    texts = [foil[1] for foil in drawn if foil and foil[1] not in used_texts]
    return min(texts, key=lambda text: abs(len(text) - len(passage.text)), default=None)


class Lured(NamedTuple):
    """Evidence with a lure at `place`; `by_foils`: it is a sentence of the corpus's."""

    evidence: list[Evidence]
    place: int
    by_foils: bool = False


def lure(
    previous: Step,
    question: str | None,
    pool: Sequence[Donor],
    rng: random.Random,
    foil: Passage | None = None,
    remembered: Collection[str] = (),
) -> Lured | None:
    """`previous`'s evidence with a lure in one of its texts: that of `foil`, where a passage has
    its title, or else a statement that answers the query with a name of the passages, or of the
    pool. Texts that are `remembered` stay. `None` where all others are far shorter than a lure.
    """
    evidence = list(previous.evidence)
    places = [place for place, passage in enumerate(evidence) if passage.text not in remembered]
    if foil is not None:
        alike = [place for place in places if evidence[place].title == foil[0]]
        if alike:
            place = rng.choice(alike)
            evidence[place] = msgspec.structs.replace(evidence[place], text=foil[1])
            return Lured(evidence, place, by_foils=True)
    query = asked_for(previous, question)
    donors = rng.sample(pool, min(TRIES, len(pool)))
    passages: list[Passage] = [(passage.title, passage.text) for passage in evidence]
    passages += [(donor.title, donor.text) for donor in donors]
    for place in rng.sample(places, len(places)):
        original = evidence[place]
        name = lure_name(original, passages, f"{query} {question or ''}", rng)
        text = statement(query, name, rng, like=original.text)
        if len(text) <= MOST_TIMES_AS_LONG * len(original.text):
            evidence[place] = with_lure(original, text, rng)
            return Lured(evidence, place)
    return None


def asked_for(step: Step, question: str | None) -> str:
    """What a call that brought evidence asked for: the words of its query without addresses; where
    it has none, the question, or the title of the first passage.
    """
    words = [word for word in query_of(step).split() if "://" not in word]
    return " ".join(words) or question or step.evidence[0].title or "this question"


def query_of(step: Step) -> str:
    """The strings that a call was made with, joined by blanks; empty where there was no call."""
    if step.call is None:
        return ""
    texts: list[str] = []
    for value in step.call.arguments.values():
        listed = value if isinstance(value, list) else [value]
        texts += [text for text in listed if isinstance(text, str)]
    return " ".join(texts).strip()


def _unrelated(
    passage: Evidence,
    previous: Step,
    question: str | None,
    pool: Sequence[Donor],
    used_texts: Collection[str],
    rng: random.Random,
) -> list[Donor]:
    """Passages of the pool that have nothing to do with the query, those most like `passage` in
    form first.

    They are of other questions and share no content word with this one and its query; where there
    are none, they may be of this question but share no word with the query.
    """
    query = set(content_words(query_of(previous)))
    topic = query | set(content_words(question or ""))
    of_other_questions: list[Donor] = []
    of_this_question: list[Donor] = []
    length = 0
    for looked_at, donor in enumerate(rng.sample(pool, len(pool))):
        if looked_at >= TRIES and length >= len(passage.text):
            break
        words = donor.words
        if donor.text in used_texts:
            continue
        if donor.question != question and topic.isdisjoint(words):
            of_other_questions.append(donor)
            length += len(donor.text)
        elif query and query.isdisjoint(words):
            of_this_question.append(donor)
    tool = previous.call.name if previous.call else ""
    return sorted(
        of_other_questions or of_this_question,
        key=lambda donor: _distance(passage, tool, donor),
    )


def _distance(passage: Evidence, tool: str, donor: Donor) -> float:
    """How much the form of two passages differs: their length, their tool, whether they name their
    title.

    Passages that were cited for their query come before others: it is known what they state, while
    the others may state of their subject just what is asked here.
    """
    passage_names_title = bool(mention(passage.title, passage.text))
    donor_names_title = bool(mention(donor.title, donor.text))
    distance = abs(math.log((len(donor.text) + 1) / (len(passage.text) + 1)))
    distance += passage_names_title != donor_names_title
    distance += donor.tool != tool
    distance += not donor.cited
    return distance


def _rewritten(
    passage: Evidence, donors: Sequence[Donor], hidden: str
) -> tuple[Evidence, list[Donor]] | None:
    """The passage with as many of the donors' texts as make one of its length, under its own title
    and address as far as they do not hold `hidden`; and those donors. `None` where they are not
    enough.
    """
    if not donors:
        return None
    title, url = passage.title, passage.url
    if hidden and hidden.casefold() in title.casefold():
        title = donors[0].title
    if hidden and hidden.casefold() in url.casefold():
        url = donors[0].url or urlsplit(url)._replace(path="/", query="", fragment="").geturl()
    original = passage.text
    name = mention(passage.title, original) if title == passage.title else ""
    leeway = slack(original)
    text = ""
    for number, donor in enumerate(donors, start=1):
        donor_name = mention(donor.title, donor.text)
        part = donor.text
        if donor_name and name:
            part = renamed(part, donor_name, name)
        text = f"{text}{gap(original)}{part}" if text else part
        if len(text) >= len(original) - leeway:
            text = ended_like(cut(text, len(original), leeway), original)
            rewritten = msgspec.structs.replace(passage, title=title, url=url, text=text)
            return rewritten, list(donors[:number])
    return None
