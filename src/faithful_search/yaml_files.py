"""Settings, suites and options in YAML files: one way to read them, and to say what is wrong."""

from pathlib import Path
from typing import Any

from .errors import DataError, reason_of


def load_yaml(path: Path) -> Any:
    """The content of a YAML file; `None` for an empty one.

    Raises `DataError` where it cannot be read, where a value is not of its type or a key stands
    twice in a mapping, in one line with the place of the fault.
    """
    import yaml

    from .yaml_loaders import LOADERS

    try:
        return yaml.load(path.read_text(encoding="utf-8"), LOADERS[0])
    except (OSError, UnicodeError) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error
    except RecursionError as error:
        raise DataError(
            f"cannot read {path}: its lists or mappings are nested too deeply"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DataError(f"cannot read {path}, {place}{error.problem}") from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        why = " ".join(str(error).split())
        raise DataError(f"cannot read {path}: {why}") from error
