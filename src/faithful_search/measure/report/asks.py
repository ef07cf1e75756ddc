"""What each metric asks, and an audit's findings in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from ..invented import NOT_IN_CORPUS
from ..metrics import direction

if TYPE_CHECKING:
    from ..summary import Audit

LEXICAL = "words are compared, which is no judge"
WARNING = f"{LEXICAL}: on 23 thoughts, info_think_lexical agreed with a reader on 14 (κ −0.21)"
"""What must stand where a number stands that rests on the comparison of words."""
_RESULTS: dict[str, tuple[str, str]] = msgspec.json.decode((files(__package__) / "results.json").read_bytes())
"""By result, what it asks; and what is so, where it is good, in an audit's summary (nothing: it does not name it)."""
_HOW = {
    "_lexical": LEXICAL,
    "_faithfulness": "",
    "_squad": "SQuAD's normaliser",
    "_pokee": "PokeeResearch's normaliser",
}


def asks(name: str) -> str:
    """What the result asks and how it is found out; empty for a name that no metric gives.

    Example:
        >>> asks("think_search_lexical")
        'does each call follow from its thought? (words are compared, which is no judge)'
        >>> asks("repeated_calls")
        'which share of the calls was made before? (lower is better)'
    """
    question, _, how = _told(name)
    said = "; ".join(filter(None, [how, "lower is better" if direction(name) < 0 else ""]))
    return f"{question} ({said})" if question and said else question


def _told(name: str) -> tuple[str, str, str]:
    """What a result asks, what is so where it is good, and how it is found out."""
    ending = next((ending for ending in _HOW if name.endswith(ending)), "")
    question, good = _RESULTS.get(name) or _RESULTS.get(name.removesuffix(ending), ("", ""))
    return question, good, _HOW.get(ending, "")


def warning(names: Mapping[str, object]) -> str:
    """What to say below a table with these results; nothing where none rests on the comparison of words."""
    return f"…_lexical: {WARNING}" if any(name.endswith("_lexical") for name in names) else ""


def extremes(audit: Audit) -> tuple[str, str] | None:
    """The results that the audit is best and worst at; `None` with fewer than two that are shares with a direction."""
    shares = {
        name: 1 - row.value if direction(name) < 0 else row.value
        for name, row in audit.rows.items()
        if row.value is not None and _told(name)[1] and audit.bounds.get(name, (0.0, 1.0)) == (0.0, 1.0)
    }
    if len(shares) < 2:
        return None
    # of equal ones the first is best and the last worst, so that these are two even where all are equal
    return max(shares, key=shares.__getitem__), min(reversed(shares), key=shares.__getitem__)


def sentences(audit: Audit) -> list[str]:
    """Three sentences: what is good, what is worst, and how sure that is; before them what looks like a mistake."""
    found = []
    if audit.bare * 2 > audit.n:
        found.append(f"No searches found in {audit.bare:,} of {audit.n:,} rows: is this the right column?")
    invented = audit.issues.get(NOT_IN_CORPUS, 0)
    if invented > audit.evidence:
        passages = f"{invented:,} of {invented + audit.evidence:,} passages of evidence"
        found.append(f"{passages} are not in {audit.settings.get('corpus')}: is this the corpus that was searched?")
    named = extremes(audit) or ()
    for label, name in zip(("Best", "Worst"), named, strict=False):
        row = audit.rows[name]
        value, low, high = row.value or 0.0, row.low, row.high
        if direction(name) < 0:  # the share of what is good is the rest, and its interval is turned round
            value, low, high = 1 - value, None if high is None else 1 - high, None if low is None else 1 - low
        band = "" if low is None or high is None else f" (95% interval {low:.0%} to {high:.0%})"
        found.append(f"{label}: in {value:.0%}{band}, {_told(name)[1]} ({name}, {row.n:,} questions).")
    sure = [f"{audit.n:,} trajectories{' are' if named else ', nothing that is good or bad could be'} measured"]
    sure += [f"{audit.errors:,} rows could not be read"] if audit.errors else []
    sure += [f"{audit.abstained:,} were not judged completely"] if audit.abstained else []
    sure += ["the file could not be read to its end"] if audit.source_error else []
    sure += [WARNING] if any(name.endswith("_lexical") for name in named) else []
    sure += ["a single question has no interval"] if any(audit.rows[name].low is None for name in named) else []
    return [*found, f"How sure: {'; '.join(sure)}."]
