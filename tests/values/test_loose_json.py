"""One decoder for the JSON of others: what the standard forbids is read and said, the rest refused."""

import json
import math
import time
from contextlib import suppress

import pytest
from growth import MOST, growth

from faithful_search import loose_json
from faithful_search.errors import DataError
from faithful_search.loose_json import (
    _BEGINNING,
    MOST_NESTED,
    check_nested,
    decode,
    decoded,
    end_of,
    parts_of,
)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": "\\ud83d"}', {"a": "?"}),
        (b'{"\\ud83d": 1}', {"?": 1}),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'{"a": "Malm\xf6"}', {"a": "Malm?"}),
        (b"[NaN, -Infinity, 1e400, -1e400]", [None, None, None, None]),
        (b"[%s]" % (b"9" * 5000), [None]),
        (b"[1e-400, 12345678901234567890123]", [0.0, 12345678901234567890123]),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 1, "a": NaN}', {"a": None}),
        (b'{"a": "x\ty\x00"}', {"a": "x\ty\x00"}),
        (b'{"a": 1}\n\x00\x00', {"a": 1}),
    ],
)
def test_what_files_hold_is_read(data, value):
    assert decode(data) == value


def test_infinite_numbers_stay_where_they_are_asked_for():
    infinite = decode(b"[-Infinity, 1e400, %s]" % (b"9" * 5000), beyond=True)
    assert infinite == [-math.inf, math.inf, math.inf]


def test_nan_stays_where_it_is_asked_for():
    assert math.isnan(decode(b"NaN", beyond=True))


@pytest.mark.parametrize(
    ("data", "repair"),
    [
        (b'"\\ud83d"', "half characters"),
        (b'"\xff"', "UTF-8"),
        (b"NaN", "NaN"),
        (b"1e400", "floats"),
    ],
)
def test_what_was_put_right_is_said(data, repair):
    [said] = decoded(data).repairs
    assert repair in said


def test_of_plain_json_nothing_is_said():
    assert decoded(b'{"a": "\\ud83d\\ude00"}').repairs == ()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1] [2]", b"{'a': 1}", b"\x00\x00", b"tru", b"\xff\xfe"]
)
def test_what_is_no_json_is_refused(data):
    with pytest.raises(DataError, match=r"\w"):
        decode(data)


@pytest.mark.parametrize("levels", [201, 900, 5_000, 500_000])
def test_what_is_nested_too_deeply_is_refused(levels):
    with pytest.raises(DataError, match="200 levels"):
        decode(b"[" * levels + b"]" * levels)


def test_200_levels_are_read():
    assert decode(b"[" * 200 + b"]" * 200)


def test_too_many_parts_are_refused(monkeypatch):
    monkeypatch.setattr(loose_json, "MOST_PARTS", 1_000)
    with pytest.raises(DataError, match="more than 1,000 lists"):
        decode(b"[" + b"[]," * 1_000 + b"[]]")


def test_a_value_that_holds_itself_is_refused():
    value = [{}]
    value[0]["a"] = value
    with pytest.raises(DataError, match="in a circle"):
        check_nested(value)


def test_a_value_that_many_share_is_none():
    value = []
    for _ in range(MOST_NESTED - 1):
        value = [value, value]
    check_nested(value)
    with pytest.raises(DataError, match="nested more than"):
        check_nested([[value, value]])


@pytest.mark.parametrize("sample", [b'{"a":"\\ud83d"}', b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":1}'])
def test_parts_keep_what_is_wrong_in_them(sample):
    [part] = parts_of(b'{"samples": [%s]}' % sample, lambda value: value["samples"])
    assert decoded(part) == decoded(sample)


@pytest.mark.parametrize("levels", [3, 5_000])
def test_the_end_of_a_value_is_found(levels):
    text = "x" + json.dumps({"a]": "\\"})[:-1] + ', "b": ' + "[" * levels + "]" * levels + "} y"
    assert text[loose_json.end_of(text, 1) :] == " y"


WHOLE = ['{"a": 1}', "[" + "1, " * 30 + "-1]", '"\\u00e9x"', "-12.5e3", "true", '{"a": "é\\n}"}']


LONG = ["9" * (_BEGINNING + 9), '"' + "x" * _BEGINNING + '"', '["' + "x" * _BEGINNING + '", 1]']


@pytest.mark.parametrize("value", LONG, ids=["number", "string", "list"])
@pytest.mark.parametrize("behind", ["", ", x"])
def test_a_value_may_be_longer_than_what_is_read_first(value, behind):
    assert end_of(value + behind, 0) == len(value)


@pytest.mark.parametrize("value", WHOLE)
def test_a_value_of_a_long_text_ends_where_it_ends_alone(value):
    """Also where the part of the text that is read first cuts it."""
    for length in range(_BEGINNING - len(value) - 3, _BEGINNING + 3):
        text = "[" + "0," * (length // 2) + " " * (length % 2) + value + "]" + " x" * 50
        assert end_of(text, 3) == 4  # the number before a comma
        assert end_of(text, 0) == len(text) - 100


@pytest.mark.parametrize(
    "value", ['{"a": 1', "[1, }", '"x', "-", "tru", '{"a": nul', '{"a": "\\u00g"}']
)
@pytest.mark.parametrize("blanks", [0, _BEGINNING - 10, _BEGINNING - 3, 2 * _BEGINNING])
def test_what_is_no_value_has_no_end(value, blanks):
    text = f"[{' ' * blanks}{value}"
    with pytest.raises(DataError):
        end_of(text, 0)


def test_many_texts_that_are_no_values_take_linear_time():
    def seconds(size: int) -> float:
        text = '{"a": x\n' * (size // 8)
        start = time.process_time()
        for place in range(0, len(text), 8):
            with suppress(DataError):
                end_of(text, place)
        return time.process_time() - start

    assert growth(seconds, 1_000_000, floor=0.005) <= MOST


@pytest.mark.parametrize(("power", "expected"), [(1, True), (2, False)])
def test_quadratic_time_is_told_from_linear(power, expected):
    assert (growth(lambda size: (size / 1000) ** power / 1000, 100_000) <= MOST) is expected
