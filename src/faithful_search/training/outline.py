"""The settings of a dataclass, read from its source: importing TRL's takes half a minute, most of
it torch.
"""

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Union

from ..errors import ConfigError

_PLACES = {
    "transformers.TrainingArguments": "transformers.training_args",
    "trl.GRPOConfig": "trl.trainer.grpo_config",
    "trl.ModelConfig": "trl.trainer.model_config",
    "trl.SFTConfig": "trl.trainer.sft_config",
}
"""Where classes are that are imported from a package as a whole."""
_PLAIN: dict[str, type] = {
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "None": NoneType,
    "str": str,
}
"""Types of YAML's values by their names in annotations."""


@dataclass(frozen=True)
class FieldSource:
    """A field as its source has it: its annotation, and what `--help` says of it."""

    annotation: str
    help: str = ""

    @property
    def kind(self) -> Any:
        """The type that the annotation says, as `yaml_kinds.check_kind` takes it. One that YAML has
        no values of, such as an enumeration, is `object`.
        """
        kinds: list[Any] = []
        for part in _parts(ast.parse(self.annotation, mode="eval").body):
            kinds.append(_PLAIN.get(ast.unparse(part).partition("[")[0], object))
        if list in kinds:
            kinds.append(str)  # TRL and PEFT take one name where they take several
        return Union[tuple(kinds)]  # noqa: UP007 -- they are known as the program runs


def settings_in(place: str) -> dict[str, FieldSource]:
    """The fields of `package.module.Class`, or of one in `_PLACES`, and of what it extends, by
    name.

    Nothing is imported. A class that is not where it is said to be is a `ConfigError`.

    Example:
        >>> settings_in("trl.GRPOConfig")["learning_rate"].kind
        <class 'float'>
    """
    name = place.rpartition(".")[2]
    module = _PLACES.get(place, place.rpartition(".")[0])
    tree = ast.parse(_source(module).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        raise ConfigError(f"{module} has no class {name}: is its package as constraints.txt says?")
    settings: dict[str, FieldSource] = {}
    for base in reversed(classes[name].bases):
        extended = ast.unparse(base)
        if extended in classes:
            settings |= settings_in(f"{module}.{extended}")
        elif origin := _imported_from(tree, module, extended):
            settings |= settings_in(origin)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation = ast.unparse(node.annotation)
            if not annotation.startswith("ClassVar"):
                settings[node.target.id] = FieldSource(annotation, _help(node.value))
    return settings


def _parts(annotation: ast.expr) -> list[ast.expr]:
    """The types of `A | B | …`."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return [*_parts(annotation.left), *_parts(annotation.right)]
    return [annotation]


def _source(module: str) -> Path:
    package, *inner = module.split(".")
    spec = find_spec(package)  # of a package as a whole: nothing is imported
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{package} is not installed: pip install 'faithful-search[train]'")
    return Path(spec.submodule_search_locations[0]).joinpath(*inner).with_suffix(".py")


def _imported_from(tree: ast.Module, module: str, name: str) -> str:
    """Where a name of a module comes from; empty for one that is not imported."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or name not in (alias.name for alias in node.names):
            continue
        origin = node.module or ""
        if node.level:
            above = module.split(".")[: -node.level]
            origin = ".".join([*above, *filter(None, [origin])])
        return f"{origin}.{name}"
    return ""


def _help(value: ast.expr | None) -> str:
    """The text behind `metadata={"help": …}`, or the second argument of our own `flag`."""
    if not isinstance(value, ast.Call):
        return ""
    if ast.unparse(value.func) == "flag" and len(value.args) > 1:
        return _text(value.args[1])
    for keyword in value.keywords:
        if keyword.arg == "metadata" and isinstance(keyword.value, ast.Dict):
            for key, text in zip(keyword.value.keys, keyword.value.values, strict=True):
                if key is not None and _text(key) == "help":
                    return _text(text)
    return ""


def _text(node: ast.expr) -> str:
    try:
        return str(ast.literal_eval(node))
    except ValueError:  # it is put together as the program runs
        return ""
