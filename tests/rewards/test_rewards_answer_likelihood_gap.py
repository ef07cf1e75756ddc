"""How much more probable the evidence makes the answer."""

import math

import lab
import msgspec
import pytest

from faithful_search.dialects import load
from faithful_search.errors import ConfigError, DataError
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import AnswerLikelihoodGap
from faithful_search.rewards.answer_likelihood_gap import _AnswerContexts, find_mention
from faithful_search.rewards.contexts import turn_ids
from faithful_search.rewards.perturbation import Donor
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TOKENIZER = lab.tokenizer()
BREAD = ("Bread", "Dough rests overnight.")
MORE = ("Tea", "Leaves are dried.")
LIMA = Evidence("The capital of Peru is Lima.", "Peru", "E1")
COD = Evidence("Cod is a fish.", "Cod", "E2")
FULL = pytest.approx(math.tanh(1.0))
"""The value where the evidence that the policy knows the answer from is taken away."""


class Policy:
    """log p of a token is -1 where the ids before it hold "Lima" in a tool response, else -3.

    It knows no probabilities, which may be 0 in floating point.
    """

    tokenizer = TOKENIZER

    def __init__(self):
        self.calls = []

    def choice_logprobs(self, prompts, choices):
        asked = [
            (self.tokenizer.decode(prompt), own[0])
            for prompt, own in zip(prompts, choices, strict=True)
        ]
        self.calls.append(asked)
        return [[len(answer) * (-1.0 if "is Lima" in prompt else -3.0)] for prompt, answer in asked]


def episode(
    answer="Lima", plan="I look.", said="It is so.", refs=("E1",), evidence=(LIMA, COD), **more
) -> Trajectory:
    search = Step(
        think=plan, call=ToolCall("search", {"query": "capital of Peru"}), evidence=evidence
    )
    last = Step(think=said, helpful=bool(refs), refs=refs, answer=answer)
    given = {
        "question": "What is the capital of Peru?",
        "answers": ("Lima",),
        "dialect": "pou",
        "id": "t",
    }
    return Trajectory((search, last), answer=answer, **{**given, **more})


def scored(*rows: Trajectory, **knobs):
    """The scores of some rows, and what the policy was asked: contexts real and without the
    evidence in turn.
    """
    policy = Policy()
    return AnswerLikelihoodGap(**{"snippets": (BREAD,), **knobs}, policy=policy).score_batch(
        rows
    ), policy.calls[0]


def test_the_formula_by_hand():
    (score,), ((real, answer), (without, same)) = scored(episode())
    p, q = math.exp(-1), math.exp(-3)
    assert score.value == FULL == pytest.approx((p - q) / (p + q))
    found = {
        "gap": 2.0,
        "logprob": -1.0,
        "logprob_without": -3.0,
        "tokens": len(TOKENIZER.encode("Lima")),
        "step": 2,
    }
    assert score.parts == {"applies": True, **found}
    assert TOKENIZER.decode(answer) == TOKENIZER.decode(same) == "Lima"
    assert "Peru [E1]: The capital of Peru is Lima." in real
    assert real.endswith("It is so.</think><answer>")
    impossible = _AnswerContexts(2, [], [], [0])  # either way there is no gap
    assert (
        impossible.score(-math.inf, -math.inf).value,
        impossible.score(-5.0, -math.inf).value,
    ) == (0.0, 1.0)
    assert without == real.replace(
        "Peru [E1]: The capital of Peru is Lima.", "Peru [E1]: Dough rests overnight."
    )


@pytest.mark.parametrize(
    ("made", "end"),
    [
        (episode(said="The capital is Lima. So: Lima."), "<ref>E1</ref>The capital is "),
        (
            episode("yes"),
            "It is so.</think><answer>",
        ),  # where it is the answer: verdicts are the same words
        (episode("answer"), "It is so.</think><answer>"),  # names of tags are no words
        (episode("Lim", said="Lima, so Lim."), "</ref>Lima, so "),
    ],
)
def test_what_is_asked_about_is_the_agents_first_mention(made, end):
    _, ((real, _), _) = scored(made)
    assert real.endswith(end)


