"""Figures of how the code reads that may only fall: lower a number here when you have made it true."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

MOST = {"long lines": 385, "joined asserts": 0, "filler names": 134}
FILLER_WORDS = """
about asked due found given how item kept known many more one opened other others own read rest said
shown so taken told wanted what whole written
"""
FILLER = set(FILLER_WORDS.split())
"""Words that do not say what a thing is: `trajectory`, `scores` or `reply` do."""


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def nodes(folder: str) -> Iterator[ast.AST]:
    for path in python_files(folder):
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def long_lines() -> int:
    """Lines of more than 100 characters, in the source and in the tests."""
    texts = [path.read_text("utf-8") for path in [*python_files("src"), *python_files("tests")]]
    return sum(len(line) > 100 for text in texts for line in text.splitlines())


def joined_asserts() -> int:
    """Asserts of two facts: where one fails, it does not say which."""
    tests = [node.test for node in nodes("tests") if isinstance(node, ast.Assert)]
    return sum(isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) for test in tests)


def filler_names() -> int:
    """Variables and parameters of the source that are called by a word of `FILLER`."""
    count = 0
    for node in nodes("src"):
        if isinstance(node, ast.arg):
            count += node.arg in FILLER
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            count += node.id in FILLER
    return count


@pytest.mark.parametrize("count", [long_lines, joined_asserts, filler_names])
def test_a_figure_of_readability_does_not_rise(count):
    assert count() <= MOST[count.__name__.replace("_", " ")], count.__doc__
