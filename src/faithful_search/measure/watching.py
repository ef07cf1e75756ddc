"""A file that somebody else is still writing: when there is more of it to read."""

import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError

PAUSE = 1.0
"""Seconds between two looks at the file, and more where what is done with it takes longer."""
_LINES = (".jsonl", ".ndjson")


def grown(path: Path, pause: float = PAUSE) -> Iterator[int]:
    """Yield the file's size when there is anything in it, and again whenever it has changed; waits
    for a file that is not there yet, and never ends by itself.

    Between two looks it sleeps for `pause` seconds, or twice as long as its caller took. Raises
    `ConfigError` for a file that is not of lines: another one cannot be read before it is whole.
    """
    if path.suffix.lower() not in _LINES:
        raise ConfigError(
            f"{path} cannot be watched: only files of JSON lines ({', '.join(_LINES)})"
        )
    before: tuple[int, int] | None = None
    while True:
        now = _state(path)
        begun = time.monotonic()
        if now is not None and now != before:
            before = now
            yield now[0]
        time.sleep(max(pause, 2 * (time.monotonic() - begun)))


def _state(path: Path) -> tuple[int, int] | None:
    """Size and time of the last change; `None` while there is nothing to read."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return (stat.st_size, stat.st_mtime_ns) if stat.st_size else None
