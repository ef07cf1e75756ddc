"""Short names of what is compared, which are never the same."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path: one, or as many as tell all paths apart.

    Raises `ConfigError` where two paths are the same.

    Example:
        >>> distinct_names([Path("/runs/1/pou"), Path("/runs/2/pou")])
        ['1/pou', '2/pou']
    """
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{path} is named twice: name what it is to be compared with")
    names = [path.name for path in paths]
    depth = 1
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in paths]
    return names
