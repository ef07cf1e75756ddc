"""PokeeResearch's reward: what fools comparisons of strings does not fool a judge that reads."""

import pytest
from stub_judges import Down

from faithful_search.errors import ConfigError
from faithful_search.judges import Verdict
from faithful_search.rewards import pokee_mix
from faithful_search.trajectory import Step, Trajectory

# (question, gold, answer, whether it is right): the cases of the paper's figure 3, in our words
ONE_WORD_WRONG = (
    "When was Nora Fell born?",
    "Nora Fell was born on 3 May 1871",
    "Nora Fell was born on 4 May 1871",
    False,
)
MORE_SAID = ("Where does the ferry end?", "Port Ellin", "Port Ellin, on the island of Sark Holm", True)
OTHER_WORDS = ("How many keepers were there?", "12", "a dozen", True)
THE_SAME = ("Who built the pier?", "Ivo Kast", "ivo kast.", True)
CASES = [ONE_WORD_WRONG, MORE_SAID, OTHER_WORDS, THE_SAME]


class Reader:
    """Knows which answers mean the same; remembers what it was asked."""

    name = "reader"

    def __init__(self, fails: bool = False) -> None:
        self.asked, self.fails = [], fails

    def judge_batch(self, pairs):
        self.asked += pairs
        right = {(gold, answer): verdict for _, gold, answer, verdict in CASES}
        if self.fails:
            return [Verdict(None, None, "no answer from the server", "reader") for _ in pairs]
        labels = [right[pair.premise, pair.hypothesis] for pair in pairs]
        return [Verdict(float(label), label, "", "reader") for label in labels]


def answered(case, think: str | None = "so") -> Trajectory:
    question, gold, answer, _ = case
    return Trajectory((Step(think, answer=answer),), question, answer, "answered", "pokee", answers=(gold,))


def values(mix, cases=CASES) -> list[float | None]:
    return [score.value for score in mix.score_batch([answered(case) for case in cases])]


def test_only_the_judge_tells_right_from_wrong():
    reader = Reader()
    assert values(pokee_mix(reader, format_weight=0)) == [float(right) for *_, right in CASES]
    by_words = values(pokee_mix(metric="f1", format_weight=0))
    assert by_words[0] > 0.8 and by_words[2] == 0 and by_words[0] > by_words[1]  # the wrong one above a right one
    assert values(pokee_mix(metric="em", format_weight=0)) == [0.0, 0.0, 0.0, 1.0]
    assert [pair.task for pair in reader.asked] == ["correctness"] * 3  # not about the exact match
    assert THE_SAME[2] not in {pair.hypothesis for pair in reader.asked}


def test_a_valid_format_earns_a_little_with_a_right_answer_and_without():
    mix = pokee_mix(Reader())
    no_thought = answered(THE_SAME, None)
    wrong, right = answered(ONE_WORD_WRONG), answered(THE_SAME)
    nothing = Trajectory((Step("so"),), dialect="pokee", answers=("x",))
    scores = [mix.score(one).value for one in (right, no_thought, wrong, nothing)]
    assert scores == pytest.approx([1.1, 1.0, 0.1, 0.0])


def test_an_answer_never_upheld_counts_and_its_format_does_not():
    steps = (Step("so", answer="Ivo Kast"), Step("no", verified=False))
    left = Trajectory(steps, "Who built the pier?", "Ivo Kast", "turn_limit", "pokee", answers=("Ivo Kast",))
    assert pokee_mix(metric="em").score(left).value == 1.0


def test_a_judge_that_failed_has_not_judged():
    assert values(pokee_mix(Reader(fails=True))) == [None, None, None, 1.1]
    assert values(pokee_mix(Down()), CASES[:1]) == [None]


def test_settings_that_contradict_each_other():
    for given in ({"metric": "judge"}, {"judge": Reader(), "metric": "em"}, {"metric": "em", "format_weight": -1}):
        with pytest.raises(ConfigError):
            pokee_mix(**given)
