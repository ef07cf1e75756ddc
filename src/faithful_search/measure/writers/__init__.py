"""Trajectories as others write them down, one file per format: a document for each row, with its scores as metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import atif, openai, pi, trajectory
from .turns import Document

WRITERS: dict[str, Callable[[Document], Any]] = {
    **{"atif": atif.write, "openai": openai.write, "pi": pi.write},
    **{"trajectory": trajectory.write},
}
"""By format, what makes of a row a value to be written as JSON; a list is one value a line."""

__all__ = ["WRITERS", "Document"]
