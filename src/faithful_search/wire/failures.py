"""Errors in words: on one line and without keys, in a log that does not fill up."""

import logging

from ..errors import kind_of
from ..escape import as_line
from ..text import shortened, well_formed
from .redact import redact

LONGEST = 500
"""Characters of an error's words: an error page in HTML must fill neither a log nor a policy's
context.
"""
_MOST_WARNINGS = 100  # of one log


class FailureLog:
    """The log of a module's failures: the first of each kind is a warning, later ones are for
    debugging. A service that is down for an hour must not fill the log.

    Args:
        module: the name of the logger.
    """

    def __init__(self, module: str) -> None:
        self._logger = logging.getLogger(module)
        self._warned_about: set[tuple[str, str]] = set()

    def add(self, failed: str, error: BaseException) -> str:
        """Log an error. Returns its kind, which unlike its text holds no secret.

        Args:
            failed: what failed, such as a tool's name or `parsing`.
        """
        kind = kind_of(error)
        level = logging.DEBUG
        is_new = (failed, kind) not in self._warned_about
        if is_new and len(self._warned_about) < _MOST_WARNINGS:
            self._warned_about.add((failed, kind))
            level = logging.WARNING
        # The texts that the error was made with, read so that none of its own code runs: not a
        # property `args`, nor the methods of a class derived from `str`.
        arguments = BaseException.args.__get__(error)[:5]  # type: ignore[attr-defined]
        texts = [argument for argument in arguments if type(argument) is str]
        words = one_line(" ".join(texts))
        self._logger.log(level, "%s failed: %s: %s", failed, kind, as_line(words))
        return kind


def one_line(text: str) -> str:
    """The beginning of a text without keys, on one line of at most `LONGEST` characters.

    Example:
        >>> one_line("no answer\\n from https://me:pass@host/")
        'no answer from https://[secret]@host/'
    """
    most = 4 * LONGEST  # enough for `LONGEST` characters after white space is taken out
    # `str.__getitem__`, since `text` may be of a class derived from `str` with methods of its own.
    beginning = str.__getitem__(text, slice(most + 1))
    if len(beginning) > most:
        # Without its last word: half a key would not be recognised as one.
        whole_words = beginning.rsplit(None, 1)[:-1]
        beginning = whole_words[0] if whole_words else ""
    words = well_formed(redact(beginning)).split()
    return shortened(" ".join(words), LONGEST)
