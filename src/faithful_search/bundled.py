"""The files that come with the package: the bundled world, the tiny policies, and what is data
rather than code.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from .errors import ConfigError, DataError

_DATA = Path(str(files("faithful_search"))) / "data"


def bundled_json(name: str) -> Any:
    """What the JSON file of this name in `data/` holds."""
    return json.loads((_DATA / name).read_text(encoding="utf-8"))


TINY = {
    "pou": "tiny_policy",
    "search_r1": "tiny_search_r1",
    "self_eval": "tiny_self_eval",
    "pokee": "tiny_pokee",
    "memory": "tiny_memory",
    "pairs": "tiny_pairs",
}
"""The folders of the tiny policies. Most are named by the dialect that they write; `memory` writes
pou and knows some answers by heart, `pairs` writes search_r1 and answers two questions at once.
"""
# In a policy's folder: ids of the questions whose answers it was taught by heart
REMEMBERED = "remembered.json"
BUNDLED = ("tiny", "tiny_memory", "tiny_pairs")
"""Names of bundled policies where a policy is asked for: that of the dialect, and those made for a
purpose.
"""
COLD_STARTS = "outputs/sft_"
"""Where `recipes/sft.py` leaves its policies, by the name of its configuration."""


def world_file(name: str) -> Path:
    """Path of a file of the bundled world. Raises `DataError` for a name that it does not have."""
    path = _DATA / "world" / name
    if not path.exists():
        there = sorted(entry.name for entry in path.parent.iterdir())
        raise DataError(f"the bundled world has no file {name!r}; it has: {', '.join(there)}")
    return path


def suite_files() -> list[Path]:
    """The YAML files of the suites that are known by name."""
    return sorted((_DATA / "suites").glob("*.yaml"))


def tiny_policy(name: str = "pou") -> Path:
    """Directory of a bundled tiny policy, cold-started by `recipes/sft.py`.

    `name` is the dialect it writes, or `"memory"`: one that writes pou and can hack, see
    `coldstart.decorators`; or `"pairs"`: one that answers two questions at once and sees one
    response at a time. Raises `DataError` for another name, or where the package came without the
    policy.
    """
    if name not in TINY:
        raise DataError(f"no tiny policy writes the dialect {name!r}; there are: {', '.join(TINY)}")
    path = _DATA / TINY[name]
    if not (path / "config.json").exists():
        command = f"python scripts/tiny_policies.py {name} --install"
        raise DataError(f"no tiny policy in {path}; make it with: {command}")
    return path


def bundled_policy(name: str, dialect: str) -> str:
    """The directory of a policy named as in `BUNDLED`; any other name as it is.

    Raises as `tiny_policy`, and `ConfigError` for a cold start that configurations name and nobody
    has made yet.
    """
    if name.startswith(COLD_STARTS):
        folder = Path(name)
        config_files = list(folder.glob("*config.json"))  # of a model or of an adapter
        if not config_files:
            raise ConfigError(
                f"there is no {name}, a policy that already writes the dialect. Make it first: "
                f"accelerate launch recipes/sft.py --config recipes/configs/{folder.name}.yaml "
                "with your --questions and --corpus"
            )
    if name not in BUNDLED:
        return name
    if name == "tiny":
        return str(tiny_policy(dialect))
    return str(tiny_policy(name.removeprefix("tiny_")))


def shipped(name: str) -> Path:
    """A folder of the checkout that the wheel carries a copy of: `evaluate_metrics`, `spaces`,
    `recipes/configs`.
    """
    package = _DATA.parent
    checkout = package.parent.parent
    for parent in (package, checkout):  # of an installed wheel, of an editable install
        folder = parent / name
        if folder.is_dir():
            return folder
    raise ConfigError(f"no folder {name} in {package} nor {checkout}: reinstall the package")
