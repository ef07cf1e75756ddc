"""PyYAML's safe loaders, libyaml's where PyYAML has it, so that nothing is lost in silence and
whatever cannot be read has a place.
"""

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode

from .text import shortened
from .yaml_kinds import MOST_SHOWN

UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What PyYAML raises for values that its tags do not allow, such as `2024-13-45` or `!!bool x`."""
# As keys they are of no type that can be constructed
MERGE_OR_VALUE = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


class _Checks(Composer, SafeConstructor):
    """What both loaders have in common. Nodes are composed in Python, where too many levels are a
    `RecursionError`: in C they end the process.
    """

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """The mapping; a `ConstructorError` if one of its keys stands in it twice."""
        mapping = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for key_node, _ in mapping.value:
            if not isinstance(key_node, ScalarNode):
                continue
            key = key_node.value
            if key_node.tag not in MERGE_OR_VALUE:
                key = self.construct_object(key_node)
            if not isinstance(key, Hashable):
                continue  # refused when the mapping is constructed
            if key in lines:
                shown = _shown(key_node)
                problem = f"the key {shown} stands in line {lines[key]} already; keep one of them"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            lines[key] = key_node.start_mark.line + 1
        return mapping

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """The value; a `ConstructorError` if its tag does not allow it."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # one of too many digits could not be written anywhere
        except UNREADABLE as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"{_shown(node)} is no valid {kind}; if it is text, put it between quotes"
            raise ConstructorError(None, None, problem, node.start_mark) from error
        return value


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return repr(shortened(node.value, MOST_SHOWN))
    return f"a {node.id}"


class PlainLoader(_Checks, yaml.SafeLoader):
    """Reads in Python alone."""


LOADERS: tuple[type[Any], ...] = (PlainLoader,)
"""The fastest one first."""

if yaml.__with_libyaml__:

    class FastLoader(_Checks, yaml.CSafeLoader):
        """Reads with libyaml, which takes a fifth of the time for a file of settings."""

        def __init__(self, stream: Any) -> None:
            Composer.__init__(self)
            yaml.CSafeLoader.__init__(self, stream)

    LOADERS = (FastLoader, PlainLoader)
