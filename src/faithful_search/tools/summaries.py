"""What a model writes for a tool about a query, without what only the query says.

A condenser is told what the agent looks for, and may write that down as if it had been found. Such
a sentence would be the agent's own word, come back as evidence.
"""

from collections.abc import Iterable, Sequence

from ..errors import ToolError
from ..text import sentences
from .base import Condenser
from .words import words


async def summary_of(condenser: Condenser, query: str, passages: Sequence[str]) -> str:
    """What `condenser` writes about the query, empty where the passages say nothing. Raises
    `ToolError` where it fails, or writes nothing but what the query says.
    """
    summary = (await condenser.condense(query, passages)).strip()
    supported = without_the_query(summary, query, passages)
    if summary and not supported:
        raise ToolError("the summary repeats the query")
    return supported


def without_the_query(text: str, query: str, passages: Iterable[str]) -> str:
    """The sentences of `text` whose names and numbers do not come from the query alone; the text as
    it is where all may stay.

    Names and numbers are words with a capital, a digit or a letter that has no case. A sentence
    that repeats the whole query goes, too, unless a passage has it.

    Example:
        >>> without_the_query("It has nine arches. Ann built it.", "arches built by Ann", ["Nine arches."])
        'It has nine arches.'
    """
    passage_words = {word for passage in passages for word in words(passage)}
    query_words = words(query)
    only_asked = set(query_words) - passage_words
    if not only_asked:
        return text
    query_text = f" {' '.join(query_words)} "

    def repeats(sentence: str) -> bool:
        sentence_words = words(sentence, fold=False)
        named = {word.casefold() for word in sentence_words if not word.islower()}
        return bool(only_asked & named) or query_text in f" {' '.join(words(sentence))} "

    every = sentences(text)
    supported = [sentence for sentence in every if not repeats(sentence)]
    return text if len(supported) == len(every) else " ".join(supported)
