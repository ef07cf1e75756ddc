"""Summaries that a model writes for a tool, without sentences that only repeat the query.

A condenser knows what the agent looks for, and may write that down as if it had been found. The
agent would then get its own words back as evidence.
"""

from collections.abc import Iterable, Sequence

from ..errors import ToolError
from ..text import sentences
from .base import Condenser
from .words import words


async def summary_of(condenser: Condenser, query: str, passages: Sequence[str]) -> str:
    """What `condenser` writes about the query; empty where the passages say nothing about it.

    Raises:
        ToolError: the condenser fails, or writes nothing but what the query says.
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
        >>> summary = "It has nine arches. Ann built it."
        >>> without_the_query(summary, "arches built by Ann", ["Nine arches."])
        'It has nine arches.'
    """
    passage_words: set[str] = set()
    for passage in passages:
        passage_words.update(words(passage))
    query_words = words(query)
    only_in_query = set(query_words) - passage_words
    if not only_in_query:
        return text
    # Between blanks, so that the words are found as whole words.
    query_text = f" {' '.join(query_words)} "

    def repeats(sentence: str) -> bool:
        names = {word.casefold() for word in words(sentence, fold=False) if not word.islower()}
        if not names.isdisjoint(only_in_query):
            return True
        return query_text in f" {' '.join(words(sentence))} "

    all_sentences = sentences(text)
    supported = [sentence for sentence in all_sentences if not repeats(sentence)]
    return text if len(supported) == len(all_sentences) else " ".join(supported)