FORMS = ["Lima", r"\boxed{Lima}", '{"answer": "Lima"}', "Lima\nConfidence: 90%"]


@pytest.mark.parametrize("answer", FORMS)
def test_an_answer_that_was_written_before_the_evidence_came_has_none(answer):
    (score,), asked = scored(episode(answer, plan="I know it: Lima."))
    assert (score.value, score.parts["applies"], score.parts["step"]) == (0.0, True, 1)
    assert "before the evidence" in score.why  # asked for nothing, but asked
    assert asked == []


@pytest.mark.parametrize(
    ("made", "applies"),
    [
        (episode(answer=None), False),
        (episode(refs=()), False),
        (Trajectory((Step(answer="Lima"),), answer="Lima", dialect="pou"), False),
        (episode(refs=("E2",)), True),  # what it read stays: it cited something else
    ],
)
def test_where_nothing_is_gained(made, applies):
    (score,), _ = scored(made)
    assert (score.value, score.parts["applies"]) == (0.0, applies)
    assert score.why
    assert (AnswerLikelihoodGap().measure(score) is None) is not applies


def test_a_cited_passage_is_exchanged_wherever_it_is_shown():
    search = Step(
        think="Again.", call=ToolCall("search", {"query": "it"}), helpful=False, evidence=(LIMA,)
    )
    twice = msgspec.structs.replace(search, evidence=(COD, msgspec.structs.replace(LIMA, id="E3")))
    steps = (search, twice, Step(think="", helpful=True, refs=("E3",), answer="Lima"))
    (score,), ((real, _), (without, _)) = scored(
        Trajectory(steps, question="q", answer="Lima", dialect="pou")
    )
    assert score.value > 0
    assert real.count("is Lima.") == 2
    assert "is Lima." not in without
    assert "Cod is a fish." in without


def test_replacements_never_hold_the_answer():
    snippets = (("Song", "A ballad of the lima beans."), ("Bread", "Dough rests for many nights."))
    _, (_, (without, _)) = scored(episode(), snippets=snippets)
    assert "beans" not in without
    assert "rests for many nights." in without


@pytest.mark.parametrize("answer", FORMS)
def test_a_title_that_holds_the_answer_is_replaced_too(answer):
    page = Evidence(
        "The capital of Peru is Lima.", "Lima, Peru", "E1", url="https://a.example/Lima"
    )
    _, ((real, _), (without, _)) = scored(episode(answer, evidence=(page,)))
    assert "Lima, Peru <https://a.example/Lima> [E1]" in real
    assert "Bread <https://a.example/> [E1]" in without


def test_replacements_come_from_other_questions():
    owl = Evidence("Owls hunt in the woods at night.", "Owl", "E1")
    other = episode("x", evidence=(owl,), question="Which bird?", id="u")
    call = ToolCall("search", {"query": "bird at night"})
    search = msgspec.structs.replace(other.steps[0], call=call)
    other = msgspec.structs.replace(other, steps=(search, other.steps[1]))
    _, (_, (without, _), *_) = scored(episode(), other, snippets=())
    assert owl.text in without


def test_replacements_come_from_all_processes():
    oak = Donor("Which tree?", "tree", "s", "Oak", "Oaks grow slowly in the woods.")
    _, (_, (without, _)) = scored(episode(), snippets=(), gather=lambda own: [*own, oak])
    assert oak.text in without


def test_a_row_without_replacements_does_not_apply():
    (score,), prompts = scored(episode(), snippets=())
    assert (score.value, score.parts["applies"]) == (0.0, False)
    assert "give snippets" in score.why
    assert prompts == []


def test_in_dialects_without_citations_all_that_was_retrieved_is_the_evidence():
    row = episode(dialect="search_r1", refs=())
    (score,), ((real, _), (without, _)) = scored(row, snippets=(BREAD, MORE))
    assert score.value == FULL
    assert "Cod is a fish." in real
    assert "Cod is a fish." not in without


