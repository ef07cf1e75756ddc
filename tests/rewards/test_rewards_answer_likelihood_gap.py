"""How much more probable the evidence makes the answer."""

import math

import lab
import msgspec
import pytest
import torch

from faithful_search.dialects import load
from faithful_search.errors import ConfigError, DataError
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import AnswerLikelihoodGap, Correctness, Mix
from faithful_search.rewards.answer_likelihood_gap import _Question, _score, find_mention
from faithful_search.rewards.contexts import turn_ids
from faithful_search.rewards.perturbation import NEUTRAL
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TOKENIZER = lab.tokenizer()
BREAD = ("Bread", "Dough rests overnight.")


class Policy:
    """log p of a token is -1 where the ids before it hold "Lima" in a tool response, else -3."""

    tokenizer = TOKENIZER

    def __init__(self):
        self.calls = []

    def choice_probs(self, prompts, choices):
        raise AssertionError("probabilities may be 0 in floating point")

    generate = choice_probs

    def choice_logprobs(self, prompts, choices):
        self.calls.append(
            [(self.tokenizer.decode(prompt), own[0]) for prompt, own in zip(prompts, choices, strict=True)]
        )
        return [
            [len(own[0]) * (-1.0 if "is Lima" in self.tokenizer.decode(p) else -3.0)]
            for p, own in zip(prompts, choices, strict=True)
        ]


LIMA = Evidence("The capital of Peru is Lima.", "Peru", "E1")
COD = Evidence("Cod is a fish.", "Cod", "E2")


def episode(
    answer="Lima", plan="I search.", said="It is so.", refs=("E1",), evidence=(LIMA, COD), **more
) -> Trajectory:
    search = Step(think=plan, call=ToolCall("search", {"query": "capital of Peru"}), evidence=evidence)
    last = Step(think=said, helpful=bool(refs), refs=refs, answer=answer)
    given = {"question": "What is the capital of Peru?", "answers": ("Lima",), "dialect": "pou", "id": "t"}
    return Trajectory((search, last), answer=answer, **{**given, **more})


def gap(**knobs) -> tuple[AnswerLikelihoodGap, Policy]:
    policy = Policy()
    return AnswerLikelihoodGap(**{"snippets": (BREAD,), **knobs}, policy=policy), policy


def test_the_formula_by_hand():
    reward, policy = gap()
    score = reward.score(episode())
    p, q = math.exp(-1), math.exp(-3)
    assert score.value == pytest.approx(math.tanh(1.0)) == pytest.approx((p - q) / (p + q))
    found = {"gap": 2.0, "logprob": -1.0, "logprob_without": -3.0, "tokens": len(TOKENIZER.encode("Lima")), "step": 2}
    assert score.parts == {"applies": True, **found}
    ((real, answer), (without, same)) = policy.calls[0]
    assert TOKENIZER.decode(answer) == TOKENIZER.decode(same) == "Lima"
    assert "Peru [E1]: The capital of Peru is Lima." in real and real.endswith("It is so.</think><answer>")
    assert without == real.replace("Peru [E1]: The capital of Peru is Lima.", "Bread [E1]: Dough rests overnight.")


def test_an_answer_that_is_impossible_either_way_has_no_gap():
    assert _score(_Question(2, [], [], [0]), -math.inf, -math.inf).value == 0.0
    assert _score(_Question(2, [], [], [0]), -5.0, -math.inf).value == 1.0


def test_what_is_asked_about_is_the_agents_first_mention():
    reward, policy = gap()
    reward.score(episode(said="The capital is Lima. So: Lima."))
    assert policy.calls[0][0][0].endswith("<ref>E1</ref>The capital is ")
    last, policy = gap(where="answer")
    last.score(episode(said="The capital is Lima. So: Lima."))
    assert policy.calls[0][0][0].endswith("So: Lima.</think><answer>")


def test_an_answer_that_was_written_before_the_evidence_came_has_none():
    reward, policy = gap()
    score = reward.score(episode(plan="I know it: Lima."))
    assert (score.value, score.parts["applies"], score.parts["step"]) == (0.0, True, 1)
    assert "before the evidence" in score.why and policy.calls == [[]]  # asked for nothing, but asked
    assert gap(where="answer")[0].score(episode(plan="I know it: Lima.")).value == pytest.approx(math.tanh(1.0))


