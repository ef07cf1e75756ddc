"""Lures: passages that seem to answer a query and do not."""

import random
import re
from collections.abc import Sequence

import msgspec

from ..trajectory import Evidence
from .form import SENTENCE_ENDS, cut, ended_like, gap, mention, names_of, slack

Passage = tuple[str, str]  # title and text

# In characters.
LONGEST_QUERY = 200
LONGEST_NAME = 60
_BE = "is|are|was|were"
_WORD = re.compile(r"\w+")
# Names, but not where a sentence begins: other words have a capital there, too.
_NAMES = re.compile(r"(?<=[a-z,] )[A-Z]\w{2,40}(?: [A-Z]\w{1,40}){0,3}")
# What a question asks for, and how a statement says it.
_WHAT_IS = re.compile(rf"(?:what|who|which|where|when)\s+({_BE})\s+(\S.*)", re.I | re.S)
_WHICH_ONE = re.compile(rf"(?:what|which|whose)\s+\S+\s+((?:{_BE}|has|had)\s+\S.*)", re.I | re.S)
_WHO_DID = re.compile(r"(?:who|what)\s+(\S+\s+\S.*)", re.I | re.S)
_FACT = re.compile(r"[^\n:]{1,200}, [^\n:]{1,80}: ")  # how lists of facts begin
_RELATION_OF = re.compile(r"(?:the )?([^ \d][^,;:?]*?) of (.+)", re.S)


def statement(query: str, name: str, rng: random.Random, like: str = "") -> str:
    """A sentence that gives `name` as the answer to a query, in the words of a reference work; a
    line of a list of facts, where the text that it is to be `like` is one.

    Example:
        >>> statement("Who wrote Emma?", "Ada", random.Random(0))
        'Ada wrote Emma.'
        >>> statement("capital of Peru", "Ada", random.Random(0), like="Chile, capital: Santiago.")
        'Peru, capital: Ada.'
    """
    question = " ".join(query.split())[:LONGEST_QUERY].rstrip(" ?.!,;:")
    if match := _WHAT_IS.fullmatch(question):
        verb, subject = match.groups()
        return f"{_capitalised(subject)} {verb.lower()} {name}."
    for pattern in (_WHICH_ONE, _WHO_DID):
        if match := pattern.fullmatch(question):
            return f"{name} {match[1]}."
    match = _RELATION_OF.fullmatch(question)
    if match is None:
        return f"{_capitalised(question)} is {name}."
    relation, subject = match.groups()
    if _FACT.match(like):
        return f"{subject}, {relation}: {name}."
    forms = (
        f"The {relation} of {subject} is {name}.",
        f"{name} is the {relation} of {subject}.",
        f"{_capitalised(subject)}'s {relation} is {name}.",
        f"{name} is {subject}'s {relation}.",
    )
    return rng.choice(forms)


def with_lure(passage: Evidence, lure: str, rng: random.Random) -> Evidence:
    """The passage with `lure` in its text, at the beginning or the end, and as much less of its own
    words.
    """
    original = passage.text
    leeway = slack(original)
    lure = cut(lure, len(original), leeway)
    room = len(original) - len(lure) - 1
    text = lure
    if room > leeway:
        own_words = cut(original, room, leeway)
        parts = [lure, own_words]
        if own_words[-1:] in SENTENCE_ENDS and rng.random() < 0.5:
            parts.reverse()
        text = gap(original).join(parts)
    return msgspec.structs.replace(passage, text=ended_like(text, original))


def lure_name(
    passage: Evidence, others: Sequence[Passage], question: str, rng: random.Random
) -> str:
    """The name that a lure in this passage gives as the answer to `question`.

    It is the passage's own subject, if its text names that, as a page about an answer does. Where
    that is no name, or the question names it, it is the subject of one of the `others`, or else a
    name in a text of theirs.
    """
    passages = rng.sample(others, len(others))
    names = [mention(passage.title, passage.text)]
    for title, _ in passages:
        names_of_title = names_of(title)
        if title != passage.title and names_of_title:
            names.append(names_of_title[-1])  # the shortest form
    for name in names:
        if _is_name(name) and name.casefold() not in question.casefold():
            return name
    for _, text in passages:
        for name in _NAMES.findall(text):
            if name.casefold() not in question.casefold():
                return str(name)
    return made_up_answer(question)


def made_up_answer(question: str) -> str:
    """The question's last capitalised word after the first, as it looks like a name; else its
    longest word.
    """
    words = _WORD.findall(question)
    names = [word for word in words[1:] if word[0].isupper()]
    word = names[-1] if names else max(words, key=len, default="this")
    return word[:LONGEST_NAME]


def _is_name(text: str) -> bool:
    """Whether all longer words begin as those of names do; in scripts without capitals any does."""
    words = _WORD.findall(text)
    return bool(words) and not any(word[0].islower() for word in words if len(word) > 3)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
