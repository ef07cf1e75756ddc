"""Passes over rows of like length give what one padded pass gives."""

from __future__ import annotations

import pytest
import torch

from faithful_search.training.update import FEWEST, PASSES, by_length


class Model:
    """A value of each row's own tokens alone, whatever pads them; remembers the columns it was given."""

    def __init__(self) -> None:
        self.weight = torch.tensor(0.5, requires_grad=True)
        self.computed: list[int] = []

    def __call__(self, ids, mask, kept, scale=1.0):
        self.computed.append(ids.numel())
        before = (ids * mask).cumsum(dim=1).double() * self.weight * scale
        values = torch.sin(before) * mask
        return values[:, -kept:], values[:, -kept:].abs(), values.sum() / ids.shape[0]


def batch(prompts, completions):
    width, kept = max(prompts), max(completions)
    places = torch.arange(width + kept)
    mask = torch.stack(
        [
            (places >= width - prompt) & (places < width + completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
    ).long()
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 9, mask.shape, generator=generator) * mask, mask, kept


@pytest.mark.parametrize("rows", [1, FEWEST - 1, FEWEST, FEWEST + 3])
def test_values_and_gradients_are_those_of_one_pass(rows):
    generator = torch.Generator().manual_seed(rows)
    prompts, completions = (torch.randint(1, 12, (rows,), generator=generator).tolist() for _ in range(2))
    ids, mask, kept = batch(prompts, completions)
    found = []
    for compute in (
        lambda model: model(ids, mask, kept, scale=2.0),
        lambda model: by_length(model, ids, mask, kept, scale=2.0),
    ):
        model = Model()
        logps, entropies, _ = compute(model)
        (logps.square().sum() + entropies.sum()).backward()
        found.append((logps, entropies, model.weight.grad))
    for plain, trimmed in zip(*found, strict=True):
        torch.testing.assert_close(trimmed, plain)


def test_the_longest_rows_alone_are_computed_in_full_width():
    ids, mask, kept = batch([3] * 8, [1, 1, 2, 2, 4, 4, 40, 40])
    model = Model()
    by_length(model, ids, mask, kept)
    assert model.computed == [2 * (3 + 1), 2 * (3 + 2), 2 * (3 + 4), 2 * (3 + 40)] and len(model.computed) == PASSES


def test_rows_without_a_completion_keep_one_column():
    ids, mask, kept = batch([2] * 8, [0] * 6 + [5] * 2)
    logps, _, loss = by_length(Model(), ids, mask, kept)
    assert logps.shape == (8, 5) and not logps[:6].any() and loss is not None
