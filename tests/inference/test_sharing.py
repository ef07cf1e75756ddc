"""Prompts that begin alike: which are computed together, and that nothing but the number of tokens changes."""

from __future__ import annotations

import itertools
from typing import Any

import lab
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faithful_search.inference import sharing
from faithful_search.inference.sharing import plan
from faithful_search.inference.states import can_share
from faithful_search.inference.transformers import TransformersGenerator

TOKENS = st.integers(0, 40)
STEM, ONE, TWO = [1] * 150, [2] * 300, [3] * 200


class Counting:
    """Counts the tokens that go through a model, padding included."""

    def __init__(self, model: Any) -> None:
        self.tokens = self.passes = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: Any, args: Any, given: dict[str, Any]) -> None:
        self.tokens += given["input_ids"].numel()
        self.passes += 1


def counted(**how: Any) -> tuple[TransformersGenerator, Counting]:
    """A generator that knows already what its model remembers, and what it computes from now on."""
    model = lab.sharp(lab.model())
    generator = TransformersGenerator(model, lab.tokenizer(), **how)
    generator.agree, own = int, generator.agree
    generator.choice_probs([], [])
    generator.agree = own
    return generator, Counting(model)


def both(model: Any, prompts: list[list[int]], choices: Any = None) -> tuple[list[list[float]], list[list[float]]]:
    """Probabilities with and without sharing."""
    choices = choices or [[[5], [6]]] * len(prompts)
    generators = (TransformersGenerator(model, lab.tokenizer(), share_prefixes=share) for share in (True, False))
    shared, plain = (generator.choice_probs(prompts, choices) for generator in generators)
    return shared, plain


def assert_same(model: Any, prompts: list[list[int]], choices: Any = None) -> None:
    for one, two in zip(*both(model, prompts, choices), strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-12)


def families(draw_text: Any) -> Any:
    """Rows of a stem, one of a few texts behind it, and a tail; some rows share nothing."""
    return st.tuples(
        draw_text(0, 90), st.lists(draw_text(1, 90), min_size=1, max_size=3), st.lists(draw_text(1, 25), min_size=1)
    )


def some(least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(TOKENS, min_size=least, max_size=most)


@settings(max_examples=60)
@given(families(some), st.integers(1, 3), st.integers(0, 80))
def test_every_row_is_in_one_part_and_begins_with_its_head(made, keep, call):
    stem, texts, tails = made
    rows = [[*stem, *texts[place % len(texts)], *tail] for place, tail in enumerate(tails)]
    parts = plan(rows, keep, call)
    assert sorted(row for part in parts for row in part.rows) == list(range(len(rows)))
    for part in parts:
        assert len(part.owners) == (len(part.rows) if part.heads else 0)
        for row, owner in zip(part.rows, part.owners, strict=bool(part.heads)):
            head = part.heads[owner]
            assert rows[row][: len(head)] == head and len(rows[row]) - len(head) >= min(keep, len(rows[row]))


@settings(max_examples=25)
@given(families(some), st.data())
def test_probabilities_are_those_without_sharing(made, data):
    stem, texts, tails = made
    rows = [[*stem, *texts[place % len(texts)], *tail] for place, tail in enumerate(tails)]
    choices = [data.draw(st.lists(some(1, 3), min_size=1, max_size=2)) for _ in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sharing.CALLS, "cpu", data.draw(st.sampled_from([0, 20])))  # worth while for short rows, too
        assert_same(lab.sharp(lab.model()), rows, choices)


def test_a_common_beginning_is_computed_once():
    generator, counting = counted()
    rows = [[*STEM, *range(n, n + 20)] for n in range(10)]
    generator.choice_probs(rows, [[[5], [6]]] * 10)
    assert (counting.passes, counting.tokens) == (2, 150 + 10 * 20)


def test_what_a_family_shares_is_computed_once_beside_rows_of_their_own():
    rows = [[*STEM, *ONE, 7, 8], [*STEM, *TWO, 7, 9], [*STEM, *ONE, 7, 7], [*STEM, *range(4, 40)], [*STEM, *TWO, 8, 9]]
    found = [(sorted(part.rows), sorted(map(len, part.heads))) for part in plan(rows)]
    assert found[0] == ([0, 1, 2, 4], [350, 451])
    assert_same(lab.sharp(lab.model()), rows)


@pytest.mark.parametrize("rows", [[[1] * 500], [[1, 2, 3], [1, 2, 4]], [[1] * 300, [2] * 300], [[], [1]], []])
def test_where_nothing_is_to_be_gained_nothing_is_shared(rows):
    assert [part.heads for part in plan(rows)] == [[]]


def test_a_row_is_padded_only_where_a_pass_of_its_own_costs_more():
    generator, counting = counted()
    lengths = (400, 30, 390, 100, 60)
    rows = [[n, *[9] * (length - 1)] for n, length in enumerate(lengths, start=10)]
    generator.choice_probs(rows, [[[5], [6]]] * 5)
    assert (counting.passes, counting.tokens) == (3, 2 * 400 + 100 + 2 * 60)
    assert_same(generator.model, rows, [[[4], [5, 6, 7]]] * 5)


def test_rows_behind_one_head_are_read_in_several_passes():
    generator, counting = counted()
    rows = [[*STEM, n, *[9] * length] for n, length in ((11, 10), (12, 400), (13, 12), (14, 380))]
    generator.choice_probs(rows, [[[5], [6]]] * 4)
    assert (counting.passes, counting.tokens) == (3, 150 + 2 * 401 + 2 * 13)
    assert_same(generator.model, rows)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 300), max_size=7), st.integers(0, 100))
