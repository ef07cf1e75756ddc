"""Episodes continued turn by turn: what is kept changes nothing but how much is read."""

import gc
import math
import random
import weakref
from collections import Counter
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import lab
import pytest
import torch
from hypothesis import given, settings, strategies as st
from peft import PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from faithful_search.bundled import tiny_policy
from faithful_search.errors import GeneratorError
from faithful_search.inference.base import Completion, Sampling
from faithful_search.inference.transformers import TransformersGenerator, chooser
from faithful_search.rollout.engine import Engine
from faithful_search.rollout.episode import Limits
from faithful_search.tasks import load_tasks
from faithful_search.tools import LocalSearch, Toolbox

GREEDY = Sampling(temperature=0.0, max_new_tokens=8, logprobs=True)
Rows = list[list[int]]


@cache
def model(kind: str) -> Any:
    if kind in lab.READS_ON:
        name, sizes = lab.READS_ON[kind]
        return lab.sharp(lab.small(name, **sizes))
    return lab.lora(lab.sharp(lab.model())) if kind == "lora" else lab.sharp(lab.model())


def assert_recomputed(
    model: Any, prompts: Rows, written: list[Completion], temperature: float = 1.0
) -> None:
    for prompt, one in zip(prompts, written, strict=True):
        assert one.logprobs == pytest.approx(
            lab.recomputed(model, prompt, one.ids, temperature), abs=1e-4
        )


def some(least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 200), min_size=least, max_size=most)


@st.composite
def ragged(draw: Any) -> list[tuple[list[int], list[tuple[int, list[int]]]]]:
    """Episodes: a prompt, and for each turn its limit and the tool response behind it. Prompts
    repeat, and some are the beginning of others.
    """
    stems = draw(st.lists(some(1, 80), min_size=1, max_size=3))
    prompts = draw(st.lists(st.tuples(st.sampled_from(stems), some(0, 6)), min_size=1, max_size=6))
    turn = st.tuples(st.integers(1, 8), some(0, 90))
    return [(stem + own, draw(st.lists(turn, min_size=1, max_size=4))) for stem, own in prompts]


def played(
    generator: Any, episodes: Any, sampling: Sampling, order: random.Random
) -> dict[tuple[int, int], Any]:
    """What is written in each turn of each episode and how it ends, all live ones together, in
    another order each time. Every log-probability is checked.
    """
    contexts = [prompt for prompt, _ in episodes]
    found = {}
    for turn in range(max(len(turns) for _, turns in episodes)):
        live = [number for number, (_, turns) in enumerate(episodes) if turn < len(turns)]
        order.shuffle(live)
        prompts, limits = (
            [contexts[number] for number in live],
            [episodes[number][1][turn][0] for number in live],
        )
        written = generator.generate(prompts, sampling, limits)
        assert_recomputed(generator.model, prompts, written, sampling.temperature or 1.0)
        for number, one in zip(live, written, strict=True):
            found[number, turn] = one.ids, one.finish
            contexts[number] = contexts[number] + one.ids + episodes[number][1][turn][1]
    return found


