"""The words of errors, for the local log only: they may hold keys and addresses, which no policy or report may."""

from __future__ import annotations

import logging
from functools import cache

from ..errors import ToolError, kind_of
from ..text import shortened, well_formed
from ..wire.redact import redact

LONGEST = 500
"""Characters of an error's words: a stack of HTML must fill neither a log nor a policy's context."""
_MOST_WORDS = 5
_MOST_KINDS = 100


class ErrorLog:
    """Logs what went wrong: as a warning the first time that an error is of its kind, later for debugging.

    Example:
        >>> errors = ErrorLog(logging.getLogger("tools"))
        >>> errors.tell("web_search", KeyError("results"))
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._kinds: set[tuple[str, str]] = set()

    def tell(self, what: str, error: BaseException) -> None:
        """Log that `what` failed with this error."""
        kind = kind_of(error)
        # one warning for each kind: a service that is down for an hour must not fill the log
        new = (what, kind) not in self._kinds and len(self._kinds) < _MOST_KINDS
        if new:
            self._kinds.add((what, kind))
        if self._log.isEnabledFor(level := logging.WARNING if new else logging.DEBUG):
            self._log.log(level, "%s failed: %s: %s", what, kind, said(error))


def unavailable(told: str, reason: str) -> ToolError:
    """A failure that only the operator can mend, such as a key that a service refuses.

    The policy reads no more than `told`; the log says `reason`, once. It is passing, because the operator may mend it:
    so what a wrong key caused gets into no cache and no recording.
    """
    _tell_operator(reason)
    return ToolError(told, passing=True, tried=True)


@cache
def _tell_operator(reason: str) -> None:
    logging.getLogger(__name__).error("%s", reason)


def said(error: BaseException) -> str:
    """The texts that an error was made with, as `one_line` gives them. None of its code is run."""
    words = BaseException.args.__get__(error)[:_MOST_WORDS]  # type: ignore[attr-defined]
    return one_line(" ".join(word for word in words if type(word) is str))


def one_line(text: str) -> str:
    """The beginning of a text without keys, on one line of at most `LONGEST` characters.

    Example:
        >>> one_line("no answer\\n from https://me:pass@host/")
        'no answer from https://[secret]@host/'
    """
    most = 4 * LONGEST
    begun = str.__getitem__(text, slice(most + 1))  # a plain one, even of a `str` with methods of its own
    if len(begun) > most:
        *whole, _ = begun.rsplit(None, 1)
        begun = whole[0] if whole else ""  # half a key would not be recognised as one
    return shortened(" ".join(well_formed(redact(begun)).split()), LONGEST)
