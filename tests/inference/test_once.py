"""A policy that is asked the same thing once gives the same answers, and reads less."""

import pytest

from faithful_search.inference.base import Completion, Sampling
from faithful_search.inference.once import AskedOnce

GREEDY = Sampling(temperature=0.0, max_new_tokens=8)


class Counting:
    """Continues a prompt by how long it is, and counts what it was asked."""

    tokenizer = object()
    batch_size = 7

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.asked: list[list[list[int]]] = []

    def generate(self, prompts, sampling, max_new_tokens=None):
        self.written += prompts
        limits = max_new_tokens or [sampling.max_new_tokens] * len(prompts)
        return [
            Completion([len(prompt), limit, len(self.written)], "stop")
            for prompt, limit in zip(prompts, limits, strict=True)
        ]

    def choice_probs(self, prompts, choices):
        self.asked.append(prompts)
        return [
            [sum(prompt) + sum(choice) / 10 for choice in own]
            for prompt, own in zip(prompts, choices, strict=True)
        ]


def test_equal_prompts_are_continued_once():
    inner = Counting()
    policy = AskedOnce(inner)
    first = policy.generate([[1], [2, 2], [1]], GREEDY)
    again = policy.generate([[2, 2], [3]], GREEDY)
    assert inner.written == [[1], [2, 2], [3]]
    assert [item.ids[0] for item in first + again] == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    "other", [{"max_new_tokens": [3]}, {"sampling": Sampling(0.0, stop=("x",), max_new_tokens=8)}]
)
def test_another_limit_is_another_question(other):
    inner = Counting()
    policy = AskedOnce(inner)
    policy.generate([[1]], GREEDY)
    policy.generate([[1]], **{"sampling": GREEDY, **other})
    assert inner.written == [[1], [1]]


def test_what_is_sampled_is_drawn_each_time():
    inner = Counting()
    policy = AskedOnce(inner)
    for _ in range(2):
        policy.generate([[1], [1]], Sampling(temperature=1.0))
    assert inner.written == [[1]] * 4


def test_equal_contexts_are_asked_about_once():
    inner = Counting()
    policy = AskedOnce(inner)
    first = policy.choice_probs([[1], [2], [1]], [[[5]], [[5]], [[5], [6]]])
    again = policy.choice_probs([[2], [1]], [[[5]], [[5]]])
    assert first == [[1.5], [2.5], [1.5, 1.6]]
    assert again == [[2.5], [1.5]]
    assert inner.asked == [[[1], [2], [1]], []]  # other processes wait for an empty question, too


def test_other_properties_are_those_of_the_policy():
    inner = Counting()
    assert AskedOnce(inner).batch_size == 7
    assert AskedOnce(inner).tokenizer is inner.tokenizer
