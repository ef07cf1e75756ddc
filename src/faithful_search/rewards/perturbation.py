"""What replaces evidence when a verdict is tested: unrelated texts, look-alikes (foils), and lures.

Only texts are replaced. Id, title, address and place of a passage stay, and its new text is about
as long as the old one, ends alike, and names the title where the old one did. So a policy cannot
tell by the form of a response whether it is the real one; it has to read.
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
"""The number of passages of the pool that are tried for one replacement; more, where those are too
short together.
"""
MOST_TIMES_AS_LONG = 2
"""A lure may be so many times as long as the text that it replaces. A longer one would be
recognised by its length.
"""
FOIL_TRIES = 4
"""The number of foils that are drawn for one replacement, of which the best in length is used."""
SHORTEST_KNOWN = 32
"""A text of fewer characters may stand in another by chance, and does not count as read before."""
_ENDS = " \n.\u2026"
"""Characters that do not count at the end of a text where texts are compared."""


@runtime_checkable
class Foils(Protocol):
    """Passages that look like what a query asks for and state another fact, for corpora whose facts
    are known.

    All draws come from `rng`, so that the same generator gives the same passage. `None` means that
    there is none. Only the text of a returned passage is used, under the title of the passage that
    it replaces.
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
        question: the question of the rollout that it was returned in; empty for snippets of a
            corpus, as are `query` and `tool`.
        query: the query that it was returned for.
        tool: the tool that returned it.
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
    trajectories in all processes, which `gather` collects. They are sorted, so that the order of a
    batch does not matter.
    """
    if snippets:
        of_corpus: list[Donor] = []
        for snippet in snippets:
            title, text = ("", snippet) if isinstance(snippet, str) else snippet
            of_corpus.append(Donor(question="", query="", tool="", title=title, text=text))
        return sorted(of_corpus)
    donors: set[Donor] = set()
    for trajectory in trajectories:
        if trajectory.question:
            donors.update(_donors_of_one(trajectory.question, trajectory.steps))
    return sorted({Donor(*fields) for fields in gather(sorted(donors))})


def _donors_of_one(question: str, steps: Sequence[Step]) -> Iterator[Donor]:
    """The passages of one rollout. The agent cites them, if at all, in the step after theirs."""
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
    """For each step the texts of its passages that the agent knows from before in another form: as
    a snippet of a page, as the page of a snippet, or as a quotation in its own thoughts.

    If such a text were replaced, the agent could notice it from what it remembers, whether or not
    it reads. A text that only stood in an earlier response in the same form is none of them, since
    `exchanged_before` replaces it there, too.
    """
    remembered: list[frozenset[str]] = []
    earlier: set[str] = set()
    thoughts = ""
    for step in steps:
        thoughts = f"{thoughts}\n{step.think or ''}"
        # Compared without their ends, since a snippet breaks off with a mark of its own
        cores = {passage.text: passage.text.rstrip(_ENDS) for passage in step.evidence}
        texts = [text for text, core in cores.items() if _is_known(core, earlier, thoughts)]
        remembered.append(frozenset(texts))
        earlier.update(cores.values())
    return remembered


def _is_known(core: str, earlier: Collection[str], thoughts: str) -> bool:
    """Whether a text was read before in another form, or in the same form and is quoted in the
    thoughts.
    """
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
    """The evidence of earlier responses, by the index of their step, if that of the last one
    becomes this `evidence`: each text that is replaced there is replaced in them, too. Responses
    without such a text are left out.
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
    """The evidence of the step `previous` with new texts for the passages named in `refs`; `None`
    where one of them has no replacement.

    A new text comes from `foils`, or is made of passages of `pool` that have nothing to do with
    what was asked. No title or address may hold `hidden`: one that does is replaced, too.
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
    """The text of a foil that the response does not hold yet, of `FOIL_TRIES` the nearest in
    length.
    """
    unused_texts = []
    for _ in range(FOIL_TRIES):
        foil = foils.replace(query, passage, rng)
        if foil is None:
            continue
        _, text = foil
        if text not in used_texts:
            unused_texts.append(text)

    def difference_in_length(text: str) -> int:
        return abs(len(text) - len(passage.text))

    return min(unused_texts, key=difference_in_length, default=None)


class Lured(NamedTuple):
    """Evidence with a lure at `place`; `by_foils`: it is a sentence of the corpus."""

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
    """The evidence of the step `previous` with a lure in one of its texts.

    The lure is the text of `foil`, if a passage has its title. Else it is a sentence that answers
    the query with a name from the passages or the pool. Texts that are `remembered` stay. `None`
    where the other texts are too short for a lure.
    """
    evidence = list(previous.evidence)
    places = [place for place, passage in enumerate(evidence) if passage.text not in remembered]
    if foil is not None:
        foil_title, foil_text = foil
        alike = [place for place in places if evidence[place].title == foil_title]
        if alike:
            place = rng.choice(alike)
            evidence[place] = msgspec.structs.replace(evidence[place], text=foil_text)
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
    """What the call of a step with evidence asked for: the words of its query without addresses.
    Where there are none, it is the question, or the title of the first passage.
    """
    words = [word for word in query_of(step).split() if "://" not in word]
    return " ".join(words) or question or step.evidence[0].title or "this question"


def query_of(step: Step) -> str:
    """The strings that a call was made with, joined by blanks; empty where there was no call."""
    if step.call is None:
        return ""
    texts: list[str] = []
    for argument in step.call.arguments.values():
        values = argument if isinstance(argument, list) else [argument]
        texts += [value for value in values if isinstance(value, str)]
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

    A donor that was cited for its query is nearer than others: what it states answers that query,
    while the others might state of their subject just what is asked here.
    """
    passage_names_title = bool(mention(passage.title, passage.text))
    donor_names_title = bool(mention(donor.title, donor.text))
    distance = abs(math.log((len(donor.text) + 1) / (len(passage.text) + 1)))
    distance += passage_names_title != donor_names_title
    distance += donor.tool != tool
    distance += not donor.cited
    return distance


def _site_of(url: str) -> str:
    """The address without path, query and fragment."""
    return urlsplit(url)._replace(path="/", query="", fragment="").geturl()


def _rewritten(
    passage: Evidence, donors: Sequence[Donor], hidden: str
) -> tuple[Evidence, list[Donor]] | None:
    """The passage with the texts of as many donors as make up its length, and these donors. `None`
    where all of them together are too short. Its title and address are replaced if they hold
    `hidden`.
    """
    if not donors:
        return None
    title = passage.title
    if hidden and hidden.casefold() in title.casefold():
        title = donors[0].title
    url = passage.url
    if hidden and hidden.casefold() in url.casefold():
        url = donors[0].url or _site_of(url)
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
