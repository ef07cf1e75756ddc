"""Which call asks for the answer before the agent can have read it: then the agent knew or guessed
it, and what comes back only agrees with it.
"""

from collections.abc import Iterable, Iterator, Mapping
from string import punctuation
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..answer_tokens import one_typography
from ..judges.lexical import terms
from ..text import content_words, exact_match, holds, normalize, sub_exact_match
from ..trajectory import Evidence, ToolCall, Trajectory
from .turns import QUERIES, passages, short_answer

UNKNOWN = "unknown"
"""The answer that claims nothing."""
YES_OR_NO = frozenset(("yes", "no", "true", "false"))
"""Answers that no passage holds."""
NEVER_LOOKED_UP = YES_OR_NO | {UNKNOWN}
"""Answers that calls hold by chance, as in "no country for old men"."""
_ARTICLES = frozenset(("a", "an", "the"))


class LookUp(NamedTuple):
    """A call that asks for what the agent had not read.

    Attributes:
        step: the number of the call's step, from 1.
        name: what it asks for: the answer, or a gold answer that is part of the answer.
    """

    step: int
    name: str


def first_look_up(trajectory: Trajectory) -> LookUp | None:
    """The first call that holds the answer, where neither the question nor any evidence before the
    call does; `None` where there is none.

    A call may hold an answer's words in any order, unless all of them were read before. Of an
    answer that says more than a gold answer ("It is Lima."), the gold answers in it are looked for,
    too. Those in `NEVER_LOOKED_UP`, and those of function words alone, never are.

    Example:
        >>> from faithful_search.trajectory import Step
        >>> search = Step("I look.", ToolCall("local_search", {"query": "Lima"}))
        >>> steps = (search, Step("So it is.", answer="Lima"))
        >>> first_look_up(Trajectory(steps, "What is the capital of Peru?", "Lima"))
        LookUp(step=1, name='Lima')
    """
    look_ups = []
    for name in _names(trajectory):
        step = _step_that_asks_for(name, trajectory)
        if step is not None:
            look_ups.append(LookUp(step, name))
    return min(look_ups, default=None)


def _names(trajectory: Trajectory) -> list[str]:
    """The answer; and where it says more than a gold answer, the gold answers in it."""
    answer = short_answer(trajectory)
    golds = trajectory.answers
    if exact_match(answer, golds, "squad") or exact_match(answer, golds, "unicode"):
        return [answer]
    return [answer, *(gold for gold in golds if sub_exact_match(answer, [gold], "unicode"))]


def _step_that_asks_for(name: str, trajectory: Trajectory) -> int | None:
    """The first step (from 1) whose call holds a name that the agent has not read by then."""
    name = one_typography(name)
    question = one_typography(trajectory.question or "")
    if _is_never_looked_up(name) or _stands_in(name, question):
        return None
    words_read = _words(question)
    for number, step in enumerate(trajectory.steps, start=1):
        if step.call is not None and _asks_for(name, step.call, words_read):
            return number
        returned = one_typography(_returned(step.evidence))
        if _is_read_in(returned, name, question):
            return None
        words_read |= _words(returned)
    return None


def _is_never_looked_up(name: str) -> bool:
    """Whether calls hold a name by chance: a yes or no, or function words alone ("It")."""
    plain_name = _plain(name)
    return plain_name in NEVER_LOOKED_UP or not content_words(plain_name)


def _asks_for(name: str, call: ToolCall, words_read: set[str]) -> bool:
    """Whether a call holds a name, or its words in another order or with others between, which find
    the same.
    """
    request = one_typography(_request(call))
    if _stands_in(name, request):
        return True
    words = _words(name)
    if words <= words_read:  # who has read them may put them together
        return False
    return words <= _words(request) and _is_meant_by_its_words(name)


def _is_meant_by_its_words(name: str) -> bool:
    """Whether a call that holds a name's words, apart from each other, asks for the name. Two words
    do. A single one does if the name has nothing else but an article: "Beatles" finds "The
    Beatles", but "man" need not mean "It Is a Man".
    """
    without_articles = set(_plain(name).split()) - _ARTICLES
    return len(_words(name)) > 1 or len(without_articles) == 1


def _is_read_in(returned: str, name: str, question: str) -> bool:
    """Whether who reads this text has read the name. Words at the name's ends that the question
    has need not stand in the text: who is asked for a city, and reads of New York, has read of New
    York City.
    """
    if _stands_in(name, returned):
        return True
    in_one_line = " ".join(returned.split())
    spellings = _spellings_as_a_name(_without_words_of(question, name))
    return any(holds(in_one_line, spelling) for spelling in spellings)


def _without_words_of(question: str, name: str) -> str:
    """A name without the words at its ends that the question has, too."""
    asked = set(_plain(question).split())
    words = name.split()
    while words and _plain(words[0]) in asked:
        del words[0]
    while words and _plain(words[-1]) in asked:
        del words[-1]
    return " ".join(words).strip(punctuation)


def _spellings_as_a_name(text: str) -> set[str]:
    """The ways to write a text as a name, with capitals: in small letters ("games" of "War Games")
    it stands in too many passages. There are none of a number, nor where no content word is left.
    """
    if all(word.isdecimal() for word in content_words(text)):
        return set()
    spellings = {text, text.title(), text.upper()}
    return {spelling for spelling in spellings if not spelling.islower()}


def _stands_in(name: str, text: str) -> bool:
    """Whether a text holds a name, or the same in another way to write numbers or dates."""
    if holds(_plain(text), _plain(name)):
        return True
    tokens = normalize(name, "unicode")
    return bool(tokens) and f" {tokens} " in f" {normalize(text, 'unicode')} "


def _words(text: str) -> set[str]:
    """What the words of a text are compared by: their terms. Words that say too little in a claim
    to have one ("search", "states") stay as they are, since answers may be made of them.
    """
    words_without_term = {word for word in content_words(_plain(text)) if not terms(word)}
    return terms(text) | words_without_term


def _plain(text: str) -> str:
    """A text's words in small letters, with a blank for each mark: so a word in tags stands apart
    from them.
    """
    return normalize(text, "pokee")


def _request(call: ToolCall) -> str:
    """What a call asks for: the texts in its arguments, one a line.

    Beside a text, numbers and switches are settings (`top_k`) and left out. So are whole numbers in
    quotes, unless they are a query themselves. Where there is no text, the settings are what the
    call asks for; without arguments, it is the call as written.
    """
    values = list(_values(call.arguments))
    if not values:
        return call.raw
    queries: list[Any] = []
    for name in QUERIES:
        queries += _values(call.arguments.get(name))
    texts = []
    for value in values:
        if isinstance(value, str) and (value in queries or not value.strip().isdecimal()):
            texts.append(unquote(value))
    return "\n".join(texts or map(str, values))


def _values(value: Any) -> Iterator[Any]:
    """The texts, numbers and switches within lists and dictionaries."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _values(inner)
    else:
        yield value


def _returned(evidence: Iterable[Evidence]) -> str:
    """What the agent can have read: passages, and addresses, which it may open next."""
    evidence = list(evidence)
    addresses = [unquote(f"{passage.url} {passage.source}") for passage in evidence]
    return "\n".join([passages(evidence), *addresses])
