"""Suites from YAML: those of `data/suites`, and any other file with the same fields.

```yaml
about: Proof-of-Use, section 4.1
sets:
  - {name: hotpotqa, source: hotpotqa, split: dev, limit: 512, seed: 0}
  - {name: mine, source: "{data}/mine.jsonl.gz", corpus: "{data}/passages.jsonl.gz"}
agents: {turns: 3, turn_tokens: 64, controls: 10}
```

`agents` bounds those that need no training, with a model on this machine; it may be left out.

`{data}` is the folder of `faithful-search data`. A set whose file there is missing is left out, and
the suite says so.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from ..bundled import suite_files
from ..errors import ConfigError
from ..yaml_files import load_yaml
from .base import AgentLimits, QuestionSet, Suite
from .downloading import DATA_FOLDER as DATA_FOLDER, data_folder as data_folder, file_name
from .published import PUBLISHED

_PLACE = "{data}"
_Count = Annotated[int, msgspec.Meta(ge=1)]


class _Set(msgspec.Struct, forbid_unknown_fields=True):
    """A question set as the YAML file has it, before `{data}` is replaced."""

    name: str
    source: str
    split: str = "test"
    limit: int | None = None
    seed: int | None = None
    corpus: str | None = None


class _Agents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What bounds agents that need no training."""

    turns: _Count | None = None
    turn_tokens: _Count | None = None
    controls: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """The whole YAML file of a suite."""

    description: str = msgspec.field(name="about")
    sets: list[_Set]
    agents: _Agents = _Agents()


def suite_names() -> tuple[str, ...]:
    """The suites that are known by name.

    Example:
        >>> suite_names()
        ('deepresearcher', 'mini', 'pokee', 'pou', 'self_eval', 'veritas')
    """
    return tuple(sorted(path.stem for path in suite_files()))


def load_suite(name: str | os.PathLike[str], data: Path | None = None) -> Suite:
    """The suite of this name, or in this YAML file.

    Args:
        name: one of `suite_names()`, or the path of a file that ends in `.yaml` or `.yml`.
        data: the folder that `{data}` stands for, and from which published sets are read where it
            has their files. Without it, that of `data_folder()`.

    Raises `ConfigError` for a name that is not known and for a file that is no suite, and
    `DataError` for a file that cannot be read.

    Example:
        >>> load_suite("pou").sets[0]
        QuestionSet(name='hotpotqa', source='hotpotqa', split='dev', limit=512, seed=0, corpus=None)
    """
    path = _file_of(name)
    table = _read(path)
    folder = data or data_folder()
    sets: list[QuestionSet] = []
    left_out: list[str] = []
    for entry in table.sets:
        question_set = _in_folder(entry, folder)
        if data is not None:  # without it, `load_tasks` looks there itself
            question_set = _downloaded(question_set, data)
        missing = _missing_files(entry, question_set)
        if missing:
            left_out.append(f"{entry.name}: no {missing[0]}")
        else:
            sets.append(question_set)
    if not sets:
        raise ConfigError(
            f"{path}: none of its question sets is there: {'; '.join(left_out)}. Name the folder "
            f"that has them by --data or {DATA_FOLDER}"
        )
    agents = AgentLimits(**msgspec.structs.asdict(table.agents))
    return Suite(path.stem, table.description.strip(), tuple(sets), tuple(left_out), agents)


def _file_of(name: str | os.PathLike[str]) -> Path:
    if str(name).endswith((".yaml", ".yml")):
        return Path(name)
    for path in suite_files():
        if path.stem == str(name):
            return path
    raise ConfigError(
        f"unknown suite {str(name)!r}; there are: {', '.join(suite_names())}; one of your own is "
        "named by the path of its file, which ends in .yaml"
    )


def _read(path: Path) -> _Table:
    content = load_yaml(path)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: a suite is a mapping with the keys about and sets")
    try:
        table = msgspec.convert(content, _Table)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no suite: {error}") from error
    names = [entry.name for entry in table.sets]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"{path}: two sets are called {doubled[0]!r}; give each its own name")
    return table


def _in_folder(entry: _Set, folder: Path) -> QuestionSet:
    corpus = None if entry.corpus is None else entry.corpus.replace(_PLACE, str(folder))
    return QuestionSet(
        name=entry.name,
        source=entry.source.replace(_PLACE, str(folder)),
        split=entry.split,
        limit=entry.limit,
        seed=entry.seed,
        corpus=corpus,
    )


def _downloaded(question_set: QuestionSet, folder: Path) -> QuestionSet:
    """The set with the file of its split in the folder as its source, where that is there."""
    path = folder / file_name(question_set.source, question_set.split)
    if question_set.source in PUBLISHED and path.exists():
        return replace(question_set, source=str(path))
    return question_set


def _missing_files(entry: _Set, question_set: QuestionSet) -> list[str]:
    """The files in the folder of data that the set needs and that are not there."""
    needed: list[str] = []
    if _PLACE in entry.source:
        needed.append(question_set.source)
    if question_set.corpus is not None and _PLACE in (entry.corpus or ""):
        needed.append(question_set.corpus)
    missing = []
    for address in needed:
        path = address.partition("#")[0]  # FILE#SET: of the file only the questions of one set
        if not Path(path).exists():
            missing.append(address)
    return missing
