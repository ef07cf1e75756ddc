"""What a tool returned or raised, before it is kept, shown or logged: evidence checked and bounded, failures retold.

The words of errors may hold keys and addresses. They go to the local log only, never to a policy or a report.
"""

import logging
import math
from numbers import Real
from typing import Any

import msgspec

from ..errors import FaithfulSearchError, ToolError, kind_of
from ..text import shortened, well_formed
from ..trajectory import Evidence
from ..wire.redact import redact
from .base import Partial

EVIDENCE_LENGTH = 200_000
"""Characters that one call may return, titles and addresses included; where more was cut off, the last text says so."""
MOST_PASSAGES = 1_000
"""Passages that one call may return; the last text says that there were more."""
LINE_LENGTH = 2_000
"""Characters of a title, a source or an address; a longer one ends in an ellipsis."""
LONGEST = 500
"""Characters of an error's words: a stack of HTML must fill neither a log nor a policy's context."""
_CUT = f" [cut off here: a call returns at most {EVIDENCE_LENGTH:,} characters and {MOST_PASSAGES:,} passages]"
_MOST_KINDS = 100
_told: set[str] = set()


class Fault(FaithfulSearchError):
    """A tool that broke, or broke its promise, rather than said what is wrong: not kept, recorded or tried again."""


def evidence_of(name: str, found: Any) -> list[Evidence]:
    """What the tool `name` returned, as plain values of our own and within the limits above. Raises `Fault` when it is
    something else than a list of evidence whose texts are texts, and whatever reading it raises."""
    if not isinstance(found, (list, tuple)):
        raise Fault(f"Error: {name} failed: it returned {kind_of(found)}, not a list of Evidence.")

    def text(row: Evidence, part: str, most: int) -> str:
        value = getattr(row, part)
        if not isinstance(value, str):
            raise Fault(
                f"Error: {name} failed: the {part} of its Evidence is {kind_of(value)}, not str."
            )
        # a plain text even of a `str` with methods of its own; one character more than `most` shows that there is more
        return well_formed(str.__getitem__(value, slice(most + 1)))

    kept: list[Evidence] = Partial() if isinstance(found, Partial) else []
    room = EVIDENCE_LENGTH
    for row in found:
        if len(kept) == MOST_PASSAGES:
            break
        if not isinstance(row, Evidence):
            raise Fault(
                f"Error: {name} failed: it returned {kind_of(row)} in a list, not Evidence."
            )
        lines = (text(row, part, LINE_LENGTH) for part in ("title", "source", "url"))
        title, source, url = (shortened(each, LINE_LENGTH) for each in lines)
        score: Any = row.score
        if score is not None and not isinstance(score, Real):
            raise Fault(
                f"Error: {name} failed: the score of its Evidence is {kind_of(score)}, not a number."
            )
        number = (
            float(score) if score is not None and math.isfinite(score) else None
        )  # JSON knows no other numbers
        item = Evidence(text(row, "text", EVIDENCE_LENGTH), title, "", source, url, number)
        room -= sum(map(len, (item.text, item.title, item.source, item.url)))
        kept.append(item)
        if room < 0:
            break
    else:
        return kept
    last = kept[-1]
    fitting = last.text[: max(0, len(last.text) + min(room, 0))]
    kept[-1] = msgspec.structs.replace(last, text=fitting + _CUT)
    return kept


def failure_of(name: str, error: BaseException) -> ToolError | Fault:
    """What to raise in place of what the tool `name` raised: a `ToolError` keeps its words (see `one_line`), of any
    other error only the kind is told. What the network raises may pass."""
    if type(error) is Fault:
        return error
    kind: Any = type(error)  # unlike `isinstance`, this runs no code of the error
    told = f"Error: {name} failed: {kind_of(error)}."
    if issubclass(kind, OSError):
        return ToolError(told, passing=True)
    if not issubclass(kind, ToolError):
        return Fault(told)
    own: Any = error
    try:
        wait = own.retry_after
        wait = wait if isinstance(wait, (int, float)) and math.isfinite(wait) else None
        words = one_line(str(own)) or f"Error: {name} failed."
        return ToolError(words, passing=bool(own.passing), retry_after=wait, tried=bool(own.tried))
    except (Exception, SystemExit):  # a `ToolError` by its name only
        return Fault(told)


def unavailable(told: str, reason: str) -> ToolError:
    """A failure that only the operator can mend, such as a key that a service refuses: the policy reads `told`, the log
    says `reason`, once. It is passing, so that what a wrong key caused gets into no cache and no recording."""
    if reason not in _told:
        _told.add(reason)
        logging.getLogger(__name__).error("%s", reason)
    return ToolError(told, passing=True, tried=True)


def log_failure(
    log: logging.Logger, known: set[tuple[str, str]], what: str, error: BaseException
) -> None:
    """Log that `what` failed with this error: as a warning unless it is `known` to fail so, and else for debugging."""
    failure = (what, kind_of(error))
    # one warning for each kind: a service that is down for an hour must not fill the log
    new = failure not in known and len(known) < _MOST_KINDS
    if new:
        known.add(failure)
    # the texts that it was made with; none of its code is run
    texts = BaseException.args.__get__(error)[:5]  # type: ignore[attr-defined]
    said = one_line(" ".join(text for text in texts if type(text) is str))
    log.log(logging.WARNING if new else logging.DEBUG, "%s failed: %s: %s", *failure, said)


def one_line(text: str) -> str:
    """The beginning of a text without keys, on one line of at most `LONGEST` characters.

    Example:
        >>> one_line("no answer\\n from https://me:pass@host/")
        'no answer from https://[secret]@host/'
    """
    most = 4 * LONGEST
    begun = str.__getitem__(
        text, slice(most + 1)
    )  # a plain one, even of a `str` with methods of its own
    if len(begun) > most:
        *whole, _ = begun.rsplit(None, 1)
        begun = whole[0] if whole else ""  # half a key would not be recognised as one
    return shortened(" ".join(well_formed(redact(begun)).split()), LONGEST)
