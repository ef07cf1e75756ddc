"""The tree of exceptions, as `errors` draws it."""

import inspect
import re

import pytest

from faithful_search import errors

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, Exception) and cls.__module__ == errors.__name__
]
DRAWING = re.findall(r"^([ │├└─]*)(\w+)", errors.__doc__.split("```")[1], re.M)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_exception_is_in_the_drawing(cls):
    assert cls.__name__ in [name for _, name in DRAWING]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_exception_hangs_where_it_is_drawn(cls):
    [(place, indent)] = [
        (place, len(indent)) for place, (indent, name) in enumerate(DRAWING) if name == cls.__name__
    ]
    parent = next(name for branch, name in reversed(DRAWING[:place]) if len(branch) < indent)
    assert cls.__bases__[0].__name__ == parent


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_value_error_is_named_as_one(cls):
    named = re.findall(r"`(\w+Error)`", errors.__doc__.rpartition("```")[2])
    assert issubclass(cls, ValueError) == (cls.__name__ in named)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "rows.jsonl"),
            "No such file or directory",
        ),
        (OSError("it is no archive"), "it is no archive"),
        (ValueError("row 3"), "row 3"),
        (EOFError(), "EOFError"),
    ],
)
def test_the_reason_of_an_error_is_never_empty(error, reason):
    assert errors.reason_of(error) == reason
