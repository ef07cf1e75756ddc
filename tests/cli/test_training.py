"""`faithful-search train` and `eval`: which recipe runs, with which arguments, and how it fails."""

import importlib
import subprocess
import sys

import pytest
from served import invoked

from faithful_search.cli import cli, training
from faithful_search.errors import ConfigError

RECIPES = [*training.train.commands.values(), training.evaluate]
NAMES = [recipe.name for recipe in RECIPES]
NO_TORCH = """
import sys
from faithful_search.cli import cli
try:
    cli(sys.argv[1:], prog_name="faithful-search")
finally:
    print("torch" in sys.modules)
"""


@pytest.fixture
def called(monkeypatch):
    """Arguments and command of the `main` that was called, by its recipe."""
    calls = {}
    for recipe in RECIPES:
        module = importlib.import_module(f"faithful_search.recipes.{recipe.module}")

        def main(argv, command, name=recipe.name):
            calls[name] = (list(argv), command)

        monkeypatch.setattr(module, "main", main)
    return calls


def words_of(name: str) -> list[str]:
    return ["eval"] if name == "eval" else ["train", name]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_gets_its_arguments_as_they_were_typed(called, name):
    flags = ["--max_steps", "2", "--bf16=false", "--budget", "-1", "--report_to", "none"]
    assert invoked(*words_of(name), *flags).exit_code == 0
    assert called[name][0] == flags


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_told_its_command(called, name):
    invoked(*words_of(name))
    assert called[name][1].split()[1:] == words_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_the_recipes_own_flags(name, capsys):
    shown = invoked(*words_of(name), "--help")
    assert "--resume" in shown.output + capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_flag_is_one_line(name, capsys):
    done = invoked(*words_of(name), "--nosuch", "1")
    errors = (done.stderr + capsys.readouterr().err).strip()
    assert errors.startswith("error: no such flag: --nosuch")
    assert "\n" not in errors


def test_a_wrong_flag_ends_with_1():
    assert invoked("train", "pou", "--nosuch", "1").exit_code == 1


def test_debug_shows_the_error_itself():
    done = invoked("train", "pou", "--nosuch", "1", "--debug")
    assert isinstance(done.exception, ConfigError)


@pytest.mark.parametrize("name", NAMES)
def test_flags_are_refused_without_torch(name):
    command = [sys.executable, "-c", NO_TORCH, *words_of(name), "--nosuch", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_train_names_its_recipes():
    assert set(cli.commands["train"].commands) == {*NAMES} - {"eval"}
