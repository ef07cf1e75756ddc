"""YAML files: what they hold, and the place of what is wrong in them, whichever loader reads."""

from datetime import date

import pytest

from faithful_search import yaml_loaders
from faithful_search.errors import DataError
from faithful_search.yaml_files import load_yaml


@pytest.fixture(params=yaml_loaders.LOADERS, ids=lambda loader: loader.__name__)
def read(tmp_path, monkeypatch, request):
    """Reads a text as a file by the loader."""
    monkeypatch.setattr(yaml_loaders, "LOADERS", (request.param,))

    def read_text(text):
        path = tmp_path / "a.yaml"
        path.write_text(text, encoding="utf-8")
        return load_yaml(path)

    return read_text


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("a: 2024-11-29", {"a": date(2024, 11, 29)}),
        ("a: [1, 0x10, 1_000, 1.5, .inf]", {"a": [1, 16, 1000, 1.5, float("inf")]}),
        ("a: yes\nb: ~\nc: '1'", {"a": True, "b": None, "c": "1"}),
        ("é: 😀", {"é": "😀"}),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}\nd: *x", {"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 1}}),
        ("x: &x {<<: &y {b: 1}, b: 2}\nz: {<<: *x}", {"x": {"b": 2}, "z": {"b": 2}}),
        ("- {a: 1}\n- {a: 2}", [{"a": 1}, {"a": 2}]),
        ("=: 1", {"=": 1}),
    ],
)
def test_what_a_file_holds(read, text, content):
    assert read(text) == content


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("2024-13-45", "'2024-13-45' is no valid timestamp; if it is text, put it between quotes"),
        ("!!timestamp x", "'x' is no valid timestamp"),
        ("!!bool x", "'x' is no valid bool"),
        ("!!int x", "'x' is no valid int"),
        ("!!int ''", "'' is no valid int"),
        ("!!float x", "'x' is no valid float"),
        ("0x_", "'0x_' is no valid int"),
        ("9" * 5000, f"'{'9' * 39}…' is no valid int"),
        ("0x" + "f" * 5000, f"'0x{'f' * 37}…' is no valid int"),
        ("1" + ":1" * 300 + ".5", f"'{'1:' * 19}1…' is no valid float"),
    ],
    ids=lambda text: text[:14],
)
def test_a_value_that_its_type_does_not_allow_is_refused_with_its_place(read, value, problem):
    with pytest.raises(DataError, match=f"a.yaml, line 2, column 4: {problem}"):
        read(f"b: 1\na: {value}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' stands in line 1 already"),
        ("x:\n  a: 1\n  a: 1\n", "line 3, column 3: the key 'a' stands in line 2 already"),
        ("{a: 1,\n 'a': 2}\n", "line 2, column 2: the key 'a' stands in line 1 already"),
        ("1: a\n0x1: b\n", "line 2, column 1: the key '0x1' stands in line 1 already"),
        ("x: &x {b: 1}\ny:\n  <<: *x\n  b: 2\n  b: 3\n", "line 5, column 3: the key 'b' stands"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_its_place(read, text, problem):
    with pytest.raises(DataError, match=problem):
        read(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: b: c\n", "line 1, column 5"),
        ("b: 1\na: [1, 2\n", "line 3, column 1"),
        ("a: *x\n", "line 1, column 4: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        ("? [1]\n: 2\n", "line 1, column 3: found unhashable key"),
        ("a: !!python/object:os.system x\n", "line 1, column 4: could not determine"),
    ],
)
def test_other_faults_have_their_place(read, text, place):
    with pytest.raises(DataError, match=place):
        read(text)


@pytest.mark.parametrize("opened", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("count", [3000, 100_000])
def test_a_file_of_too_many_levels_is_refused(read, opened, count):
    with pytest.raises(DataError, match=r"a\.yaml: its lists or mappings are nested too deeply"):
        read(opened * count)
