"""What comes with the package: the bundled world's files and the tiny policy."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from .errors import DataError


def world_file(name: str) -> Path:
    """Path of a file of the bundled world. Raises `DataError` when there is none of that name."""
    path = _data("world") / name
    if not path.exists():
        there = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.exists() else []
        raise DataError(f"the bundled world has no file {name!r}; it has: {', '.join(there)}")
    return path


def tiny_policy() -> Path:
    """Directory of the bundled tiny policy, cold-started by `recipes/sft.py --config recipes/configs/sft_tiny.yaml`."""
    path = _data("tiny_policy")
    if not (path / "config.json").exists():
        raise DataError(
            f"no tiny policy in {path}; make it with: python recipes/sft.py --config recipes/configs/sft_tiny.yaml"
        )
    return path


def _data(name: str) -> Path:
    return Path(str(files("faithful_search") / "data" / name))
