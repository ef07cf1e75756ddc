"""An answer's claims and the evidence that supports each: by itself, together with other evidence,
or not at all.
"""

from agent_rows import CountingJudge, silent_on

from faithful_search.judges import Writer
from faithful_search.measure.claims import Claim, claims_of
from faithful_search.trajectory import Evidence, Step, Trajectory

FOUND = (
    Evidence("The keeper of Belt is Ivo Kast.", "Belt", "E1"),
    Evidence("Belt lies on Sark Holm.", "Belt", "E2"),
    Evidence("The keeper of Belt is Ivo Kast.", "Belt", "E3"),
)


def answered(answer: str | None, evidence=FOUND) -> Trajectory:
    return Trajectory((Step(evidence=evidence), Step(answer=answer)), "Who keeps Belt?", answer)


class Writing(CountingJudge, Writer):
    """Also writes the claims."""

    def __init__(self, text=None):
        super().__init__()
        self.text = text

    def write_batch(self, requests):
        return [self.text for _ in requests]


def test_each_claim_has_its_own_sources():
    assert claims_of(answered("Ivo Kast")) == [
        Claim("Ivo Kast", True, ("E1",), "containment")
    ]  # found twice, it counts once
    text = "The keeper of Belt is Ivo Kast. Belt lies on the island of Sark Holm. He was born in Arvon in 1871."
    found = claims_of(answered(text))
    assert [claim.sources for claim in found] == [("E1",), ("E2",), ()]
    assert found[0].supported
    assert not found[2].supported
    judge = CountingJudge(lambda pair: "Kast" in pair.premise and "Holm" in pair.premise)
    assert claims_of(answered("Ivo Kast, on Sark Holm"), judge) == [
        Claim("Ivo Kast, on Sark Holm", True, judge="counting@1")
    ]


def test_a_failed_judge_has_not_judged():
    for judge in (
        CountingJudge(silent_on("")),
        Writing(),
        CountingJudge(refuses="401: the key is wrong"),
    ):
        [claim] = claims_of(answered("x"), judge)
        assert (claim.text, claim.supported, claim.judge) == ("x", None, "counting@1")
        assert claim.why
    assert (
        claims_of(answered("Ivo Kast", ()))
        == claims_of(answered(None))
        == claims_of(answered(" "))
        == claims_of(answered("I do not know."))
        == []
    )


def test_a_judge_that_writes_makes_the_claims():
    judge = Writing("Ivo Kast keeps Belt.\nBelt is on Sark Holm.")
    found = claims_of(answered("Ivo Kast"), judge)
    assert [claim.text for claim in found] == ["Ivo Kast keeps Belt.", "Belt is on Sark Holm."]
    assert (
        len(judge.asked) == 2 + 2 * 2
    )  # each claim with all evidence, and with each of two pieces