def test_rows_that_cannot_be_asked_about_have_no_value():
    parallel = episode(dialect="search_r1")
    steps = (
        parallel.steps[0],
        msgspec.structs.replace(parallel.steps[0], same_turn=True),
        parallel.steps[1],
    )
    rows = (
        msgspec.structs.replace(parallel, steps=steps),
        msgspec.structs.replace(episode(), answer="Cuzco"),
    )
    (shared, unwritten), _ = scored(*rows)
    assert shared.value is None
    assert "share a response" in shared.why
    assert unwritten.value is None
    assert "'Cuzco'" in unwritten.why


def test_foreign_tokens_and_mute_policies_are_refused():
    other = ChatFormat.of(TOKENIZER, load("pou")).transcript(
        Trajectory((Step(think="", answer="Lima"),))
    )
    with pytest.raises(DataError, match="1 turns in its tokens, but 2 steps"):
        scored(episode(tokens=other))
    with pytest.raises(ConfigError, match="bind"):
        AnswerLikelihoodGap().score(episode())
    with pytest.raises(ConfigError, match="Writing does not give"):
        AnswerLikelihoodGap().bind(policy=lab.Writing()).score(episode())


# Against a slow computation with a real model


@pytest.mark.parametrize("dialect", ["pou", "search_r1"])
def test_it_is_what_a_tiny_model_says_of_two_transcripts(dialect):
    model = lab.sharp(lab.sharp(lab.model()))
    refs = ("E1",) if dialect == "pou" else ()
    rows = [
        episode(said, dialect=dialect, refs=refs, id=said, evidence=(LIMA,))
        for said in ("Lima", "☃")
    ]
    reward = AnswerLikelihoodGap(
        snippets=(BREAD,), policy=TransformersGenerator(model, TOKENIZER, batch_size=4)
    )
    chat = ChatFormat.of(TOKENIZER, load(dialect))
    for row, score in zip(rows, reward.score_batch(rows), strict=True):
        bare = msgspec.structs.replace(row.steps[0], evidence=(Evidence(BREAD[1], "Peru", "E1"),))
        means = []
        for told in (row, msgspec.structs.replace(row, steps=(bare, row.steps[1]))):
            tokens = chat.transcript(told)
            turn, answer = turn_ids(tokens, 1), chat.encode(row.answer)
            at = next(k for k in range(len(turn)) if turn[k : k + len(answer)] == answer)
            context = tokens.prompt_ids + tokens.completion_ids[: tokens.turns[1][0]] + turn[:at]
            means.append(sum(lab.recomputed(model, context, answer)) / len(answer))
        assert score.parts["tokens"] == len(chat.encode(row.answer))
        assert [score.parts[name] for name in ("logprob", "logprob_without")] == pytest.approx(
            means, abs=1e-4
        )
        assert score.value == pytest.approx(math.tanh((means[0] - means[1]) / 2), abs=1e-4)
        assert abs(score.value) > 1e-3


def test_the_tokens_that_were_sampled_are_asked_about_however_they_were_cut():
    chat = ChatFormat.of(TOKENIZER, load("pou"))
    whole = chat.transcript(episode())
    step, begin, end = find_mention(TOKENIZER, whole, "Lima")
    assert TOKENIZER.decode(turn_ids(whole, step)[begin:end]) == "Lima"
    assert step == 1
    start = whole.turns[1][0]
    rest = chat.encode(
        "<think><helpful>yes</helpful><ref>E1</ref>x</think><answer>L"
    ) + chat.encode("ima</answer>")
    ids = whole.completion_ids[:start] + rest
    turns = (whole.turns[0], (start, len(ids), len(ids)))
    sampled = msgspec.structs.replace(whole, completion_ids=ids, mask=[1] * len(ids), turns=turns)
    _, ((_, answer), _) = scored(episode(tokens=sampled))
    assert answer == chat.encode("L") + chat.encode("ima")


def test_log_probabilities_do_not_run_out_where_probabilities_do():
    generator = TransformersGenerator(lab.sharp(lab.model()), TOKENIZER)
    prompt, long = TOKENIZER.encode("a"), TOKENIZER.encode("zq" * 200)
    [[logprob]] = generator.choice_logprobs([prompt], [[long]])
    assert logprob == pytest.approx(sum(lab.recomputed(generator.model, prompt, long)), rel=1e-4)
    assert logprob < -800
    assert generator.choice_probs([prompt], [[long]]) == [[0.0]]
