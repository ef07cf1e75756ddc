"""Edits of a statement: what makes it false, with the place of the error, and what leaves it true.

Every edit is by rule, so that its label is known. An edit that does not apply gives `None`.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..bundled import bundled_json

Span = tuple[int, int]


class Edited(NamedTuple):
    """A statement after an edit.

    Attributes:
        text: the statement as it now reads.
        kind: which edit it was, a key of `ERRORS` or `REWORDINGS`.
        spans: the characters (start, end) of `text` that the edit made wrong; empty where it is
            still true.
        old, new: the texts that were exchanged, to make the same exchange elsewhere; empty where
            the edit exchanges nothing.
    """

    text: str
    kind: str
    spans: tuple[Span, ...] = ()
    old: str = ""
    new: str = ""


Edit = Callable[[str, Sequence[str], random.Random], Edited | None]
"""Takes a statement, texts from which other names and numbers may come, and the random numbers."""

_WORDS = bundled_json("statement_edits.json")
_MONTHS: list[str] = _WORDS["months"]
RELATIONS: dict[str, str] = {}
for _first, _second in _WORDS["relations"]:
    RELATIONS[_first] = _second
    RELATIONS[_second] = _first
"""Words that exchange one relation for another: "north" for "south", "directed" for "written"."""
SYNONYMS: dict[str, str] = dict(_WORDS["synonyms"])
"""Phrases, and others that say the same."""
_NAME = re.compile(
    r"[A-Z][\w'\u2019-]+"
    r"(?:\s(?:of|the|de|van|von|der|la|al|and|for|in)(?=\s[A-Z])|\s[A-Z][\w'\u2019-]*\.?)*"
)
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|[.,]\d|-\d)")
_AUXILIARY = re.compile(r"\b(?:is|was|are|were|has|had|can|could|will|would|did|does)\b(?! not\b)")
_NOT = re.compile(r"\b(?:is|was|are|were|has|had|can|could|will|would|did|does)( not)\b")
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}}) ({'|'.join(_MONTHS)}) (\d{{4}})\b")
_MONTH_FIRST = re.compile(rf"\b({'|'.join(_MONTHS)}) (\d{{1,2}}), (\d{{4}})\b")
_DATE = re.compile(rf"\b(?:{'|'.join(_MONTHS)})\b")
_YEAR = re.compile(r"1[0-9]{3}|20[0-2][0-9]")
_BRACKETS = re.compile(r"(?<!\s)\s*\([^()]*\)")
_ASIDE = re.compile(r", (?:which|who|where|whose|including|especially|also known as)\b[^,.]*,?")
_LAST_CLAUSE = re.compile(
    r"(?:,| and| but|;) (?:which|who|he|she|it|they|was|is|has|had|in|with|as)\b.*$"
)
_BY = re.compile(
    r"^(?P<object>[^,]{3,80}?) (?:was|is) (?P<verb>directed|written|produced|founded|released|"
    r"composed|designed|created|published|recorded) by (?P<subject>[A-Z][^,.;]{2,60})\.?$"
)
_RELATION_WORD = re.compile(
    rf"\b(?:{'|'.join(sorted(map(re.escape, RELATIONS), key=len, reverse=True))})\b"
)
_SYNONYM = re.compile(
    rf"\b(?:{'|'.join(sorted(map(re.escape, SYNONYMS), key=len, reverse=True))})\b"
)
# words with a capital that name nothing
_NO_NAMES = frozenset(_WORDS["no_names"])


def names(text: str) -> list[str]:
    """The names in a text, by their capitals: words that begin with one, inside a sentence or
    several in a row.

    Example:
        >>> names("The film was directed by Henrik Ruben Genz, who lives in Denmark.")
        ['Henrik Ruben Genz', 'Denmark']
    """
    result = []
    for match in _NAME.finditer(text):
        name = match[0].rstrip(".")
        words = name.split()
        while words and words[0] in _NO_NAMES:
            words = words[1:]
        before = text[: match.start()]
        begins_sentence = not before or before.rstrip()[-1:] in ".!?\n\"'"
        if begins_sentence and len(words) == 1:
            continue  # such a word has its capital there whatever it is
        if words:
            result.append(" ".join(words))
    return result


def other_name(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """Another name, of about as many words, in the place of one."""
    here = [name for name in names(statement) if not _DATE.fullmatch(name)]
    if not here:
        return None
    old = rng.choice(here)
    names_elsewhere: set[str] = set()
    for text in texts:
        names_elsewhere.update(names(text))
    lowered = statement.lower()
    candidates = []
    for name in sorted(names_elsewhere):
        has_like_length = abs(len(name.split()) - len(old.split())) <= 1
        is_in_statement = name.lower() in lowered or _share_word(name, old)
        if has_like_length and not is_in_statement and not _DATE.search(name):
            candidates.append(name)
    if not candidates:
        return None
    return _exchanged(statement, old, rng.choice(candidates), "name")


def other_number(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """Another number, half of the time one of the texts with as many digits."""
    here = _NUMBER.findall(statement)
    if not here:
        return None
    old = rng.choice(here)
    numbers_elsewhere: set[str] = set()
    for text in texts:
        numbers_elsewhere.update(_NUMBER.findall(text))
    candidates = []
    for number in sorted(numbers_elsewhere):
        if len(number) == len(old) and number not in statement:
            candidates.append(number)
    takes_another = bool(candidates) and rng.random() < 0.5
    new = rng.choice(candidates) if takes_another else _changed_number(old, rng)
    if new in statement:
        return None
    return _exchanged(statement, old, new, "number")


def other_date(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """Another month, or a year some years off."""
    month = _DATE.search(statement)
    if month is not None and rng.random() < 0.5:
        new = rng.choice([name for name in _MONTHS if name != month[0]])
        return _exchanged(statement, month[0], new, "date")
    years = [number for number in _NUMBER.findall(statement) if _YEAR.fullmatch(number)]
    if not years:
        return None
    old = rng.choice(years)
    direction = rng.choice((-1, 1))
    distance = rng.choice((1, 2, 3, 5, 8, 10, 12, 20, 31))
    new = str(int(old) + direction * distance)
    if new in statement:
        return None
    return _exchanged(statement, old, new, "date")


def negated(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """The opposite: with "not" behind the first auxiliary verb, or without the "not" there."""
    denial = _NOT.search(statement)
    if denial is not None:
        not_start, not_end = denial.span(1)
        text = statement[:not_start] + statement[not_end:]
        return Edited(text, "negation", ((denial.start(), not_start),), old=denial[0])
    verb = _AUXILIARY.search(statement)
    if verb is None:
        return None
    start, end = verb.span()
    denied = f"{verb[0]} not"
    text = statement[:start] + denied + statement[end:]
    spans = ((start, start + len(denied)),)
    return Edited(text, "negation", spans, old=verb[0], new=denied)


def other_relation(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """Another relation between the same things."""
    here = list(_RELATION_WORD.finditer(statement))
    if not here:
        return None
    old = rng.choice(here)[0]
    return _exchanged(statement, old, RELATIONS[old], "relation")


def swapped_roles(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """Two names in each other's place."""
    here = [name for name in names(statement) if " " in name]
    if len(here) < 2:
        return None
    first = here[0]
    second = here[-1]
    if first in second or second in first:
        return None
    before, _, remainder = statement.partition(first)
    between, _, after = remainder.partition(second)
    if not re.search(r"\b(?:by|of|from|than|with|defeated|married|to)\b", between):
        return None
    text = f"{before}{second}{between}{first}{after}"
    second_start = len(before)
    second_end = second_start + len(second)
    first_start = second_end + len(between)
    first_end = first_start + len(first)
    return Edited(text, "roles", ((second_start, second_end), (first_start, first_end)))


