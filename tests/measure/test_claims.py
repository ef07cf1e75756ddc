"""An answer's claims and the evidence that supports each: by itself, together with other evidence, or not at all."""

from __future__ import annotations

from agent_rows import CountingJudge

from faithful_search.judges import Verdict
from faithful_search.measure.claims import Claim, claims_of, distinct
from faithful_search.trajectory import Evidence, Step, Trajectory

FOUND = (
    Evidence("The keeper of Belt is Ivo Kast.", "Belt", "E1"),
    Evidence("Belt lies on Sark Holm.", "Belt", "E2"),
    Evidence("The keeper of Belt is Ivo Kast.", "Belt", "E3"),
)


def answered(answer: str | None, evidence=FOUND) -> Trajectory:
    return Trajectory((Step(evidence=evidence), Step(answer=answer)), "Who keeps Belt?", answer)


class Judge:
    """Says of each pair what `label` does."""

    name = "reader"

    def __init__(self, label=lambda pair: True):
        self.label = label

    def judge_batch(self, pairs):
        labels = [self.label(pair) for pair in pairs]
        return [Verdict(None if one is None else float(one), one, "", self.name) for one in labels]


class Writing(CountingJudge):
    """Also writes the claims."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def write_batch(self, requests):
        return [self.text for _ in requests]


def test_a_short_answer_is_supported_where_it_stands_and_a_passage_found_twice_counts_once():
    assert claims_of(answered("Ivo Kast")) == [Claim("Ivo Kast", True, ("E1",))]
    assert [item.id for item in distinct(answered("x"))] == ["E1", "E2"]


def test_each_claim_has_its_own_sources():
    text = "The keeper of Belt is Ivo Kast. Belt lies on the island of Sark Holm. He was born in Arvon in 1871."
    found = claims_of(answered(text))
    assert [claim.sources for claim in found] == [("E1",), ("E2",), ()]
    assert found[0].supported and not found[2].supported


def test_what_only_several_pieces_say_together_has_no_single_source():
    judge = Judge(lambda pair: "Kast" in pair.premise and "Holm" in pair.premise)
    assert claims_of(answered("Ivo Kast, on Sark Holm"), judge) == [Claim("Ivo Kast, on Sark Holm", True)]


def test_a_judge_that_failed_has_not_judged():
    assert claims_of(answered("x"), Judge(lambda pair: None)) == [Claim("x", None)]
    assert claims_of(answered("x"), Writing(None)) == [Claim("x", None)]  # no claims were made of it
    assert claims_of(answered("x"), CountingJudge(refuses=True)) == [Claim("x", None)]


def test_a_judge_that_writes_makes_the_claims():
    judge = Writing("Ivo Kast keeps Belt.\nBelt is on Sark Holm.")
    found = claims_of(answered("Ivo Kast"), judge)
    assert [claim.text for claim in found] == ["Ivo Kast keeps Belt.", "Belt is on Sark Holm."]
    assert len(judge.asked) == 2 + 2 * 2  # each claim with all evidence, and with each of two pieces


def test_nothing_found_or_said_makes_no_claims():
    assert claims_of(answered("Ivo Kast", ())) == claims_of(answered(None)) == claims_of(answered(" ")) == []
