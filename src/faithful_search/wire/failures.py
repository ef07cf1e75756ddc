"""An error in words: on one line without keys for whoever asked, and once in the local log."""

import logging

from ..errors import kind_of
from ..escape import as_line
from ..text import shortened, well_formed
from .redact import redact

LONGEST = 500
"""Characters of an error's words: a stack of HTML must fill neither a log nor a policy's
context.
"""
_MOST_KINDS = 100


class FailureLog:
    """The log of a module's failures: the first of each kind is a warning, later ones are for
    debugging. A service that is down for an hour must not fill the log.
    """

    def __init__(self, module: str) -> None:
        self._logger = logging.getLogger(module)
        self._known: set[tuple[str, str]] = set()

    def add(self, what: str, error: BaseException) -> str:
        """Log that `what` failed with this error. Gives the kind of the error, which holds no
        secret.
        """
        kind = kind_of(error)
        level = logging.DEBUG
        if (what, kind) not in self._known and len(self._known) < _MOST_KINDS:
            self._known.add((what, kind))
            level = logging.WARNING
        # the texts that it was made with; none of its code is run
        texts = BaseException.args.__get__(error)[:5]  # type: ignore[attr-defined]
        words = one_line(" ".join(text for text in texts if type(text) is str))
        self._logger.log(level, "%s failed: %s: %s", what, kind, as_line(words))
        return kind


def one_line(text: str) -> str:
    """The beginning of a text without keys, on one line of at most `LONGEST` characters.

    Example:
        >>> one_line("no answer\\n from https://me:pass@host/")
        'no answer from https://[secret]@host/'
    """
    most = 4 * LONGEST
    # a plain text, even of a `str` with methods of its own
    beginning = str.__getitem__(text, slice(most + 1))
    if len(beginning) > most:  # without its last word: half a key would not be recognised as one
        whole_words = beginning.rsplit(None, 1)[:-1]
        beginning = whole_words[0] if whole_words else ""
    return shortened(" ".join(well_formed(redact(beginning)).split()), LONGEST)