@pytest.mark.parametrize(
    ("made", "value", "applies"),
    [
        (episode(answer=None), 0.0, False),
        (episode(answer="  "), 0.0, False),
        (episode(refs=()), 0.0, False),
        (episode(refs=("E9",)), 0.0, False),
        (Trajectory((Step(answer="Lima"),), answer="Lima", dialect="pou"), 0.0, False),
        (Trajectory(), 0.0, False),
        (episode(refs=("E2",)), 0.0, True),  # what it read stays: it cited something else
    ],
)
def test_where_nothing_is_gained(made, value, applies):
    reward, _ = gap()
    score = reward.score(made)
    assert (score.value, score.parts["applies"]) == (value, applies) and score.why
    assert (reward.measure(score) is None) is not applies


def test_a_cited_passage_is_exchanged_wherever_it_is_shown():
    search = Step(think="Again.", call=ToolCall("search", {"query": "Lima"}), helpful=False, evidence=(LIMA,))
    again = msgspec.structs.replace(LIMA, id="E3")
    steps = (
        search,
        msgspec.structs.replace(search, evidence=(COD, again)),
        Step(think="", helpful=True, refs=("E3",), answer="Lima"),
    )
    made = Trajectory(steps, question="q", answer="Lima", dialect="pou")
    reward, policy = gap(where="answer")
    assert reward.score(made).value > 0
    ((real, _), (without, _)) = policy.calls[0]
    assert real.count("is Lima.") == 2 and "is Lima." not in without and "Cod is a fish." in without


def test_a_yes_is_taken_where_it_is_the_answer_and_names_of_tags_are_no_words():
    reward, policy = gap()
    reward.score_batch([episode("yes"), episode("answer"), episode("Lim", said="Lima, so Lim.")])
    yes, answer, lim = (prompt for prompt, _ in policy.calls[0][::2])
    assert yes.endswith("It is so.</think><answer>") and answer.endswith("It is so.</think><answer>")
    assert lim.endswith("</ref>Lima, so ")


def test_replacements_never_hold_the_answer():
    reward, policy = gap(snippets=(("Song", "A ballad of lima beans."),))
    reward.score(episode())
    without = policy.calls[0][1][0]
    assert "beans" not in without and any(text in without for _, text in NEUTRAL)


def test_without_snippets_replacements_come_from_the_batchs_other_questions_of_all_processes():
    other = episode("x", evidence=(Evidence("Owls hunt at night.", "Owl", "E1"),), question="Which bird?", id="u")
    reward, policy = gap(snippets=())
    reward.score_batch([episode(), other])
    assert "Owls hunt at night." in policy.calls[0][1][0]
    elsewhere = AnswerLikelihoodGap(
        policy=policy, gather=lambda own: [*own, ("Which tree?", "Oak", "Oaks grow slowly.")]
    )
    elsewhere.score(episode())
    assert "Oaks grow slowly." in policy.calls[1][1][0]


def test_in_dialects_without_citations_all_that_was_retrieved_is_the_evidence():
    reward, policy = gap()
    score = reward.score(episode(dialect="search_r1", refs=()))
    assert score.value == pytest.approx(math.tanh(1.0))
    assert "Cod is a fish." in policy.calls[0][0][0] and "Cod is a fish." not in policy.calls[0][1][0]


def test_rows_that_cannot_be_asked_about_have_no_value():
    parallel = episode(dialect="search_r1")
    steps = (parallel.steps[0], msgspec.structs.replace(parallel.steps[0], same_turn=True), parallel.steps[1])
    reward, _ = gap()
    shared, unwritten = reward.score_batch(
        [msgspec.structs.replace(parallel, steps=steps), msgspec.structs.replace(episode(), answer="Cuzco")]
    )
    assert shared.value is None and "share a response" in shared.why
    assert unwritten.value is None and "'Cuzco'" in unwritten.why


def test_tokens_of_another_rollout_are_refused():
    chat = ChatFormat.of(TOKENIZER, load("pou"))
    tokens = chat.transcript(Trajectory((Step(think="", answer="Lima"),)))
    with pytest.raises(DataError, match="1 turns in its tokens, but 2 steps"):
        gap()[0].score(episode(tokens=tokens))


class OnlyProbs:
    tokenizer = TOKENIZER

    def generate(self, prompts, sampling, max_new_tokens=None): ...

    def choice_probs(self, prompts, choices): ...


