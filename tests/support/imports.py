"""Modules that are imported again within a test."""

import sys

import pytest


def import_again(monkeypatch: pytest.MonkeyPatch, *prefixes: str) -> None:
    """Forget imported modules, until the test ends, if their names start with one of `prefixes`.

    Afterwards packages hold the modules of before, too. `sys.modules` alone would leave the new
    module as an attribute of its package, and the next test would patch a module that nothing uses.
    """
    names = [name for name in sys.modules if name.startswith(prefixes)]
    for name in sorted(names, reverse=True):  # a package after its modules
        package, _, child = name.rpartition(".")
        monkeypatch.delattr(sys.modules[package], child, raising=False)
        monkeypatch.delitem(sys.modules, name)