@pytest.mark.parametrize("kind", ["plain", "lora", *lab.READS_ON])
@settings(max_examples=3)
@given(ragged(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_ragged_episodes_are_written_as_without_keeping(kind, episodes, batch_size, order):
    generator = TransformersGenerator(model(kind), lab.tokenizer(), batch_size=batch_size)
    plain = played(generator, episodes, GREEDY, order)
    with generator.keeping():
        assert generator._memory is not None
        kept = played(generator, episodes, GREEDY, order)
        played(
            generator, episodes, Sampling(temperature=0.8, max_new_tokens=8, logprobs=True), order
        )
    assert kept == plain


@settings(max_examples=4)
@given(ragged(), st.integers(0, 40), st.randoms(use_true_random=False))
def test_what_does_not_fit_is_read_again(episodes, tokens, order):
    size = 2 * 2 * 32 * 4  # keys and values of two layers, 32 numbers each
    generator = TransformersGenerator(lab.model(), lab.tokenizer())
    with pytest.MonkeyPatch.context() as patch, generator.keeping():
        patch.setattr(generator._memory, "limit", tokens * size)
        played(generator, episodes, GREEDY, order)
        kept = sum(len(one.ids) for one in generator._memory.rows)
        assert kept * size == generator._memory.size <= tokens * size


def test_tokens_are_drawn_from_the_limited_distribution():
    one, prompt, count = model("plain"), [5, 6, 7], 1500
    with torch.no_grad():
        logits = one(input_ids=torch.tensor([prompt])).logits[0, -1] / 0.1
    generator = TransformersGenerator(one, lab.tokenizer(), batch_size=count)
    best = logits.topk(5).indices
    torch.manual_seed(0)
    drawn = generator.generate(
        [prompt] * count, Sampling(temperature=0.1, top_k=5, max_new_tokens=1, logprobs=True)
    )
    nucleus = generator.generate(
        [prompt] * count, Sampling(temperature=0.1, top_p=0.02, max_new_tokens=1)
    )
    seen = Counter(one.ids[0] for one in drawn)
    expected = dict(zip(best.tolist(), logits[best].softmax(-1).tolist(), strict=True))
    assert seen.keys() <= expected.keys()
    for token, share in expected.items():
        assert abs(seen[token] / count - share) < 4 * (share * (1 - share) / count) ** 0.5
    assert_recomputed(one, [prompt] * 20, drawn[:20], 0.1)
    ranked = logits.softmax(-1).sort(descending=True)
    inside = int((ranked.values.cumsum(-1) < 0.02).sum()) + 1
    assert {one.ids[0] for one in nucleus} == set(ranked.indices[:inside].tolist())


def test_the_nucleus_is_cut_and_logprobs_are_of_all():
    shares = torch.tensor(
        [[0.4, 0.3, 0.2, 0.1]] * 50
    )  # of the best two, one alone has more than half
    tokens, logprobs = chooser(Sampling(top_k=2, top_p=0.5, logprobs=True))(shares.log())
    assert set(tokens) == {0}
    assert logprobs == pytest.approx([math.log(0.4)] * 50)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_an_error(temperature, wrong):
    broken = lab.model()
    with torch.no_grad():
        broken.lm_head.weight[7].fill_(wrong)
    generator = TransformersGenerator(broken, lab.tokenizer())
    sampling = Sampling(temperature=temperature, max_new_tokens=3)
    with generator.keeping(), pytest.raises(GeneratorError, match="not numbers"):
        generator.generate([[5, 6]], sampling)


def test_only_what_is_new_is_read():
    generator = TransformersGenerator(lab.model(), lab.tokenizer())
    counting = lab.Counting(generator.model)
    prompts: Rows = [[7] * 200, [7] * 200, [7] * 200, [8] * 150]
    with generator.keeping():
        counting.taken()
        written = generator.generate(prompts, GREEDY, [3, 3, 3, 3])
        assert (
            counting.taken() == 2 * 199 + 3 * 4
        )  # both prompts once, padded; then a token of each row for each step
        further = [
            prompt + one.ids + [9] * 30 for prompt, one in zip(prompts, written, strict=True)
        ]
        generator.generate([further[3], further[0]], GREEDY, [1, 4])
        # the last token written has not been read; rows that have ended leave
        assert counting.taken() == 2 * 30 + 2 + 3
        with generator.keeping():  # an inner run begins with nothing
            counting.taken()
            generator.generate([further[0]], GREEDY, [1])
            assert counting.taken() == len(further[0])
        generator.generate([further[0]], GREEDY, [1])
        assert counting.taken() == 1
    generator.generate([further[0]], GREEDY, [1])
    assert counting.taken() == len(further[0]) + 1  # with a token to try how the model reads on


def test_a_changed_context_is_noticed_and_read_from_there():
    generator = TransformersGenerator(lab.model(), lab.tokenizer())
    counting = lab.Counting(generator.model)
    with generator.keeping():
        (written,) = generator.generate([[7] * 100], GREEDY, [5])
        context = [7] * 100 + written.ids + [9] * 10
        context[40] = 3
        counting.taken()
        again = generator.generate([context], GREEDY, [5])
        assert counting.taken() == len(context) - 40 - 1 + 5
        assert_recomputed(generator.model, [context], again)
        assert_recomputed(
            generator.model, [context[:60]], generator.generate([context[:60]], GREEDY, [5])
        )


def test_ended_episodes_are_forgotten_with_the_next_turn():
    changed = lab.model()
    generator = TransformersGenerator(changed, lab.tokenizer())

    def kept(first: int) -> weakref.ref[torch.Tensor]:
        return weakref.ref(
            next(one for one in generator._memory.rows if one.ids[0] == first).layers[0][0]
        )

    with pytest.raises(KeyError), generator.keeping():
        written = generator.generate([[7] * 50, [8] * 60, [9] * 70], GREEDY, [2, 2, 2])
        ended = kept(8)
        assert ended() is not None
        context = [7] * 50 + written[0].ids + [4]
        generator.generate([[9] * 70 + written[2].ids + [3], context], GREEDY, [2, 2])
        gc.collect()
        assert ended() is None
        assert sorted(one.ids[0] for one in generator._memory.rows) == [7, 9]
        live = kept(7)
        raise KeyError("a tool broke")
    gc.collect()
    assert live() is None
    with torch.no_grad():
        changed.model.embed_tokens.weight.mul_(3).add_(0.1)
    with generator.keeping():
        assert_recomputed(changed, [context], generator.generate([context], GREEDY))


@pytest.mark.parametrize("kind", [*lab.FORGETS, "prompt tuning"])
def test_models_without_a_plain_cache_read_everything_again(
    kind,
):
    if kind == "prompt tuning":
        own = get_peft_model(
            lab.model(), PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
        ).eval()
    else:
        name, sizes = lab.FORGETS[kind]
        own = lab.small(name, **sizes)
    prompts: Rows = [[7] * 40, [8] * 60]
    generator, counting = TransformersGenerator(own, lab.tokenizer()), lab.Counting(own)
    with generator.keeping():
        for _ in range(2):
            counting.taken()
            written = generator.generate(prompts, GREEDY)
            assert counting.taken() >= 2 * 60 + 2 * 7
            assert_recomputed(own, prompts, written)


def test_mode_is_restored_and_nothing_has_a_gradient():
    training = lab.model().train()
    training.activation_checkpointing_enable()
    generator = TransformersGenerator(training, lab.tokenizer())
    with generator.keeping():
        assert training.training
        generator.generate([[7] * 40], GREEDY)
        generator.choice_probs([[7]], [[[8]]])
        assert training.training
        assert training.is_activation_checkpointing
        assert not any(
            part.requires_grad
            for one in generator._memory.rows
            for layer in one.layers
            for part in layer
        )


def test_the_engine_keeps_from_turn_to_turn():
    """The tiny policy searches and answers, or is made to; fewer episodes run at once than there
    are.
    """
    path = tiny_policy("pou")
    policy = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    generator = TransformersGenerator(policy, AutoTokenizer.from_pretrained(path), batch_size=4)
    counting = lab.Counting(policy)
    limits = Limits(turns=3, turn_tokens=96, total_tokens=1024, force_answer=True)

    def run(policy: Any) -> list[tuple[Any, ...]]:
        with Toolbox([LocalSearch.from_corpus("world", top_k=3)]) as toolbox:
            engine = Engine(
                policy, toolbox, limits=limits, sampling=Sampling(temperature=0.0), concurrency=2
            )
            played = engine.run(load_tasks("world", "validation")[-5:])
        return [(one.id, one.tokens, one.stop_reason, len(one.steps)) for one in played]

    kept, taken = run(generator), counting.taken()
    assert {steps for *_, steps in kept} == {2, 4}
    names = ("tokenizer", "generate", "choice_probs")
    without = {name: getattr(generator, name) for name in names}
    assert kept == run(SimpleNamespace(**without, keeping=nullcontext))
    again = sum(len(own.prompt_ids) + middle for _, own, *_ in kept for _, middle, _ in own.turns)
    assert taken < 0.6 * again  # which is what reading each turn's context whole would take
    assert generator._memory is None
