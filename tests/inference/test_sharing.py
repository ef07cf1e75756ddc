"""Prompts that begin alike: which are computed together, and that nothing but the number of tokens
changes.
"""

import itertools
from typing import Any

import lab
import pytest
from hypothesis import given, settings, strategies as st

from faithful_search.inference import batching
from faithful_search.inference.batching import passes, plan
from faithful_search.inference.kv_cache import by_row, reads_on
from faithful_search.inference.transformers import TransformersGenerator

STEM, ONE, TWO = [1] * 150, [2] * 300, [3] * 200


def both(
    model: Any, prompts: list[list[int]], choices: Any = None
) -> tuple[list[list[float]], list[list[float]]]:
    """Probabilities with and without sharing."""
    choices = choices or [[[5], [6]]] * len(prompts)
    shared = TransformersGenerator(model, lab.tokenizer())
    plain = TransformersGenerator(model, lab.tokenizer())
    plain.shares = False
    return shared.choice_probs(prompts, choices), plain.choice_probs(prompts, choices)


def assert_same(model: Any, prompts: list[list[int]], choices: Any = None) -> None:
    for one, two in zip(*both(model, prompts, choices), strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-12)


def some(least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 40), min_size=least, max_size=most)


@st.composite
def families(draw: Any) -> list[list[int]]:
    """Rows of a stem, one of a few texts behind it, and a tail; some rows share nothing."""
    stem, texts = draw(some(0, 90)), draw(st.lists(some(1, 90), min_size=1, max_size=3))
    tails = draw(st.lists(some(1, 25), min_size=1))
    return [[*stem, *texts[place % len(texts)], *tail] for place, tail in enumerate(tails)]


@settings(max_examples=60)
@given(families(), st.integers(1, 3), st.integers(0, 80))
def test_every_row_is_read_once_and_begins_with_its_head(rows, keep, call):
    made = plan(rows, keep, call)
    assert sorted(row for group in made.passes for row in group) == list(range(len(rows)))
    for row, owner in zip(rows, made.owners, strict=True):
        head = made.heads[owner]
        assert row[: len(head)] == head
        assert len(row) - len(head) >= min(keep, len(row))


@settings(max_examples=25)
@given(families(), st.data())
def test_probabilities_are_those_without_sharing(rows, data):
    choices = [data.draw(st.lists(some(1, 3), min_size=1, max_size=2)) for _ in rows]
    with pytest.MonkeyPatch.context() as patch:
        # Where a forward pass is cheap, sharing pays for short rows, too.
        cost_of_a_pass = data.draw(st.sampled_from([0, 20]))
        patch.setitem(batching.CALLS, "cpu", cost_of_a_pass)
        assert_same(lab.sharp(lab.model()), rows, choices)


def test_what_a_family_shares_is_computed_once():
    rows = [
        [*STEM, *ONE, 7, 8],
        [*STEM, *TWO, 7, 9],
        [*STEM, *ONE, 7, 7],
        [*STEM, *range(4, 40)],
        [*STEM, *TWO, 8, 9],
    ]
    made = plan(rows)
    first_family = len(STEM) + len(ONE) + 1  # with the 7 that both rows go on with
    second_family = len(STEM) + len(TWO)
    heads = [len(made.heads[owner]) for owner in made.owners]
    assert heads == [first_family, second_family, first_family, 0, second_family]
    assert_same(lab.sharp(lab.model()), rows)


@pytest.mark.parametrize(
    "rows", [[[1] * 500], [[1, 2, 3], [1, 2, 4]], [[1] * 300, [2] * 300], [[], [1]], []]
)
def test_where_nothing_is_to_be_gained_nothing_is_shared(rows):
    assert plan(rows).heads == [[]]


def test_a_model_that_cannot_share_does_not():
    rows = [[*STEM, *range(n, n + 20)] for n in range(10)]
    assert len(plan(rows).heads[0]) == len(STEM)
    assert plan(rows, share=False).heads == [[]]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 300), max_size=7), st.integers(0, 100))
def test_no_other_passes_cost_less(lengths, call):
    found = passes(lengths, call)
    assert sorted(row for group in found for row in group) == list(range(len(lengths)))
    longest = sorted(lengths, reverse=True)
    ways = [
        [0, *cuts, len(lengths)]
        for count in range(len(lengths))
        for cuts in itertools.combinations(range(1, len(lengths)), count)
    ]
    costs = [
        sum(call + (end - start) * longest[start] for start, end in itertools.pairwise(way))
        for way in ways
    ]
    assert sum(call + len(group) * lengths[group[0]] for group in found) == min(costs, default=0)
    assert all(lengths[group[0]] == max(lengths[row] for row in group) for group in found)


def test_every_process_makes_equally_many_passes():
    needed: list[int] = []  # passes of this process, by call

    def agree(passes: int) -> int:
        needed.append(passes)
        return 5

    generator = TransformersGenerator(lab.sharp(lab.model()), lab.tokenizer())
    generator.choice_probs([], [])  # it knows now what its model remembers
    generator.agree = agree
    counting = lab.Counting(generator.model)
    assert generator.choice_probs([], []) == []
    assert needed == [0]
    assert counting.passes == 5
    assert counting.taken() == 5  # idle passes read one token each
    rows = [[*STEM, *range(n, n + 20)] for n in range(10)]
    generator.choice_probs(rows, [[[5], [6]]] * 10)
    assert needed == [0, 2]  # one for the common beginning, one for the rest of all rows
    idle = 5 - 2
    assert counting.passes == 5 + 5
    assert counting.taken() == len(STEM) + 10 * 20 + idle


def test_an_accelerator_is_given_few_passes():
    rows = [[*STEM, *range(n, n + 20)] for n in range(10)]
    call = batching.CALL
    assert plan(rows, 1, call).heads == [[]]
    assert len(passes([400, 30], call)) == 1
    assert [len(head) for head in plan([[*ONE * 5, *row] for row in rows], 1, call).heads] == [1650]


def test_an_adapter_that_is_switched_on_is_used():
    model = lab.lora(lab.sharp(lab.model()))
    rows = [[*STEM, *range(n, n + 20)] for n in range(4)]
    assert reads_on(model) is by_row
    assert_same(model, rows)
    with model.disable_adapter():
        without = both(model, rows)[0]
    assert without[0] != pytest.approx(both(model, rows)[0][0], rel=1e-3)


@pytest.mark.parametrize("kind", [*lab.READS_ON, *lab.FORGETS])
def test_models_that_forget_do_not_share_and_all_say_the_same(kind):
    shares = kind in lab.READS_ON
    name, sizes = (lab.READS_ON | lab.FORGETS)[kind]
    model = lab.sharp(lab.small(name, **sizes))
    rows = [[*STEM, *range(n, n + 2 + 9 * n)] for n in range(4)]
    counting = lab.Counting(model)
    assert (reads_on(model) is by_row) is shares
    assert_same(model, rows)
    assert (counting.tokens < 2 * sum(map(len, rows))) is shares


@pytest.mark.parametrize(
    ("kind", "reads_on_after_tokens"),
    [
        ("recurrent states", False),  # Mamba takes no cache by this name
        ("some recurrent states", True),
        ("recurrent states beside keys", True),
    ],
)
def test_recurrent_states_are_read_on_where_the_model_takes_them(kind, reads_on_after_tokens):
    name, sizes = lab.FORGETS[kind]
    make = reads_on(lab.small(name, **sizes))
    assert (make is not None) is reads_on_after_tokens