def test_no_other_passes_cost_less(lengths, call):
    found = sharing.passes(lengths, call)
    assert sorted(row for group in found for row in group) == list(range(len(lengths)))
    longest = sorted(lengths, reverse=True)
    ways = [
        [0, *cuts, len(lengths)]
        for count in range(len(lengths))
        for cuts in itertools.combinations(range(1, len(lengths)), count)
    ]
    costs = [sum(call + (end - start) * longest[start] for start, end in itertools.pairwise(way)) for way in ways]
    assert sum(call + len(group) * lengths[group[0]] for group in found) == min(costs, default=0)
    assert all(lengths[group[0]] == max(lengths[row] for row in group) for group in found)


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=20), st.integers(1, 6))
def test_every_row_is_in_one_batch(rows, size):
    found = sharing.batches(rows, size)
    assert sorted(row for batch in found for row in batch) == list(range(len(rows)))
    assert all(1 <= len(batch) <= size for batch in found)


def test_what_a_probe_compares_is_not_torn_apart_by_its_length():
    """The real and the perturbed context of four questions; one is as long as another question's other one."""
    stems = [[n] * 300 for n in range(4)]
    rows = [[*stem, *[9] * (100 * n + tail)] for n, stem in enumerate(stems) for tail in (10, 110)]
    generator, counting = counted(batch_size=4)
    generator.choice_probs(rows, [[[5]]] * 8)
    assert counting.tokens < 1.1 * (4 * 300 + sum(map(len, rows)) - 8 * 300)
    assert {frozenset(batch) for batch in sharing.batches(rows, 2)} == {frozenset({n, n + 1}) for n in (0, 2, 4, 6)}
    assert_same(generator.model, rows)


def test_a_process_makes_as_many_passes_as_the_one_that_makes_most():
    asked: list[int] = []
    generator, counting = counted(agree=lambda passes: asked.append(passes) or 5)
    rows = [[*STEM, *range(n, n + 20)] for n in range(10)]
    assert generator.choice_probs([], []) == []
    assert (counting.passes, asked) == (5, [0])
    generator.choice_probs(rows, [[[5], [6]]] * 10)
    assert (counting.passes, asked) == (10, [0, 2])


def test_an_accelerator_is_given_few_passes():
    rows = [[*STEM, *range(n, n + 20)] for n in range(10)]
    call = sharing.cost_of_call("cuda")
    assert [part.heads for part in plan(rows, 1, call)] == [[]] and len(sharing.passes([400, 30], call)) == 1
    assert [len(part.heads) for part in plan([[*ONE * 5, *row] for row in rows], 1, call)] == [1]


def test_a_row_that_another_begins_with_keeps_its_last_tokens():
    rows = [[*STEM], [*STEM, 4, 5, 6]]
    for keep in (1, 3):
        (part,) = plan(rows, keep)
        assert [len(head) for head in part.heads] == [150 - keep]
    assert_same(lab.sharp(lab.model()), rows, [[[4], [5, 6, 7]], [[4, 4]]])


def test_an_adapter_that_is_switched_on_is_used():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        lab.sharp(lab.model()), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    rows = [[*STEM, *range(n, n + 20)] for n in range(4)]
    assert can_share(model)
    assert_same(model, rows)
    with model.disable_adapter():
        without = both(model, rows)[0]
    assert without[0] != pytest.approx(both(model, rows)[0][0], rel=1e-3)


def test_a_padding_side_of_the_tokenizer_changes_nothing():
    rows = [[*STEM, *range(n, n + 3 + 5 * n)] for n in range(4)]
    own = lab.tokenizer()
    found = []
    for side in ("left", "right"):
        own.padding_side = side
        found.append(both(lab.model(), rows)[0])
    assert found[0] == found[1]


def small(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": len(lab.tokenizer()), **more}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()


HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}
LOCAL = {"num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 16}


def test_models_that_forget_or_sum_up_do_not_share_and_say_the_same():
    rows = [[*STEM, *range(n, n + 20)] for n in range(4)]
    sliding = small("mistral", sliding_window=16, **HEADS)
    mixed = small("gemma3_text", sliding_window=16, head_dim=16, **HEADS)
    for model in map(lab.sharp, (sliding, mixed)):
        counting = Counting(model)
        assert not can_share(model)
        assert_same(model, rows)
        assert counting.tokens == 2 * 4 * 170


def test_grouped_heads_and_learned_positions_share():
    rows = [[*STEM, *range(n, n + 2 + 9 * n)] for n in range(4)]
    for model in map(lab.sharp, (small("qwen2", **HEADS), small("gpt2", n_embd=32, n_head=2))):
        assert can_share(model)
        assert_same(model, rows)


def test_models_that_count_padding_do_not_share_and_say_the_same():
    rows = [[*STEM, *range(n, n + 2 + 5 * n)] for n in range(4)]
    kinds = {"mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2}, "gpt_neo": LOCAL}
    for kind, sizes in kinds.items():
        model = lab.sharp(small(kind, **sizes))
        assert not can_share(model)
        assert_same(model, rows)


def test_prompt_tuning_does_not_share():
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(lab.model(), PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    assert not can_share(model)