def test_a_policy_that_cannot_be_asked_is_refused():
    with pytest.raises(ConfigError, match="bind"):
        AnswerLikelihoodGap().score(episode())
    with pytest.raises(ConfigError, match="OnlyProbs does not give"):
        AnswerLikelihoodGap().bind(policy=OnlyProbs()).score(episode())
    with pytest.raises(ConfigError, match="there are: first, answer"):
        AnswerLikelihoodGap(where="last")


def test_it_counts_on_right_answers_only_where_a_mix_says_so():
    mix = Mix(
        {"correctness": Correctness(), "gap": AnswerLikelihoodGap(snippets=(BREAD,))}, gate=None, only_right=("gap",)
    )
    bound = mix.bind(policy=Policy())
    right, wrong = bound.score_batch([episode(), episode(answers=("Quito",))])
    assert right.value == pytest.approx((1 + math.tanh(1.0)) / 2) and wrong.value == 0.0
    assert wrong.parts["gap"] == pytest.approx(math.tanh(1.0)) and mix.needs_policy


# Against a slow computation with a real model


def slow(model, context: list[int], answer: list[int]) -> float:
    """log p of one answer in one context, without cache, padding or batch."""
    with torch.no_grad():
        table = model(torch.tensor([context + answer])).logits[0].double().log_softmax(-1)
    return sum(float(table[place, token]) for place, token in enumerate(answer, start=len(context) - 1))


@pytest.mark.parametrize("dialect", ["pou", "search_r1"])
def test_it_is_what_a_tiny_model_says_of_two_transcripts(dialect):
    model = lab.sharp(lab.sharp(lab.model()))
    refs = ("E1",) if dialect == "pou" else ()
    answers = ["Lima", "☃"]
    rows = [episode(answer, dialect=dialect, refs=refs, id=answer, evidence=(LIMA,)) for answer in answers]
    reward = AnswerLikelihoodGap(snippets=(BREAD,), policy=TransformersGenerator(model, TOKENIZER, batch_size=4))
    chat = ChatFormat.of(TOKENIZER, load(dialect))
    for row, score in zip(rows, reward.score_batch(rows), strict=True):
        bare = msgspec.structs.replace(row.steps[0], evidence=(Evidence(BREAD[1], BREAD[0], "E1"),))
        means = []
        for told in (row, msgspec.structs.replace(row, steps=(bare, row.steps[1]))):
            tokens = chat.transcript(told)
            turn, answer = turn_ids(tokens, 1), chat.encode(row.answer)
            at = next(k for k in range(len(turn)) if turn[k : k + len(answer)] == answer)
            context = tokens.prompt_ids + tokens.completion_ids[: tokens.turns[1][0]] + turn[:at]
            means.append(slow(model, context, answer) / len(answer))
        assert score.parts["tokens"] == len(chat.encode(row.answer))
        assert score.parts["logprob"] == pytest.approx(means[0], abs=1e-4)
        assert score.parts["logprob_without"] == pytest.approx(means[1], abs=1e-4)
        assert score.value == pytest.approx(math.tanh((means[0] - means[1]) / 2), abs=1e-4)
        assert abs(score.value) > 1e-3


def test_the_tokens_that_were_sampled_are_asked_about_however_they_were_cut():
    chat = ChatFormat.of(TOKENIZER, load("pou"))
    whole = chat.transcript(episode())
    turn = turn_ids(whole, 1)
    place = find_mention(TOKENIZER, whole, "Lima", last=False)
    assert TOKENIZER.decode(turn[place.start : place.end]) == "Lima"
    reward, policy = gap()
    start = whole.turns[1][0]
    rest = chat.encode("<think><helpful>yes</helpful><ref>E1</ref>x</think><answer>L") + chat.encode("ima</answer>")
    ids = whole.completion_ids[:start] + rest
    sampled = msgspec.structs.replace(
        whole, completion_ids=ids, mask=[1] * len(ids), turns=(whole.turns[0], (start, len(ids), len(ids)))
    )
    reward.score(episode(tokens=sampled))
    assert policy.calls[0][0][1] == chat.encode("L") + chat.encode("ima")


def test_log_probabilities_do_not_run_out_where_probabilities_do():
    generator = TransformersGenerator(lab.sharp(lab.model()), TOKENIZER)
    prompt, long = TOKENIZER.encode("a"), TOKENIZER.encode("zq" * 200)
    [[logprob]] = generator.choice_logprobs([prompt], [[long]])
    assert logprob == pytest.approx(slow(generator.model, prompt, long), rel=1e-4) and logprob < -800
    assert generator.choice_probs([prompt], [[long]]) == [[0.0]]
