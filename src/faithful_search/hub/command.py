"""The command that a card says something was made with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..wire.redact import redact


def command_line(recipe: str, argv: Sequence[str]) -> str:
    """How a recipe was called, to be pasted into a shell, without the secrets among its flags.

    Example:
        >>> command_line("recipes/pou.py", ["--seed", "1", "--hub_token", "x"])
        'accelerate launch recipes/pou.py --seed 1 --hub_token [secret]'
    """
    words = redact(["accelerate", "launch", recipe, *argv])  # before quoting, which would hide one with a quote in it
    return str(redact(shlex.join(words)))
