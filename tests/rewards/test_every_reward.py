"""What every reward promises of any trajectory, and which settings are refused; a new file in
`rewards/` is found and held to it.
"""

import random
from dataclasses import fields

import pytest
from agent_rows import CountingJudge
from hypothesis import given, settings, strategies as st
from stub_judges import Down, by_word

from faithful_search import rewards
from faithful_search.errors import ConfigError
from faithful_search.rewards import (
    Adaptive,
    Citation,
    Correctness,
    Format,
    Mix,
    Shuffled,
    ToolUse,
    cited_evidence,
)
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory


def made(name: str) -> rewards.Reward:
    kind = rewards.load(name)
    return (
        kind(judge=CountingJudge(by_word))
        if "judge" in {field.name for field in fields(kind)}
        else kind()
    )


ALONE = {
    name: made(name) for name in rewards.names() if name not in ("correctness", "mix", "shuffled")
}
EVERY = {name: reward for name, reward in ALONE.items() if not reward.needs_policy} | {
    "unused": ToolUse("unused"),
    "uncited": ToolUse("uncited"),
    "f1": Correctness("f1"),
    "judged": Correctness("judge", judge=CountingJudge(by_word)),
    "mix": Mix(
        {"citation": Citation(), "answer": Adaptive(made("answer_support"), fixed=0.5)},
        gate=Format(),
    ),
    "shuffled": Shuffled(Format()),
}
TEXTS = [
    "",
    " ",
    "hard case",
    "good thing",
    "Paris 1889",
    "\u6771\u4eac\u306e\u5854",
    "...",
    "no",
    "ada horn",
]
texts = st.sampled_from(TEXTS) | st.text(max_size=20)
values = st.sampled_from([*TEXTS, 3, None, ["Ada"], {"a": [1]}])
ids = st.sampled_from(["E1", "E2", "E3", "null", ""])
steps = st.builds(
    Step,
    think=st.none() | texts,
    call=st.none()
    | st.builds(
        ToolCall,
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from(["query", "k"]), values, max_size=2),
    ),
    evidence=st.lists(st.builds(Evidence, texts, texts, ids), max_size=3).map(tuple),
    note=texts,
    answer=st.none() | texts,
    helpful=st.none() | st.booleans(),
    refs=st.lists(ids, max_size=3).map(tuple),
    same_turn=st.booleans(),
    verified=st.none() | st.booleans(),
    issues=st.sampled_from([(), (Issue("nested", "x"),), (Issue("verdict_invalid", "v"),)]),
)
trajectories = st.builds(
    Trajectory,
    steps=st.lists(steps, max_size=4).map(tuple),
    answer=st.none() | texts,
    answers=st.lists(texts, max_size=2).map(tuple),
    question=st.sampled_from(
        [None, "Who?", "Which city is the capital of the country where Mount Aso stands?"]
    ),
    dialect=st.sampled_from(["", "pou", "openai", "unheard-of"]),
)


def test_every_column_has_a_head_of_its_own():
    heads = [column.head for column in rewards.columns().values()]
    assert sorted(heads) == sorted(set(heads))


@pytest.mark.parametrize("mix", [rewards.pou_mix(), rewards.veritas_mix()], ids=["pou", "veritas"])
def test_every_part_of_a_mix_has_a_column(mix):
    assert set(mix.component_names) <= rewards.columns().keys()


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=20)
@given(batch=st.lists(trajectories, max_size=3), seed=st.integers(0, 99))
def test_values_are_in_bounds_say_why_and_do_not_depend_on_the_batch(name, batch, seed):
    reward = EVERY[name]
    scores = reward.score_batch(batch)
    if name != "shuffled":
        order = random.Random(seed).sample(range(len(batch)), len(batch))
        assert reward.score_batch([batch[i] for i in order]) == [scores[i] for i in order]
        assert scores == [reward.score(item) for item in batch]
    for trajectory, score in zip(batch, scores, strict=True):
        assert {item.id for item in cited_evidence(trajectory)} <= trajectory.evidence.keys()
        least, most = reward.range
        assert score.why if score.value is None else least <= score.value <= most
        measured = reward.measure(score)
        assert measured is None or reward.bounds[0] <= measured <= reward.bounds[1]
        assert score.value is None or not score.parts.get("abstained")
        assert (
            None not in [pair["p"] for pair in score.parts.get("pairs", [])]
            or score.parts["abstained"]
        )
        assert score.steps == () or len(score.steps) == len(trajectory.steps)
        given = [step for step in score.steps if step is not None]
        if given and score.value is not None and name != "mix":
            assert sum(given) / len(given) == pytest.approx(score.value)
        earned, rest = score.credit
        assert sum(earned) + rest == pytest.approx(score.value or 0.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Mix(parts={}), "at least one part"),
        (lambda: Mix(parts={"a": Adaptive(), "b": Adaptive()}), "at most one part may be Adaptive"),
        (
            lambda: Mix(parts={"correctness": Correctness(), "answer": Adaptive()}),
            "two components share a name",
        ),
        (
            lambda: Mix(parts={"a": Citation()}, weights={"b": 1.0}),
            "weights name b; the parts are a",
        ),
        (lambda: Mix(parts={"a": Citation()}, absent={"b": 0.0}), "absent name b"),
        (lambda: Mix(absent={"answer": 0.0}), "absent cannot name an Adaptive part"),
        (
            lambda: Mix(parts={"correctness": Correctness()}, only_right=("correctness",)),
            "only_right needs a part",
        ),
        (lambda: Correctness("bleu"), "metric 'bleu' is not one of"),
        (lambda: Correctness("judge"), "give both or neither"),
        (lambda: Correctness(judge=Down()), "give both or neither"),
        (lambda: rewards.AnswerSupport(evidence="all"), "evidence 'all' is not"),
        (lambda: Adaptive(beta=1.0), "beta must be in"),
        (lambda: Adaptive(fixed=1.5), "fixed must be in"),
    ],
)
def test_contradicting_settings_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        wrong()