def with_addition(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """The statement with a further clause, which one of the texts says of something else."""
    clauses = []
    for text in texts:
        match = re.search(
            r"\b(?:is|was|has|had|won|played|became|served|died|lived) [^.;()]*", text
        )
        if match is not None and 20 <= len(match[0]) <= 120:
            clauses.append(match[0].strip())
    if not clauses:
        return None
    body = statement.rstrip(" .")
    addition = rng.choice((", and ", ", which ", " and ")) + rng.choice(clauses)
    start = len(body)
    return Edited(f"{body}{addition}.", "addition", ((start, start + len(addition)),))


def compressed(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """The statement without brackets, asides or its last clause."""
    text = _BRACKETS.sub("", statement)
    if rng.random() < 0.7:
        text = _ASIDE.sub("", text)
    if len(text) > 80 and rng.random() < 0.7:
        shorter = _LAST_CLAUSE.sub("", text)
        if len(shorter) > 35:
            text = shorter
    text = text.rstrip(" .,;") + "."
    if text == statement or len(text) <= 20:
        return None
    return Edited(text, "compressed")


def reworded(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """The statement with a phrase that says the same, a date in the other order, or in the active
    voice.
    """
    text = _MONTH_FIRST.sub(r"\2 \1 \3", statement)
    if text == statement:
        text = _DAY_FIRST.sub(r"\2 \1, \3", statement)
    by = _BY.match(text)
    if by is not None:
        text = f"{by['subject']} {_WORDS['active'][by['verb']]} {by['object']}."
    text = _SYNONYM.sub(lambda match: SYNONYMS[match[0]], text, count=2)
    return Edited(text, "reworded") if text != statement else None


def introduced(statement: str, texts: Sequence[str], rng: random.Random) -> Edited | None:
    """The statement behind words with which a writer reports it."""
    introduction = rng.choice(_WORDS["introductions"])
    first_word, _, _ = statement.partition(" ")
    body = statement
    if first_word in _NO_NAMES:
        body = statement[:1].lower() + statement[1:]
    return Edited(f"{introduction} {body}", "introduced")


ERRORS: dict[str, Edit] = {
    "name": other_name,
    "number": other_number,
    "date": other_date,
    "negation": negated,
    "relation": other_relation,
    "roles": swapped_roles,
    "addition": with_addition,
}
"""Edits after which a statement is false where the original was true."""
REWORDINGS: dict[str, Edit] = {
    "compressed": compressed,
    "reworded": reworded,
    "introduced": introduced,
}
"""Edits that leave a true statement true, and a false one false."""


def exchange(text: str, edited: Edited) -> str:
    """The same exchange of names or numbers in another text; the text as it is where there is
    nothing to exchange.
    """
    if not edited.old or not edited.new:
        return text
    return re.sub(rf"(?<!\w){re.escape(edited.old)}(?!\w)", lambda _: edited.new, text)


def _exchanged(statement: str, old: str, new: str, kind: str) -> Edited | None:
    match = re.search(rf"(?<!\w){re.escape(old)}(?!\w)", statement)
    if match is None:
        return None
    start, end = match.span()
    text = statement[:start] + new + statement[end:]
    return Edited(text, kind, ((start, start + len(new)),), old, new)


def _changed_number(old: str, rng: random.Random) -> str:
    """A number of as many digits, another one."""
    digits = [place for place, character in enumerate(old) if character.isdigit()]
    place = rng.choice(digits)
    choices = [digit for digit in "123456789" if digit != old[place]]
    return old[:place] + rng.choice(choices) + old[place + 1 :]


def _share_word(first: str, second: str) -> bool:
    return not set(first.lower().split()).isdisjoint(second.lower().split())
