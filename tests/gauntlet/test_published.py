"""Rewards of the literature: each pays what its published formula gives, worked by hand for an
honest reader and for the cheats that the formula lets through or stops.

The question has two facts: the country of Bangkok is Thailand, the currency of Thailand is baht.
"""

import inspect
import re

import msgspec
import pytest
from paths import ROOT
from stub_judges import Down

from faithful_search import dialects
from faithful_search.errors import ConfigError
from faithful_search.gauntlet import published
from faithful_search.gauntlet.gold import CitedSource, cited_sources, facts_of, stated_in
from faithful_search.rewards import Mix
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory
from faithful_search.world import Asked

QUESTION = "Which currency is used in the country of Bangkok?"
COUNTRY = Evidence("The country of Bangkok is Thailand.", "Bangkok", "E1")
CURRENCY = Evidence("The currency of Thailand is baht.", "Thailand", "E2")
OTHER = Evidence("The language of Denmark is Danish.", "Denmark", "E3")
BROKEN = Issue("text_outside", "text outside the tags")


def search(query: str, *evidence: Evidence, refs: tuple[str, ...] | None = None) -> Step:
    call = ToolCall("local_search", {"query": query})
    verdict = {} if refs is None else {"helpful": bool(refs), "refs": refs}
    return Step("I search.", call, evidence, **verdict)


def episode(*steps: Step, dialect: str = "pou") -> Trajectory:
    return Trajectory(
        steps=steps,
        question=QUESTION,
        answer=steps[-1].answer,
        dialect=dialect,
        answers=("baht",),
    )


def last(answer: str, *refs: str, think: str = "It is baht.") -> Step:
    verdict = {"helpful": True, "refs": refs} if refs else {}
    return Step(think, answer=answer, **verdict)


READER = episode(
    search("country of Bangkok", COUNTRY),
    search("currency of Thailand", CURRENCY, refs=("E1",)),
    last("baht", "E2", think="Bangkok is in Thailand, its currency is baht."),
)
MEMORY = episode(last("baht"))
HALF = episode(search("country of Bangkok", COUNTRY), last("baht", "E1"))  # stops after one fact
UNRELATED = episode(search("language of Denmark", OTHER), last("baht", "E3"))  # for show
WRONG = episode(
    search("country of Bangkok", COUNTRY),
    search("currency of Thailand", CURRENCY, refs=("E1",)),
    last("krone", "E2"),
)
LOST = episode(search("language of Denmark", OTHER), last("krone", "E3"))
PARTLY = episode(last("baht or krone"))  # F1: 1 of 3 words right, 1 of 1 found: 0.5
SILENT = episode(search("country of Bangkok", COUNTRY), Step("I give up."))


def broken(trajectory: Trajectory) -> Trajectory:
    """The same with text outside its tags."""
    first, *others = trajectory.steps
    marred = msgspec.structs.replace(first, issues=(BROKEN,))
    return msgspec.structs.replace(trajectory, steps=(marred, *others))


def invented(trajectory: Trajectory) -> Trajectory:
    """The same, whose last verdict cites an id that was never returned."""
    *others, final = trajectory.steps
    wrong = msgspec.structs.replace(final, refs=("E9",))
    return msgspec.structs.replace(trajectory, steps=(*others, wrong))


def paid(name: str, trajectory: Trajectory, **settings) -> float | None:
    return published.load(name)(**settings).score(trajectory).value


CASES = [
    ("exact_match", READER, 1.0),
    ("exact_match", MEMORY, 1.0),
    ("exact_match", PARTLY, 0.0),
    ("exact_match", broken(READER), 1.0),
    # right 1; right in a broken format 1 - 0.2; wrong 0.2, with the gold answer retrieved 0.3
    ("search_r1", READER, 1.0),
    ("search_r1", MEMORY, 1.0),
    ("search_r1", broken(READER), 0.8),
    ("search_r1", WRONG, 0.3),
    ("search_r1", LOST, 0.2),
    ("search_r1", broken(LOST), 0.1),
    ("search_r1", SILENT, 0.0),
    # F1, or -1
    ("deep_researcher", READER, 1.0),
    ("deep_researcher", PARTLY, 0.5),
    ("deep_researcher", broken(READER), -1.0),
    # 0.1·format + 0.9·F1
    ("deep_researcher_plus", READER, 1.0),
    ("deep_researcher_plus", PARTLY, 0.1 + 0.9 * 0.5),
    ("deep_researcher_plus", WRONG, 0.1),
    ("deep_researcher_plus", broken(READER), 0.9),
    # F1 where it is above 0, 0.1 for the format, 0 without it
    ("research", READER, 1.0),
    ("research", PARTLY, 0.5),
    ("research", WRONG, 0.1),
    ("research", broken(READER), 0.0),
    # 0.7·right + 0.3·right·rubrics of two; what is right and cites neither fact keeps 0.7
    ("carr", READER, 1.0),
    ("carr", MEMORY, 0.7),
    ("carr", UNRELATED, 0.7),
    ("carr", HALF, 0.7),  # the cited fact is not connected to the answer
    ("carr", WRONG, 0.0),
    # hit 1, right, recall 1, grounding 1, length 1 - 4/600: 0.3 + 1 + 0.3 + 0.2 + 0.2·596/600
    ("castform", READER, 1.8 + 0.2 * 596 / 600),
    ("castform", MEMORY, 0.0),
    ("castform", UNRELATED, 0.0),
    # hit 1/2, right, recall 1/2, grounding 1: 0.15 + 1 + 0.15 + 0.2 + 0.2·596/600
    ("castform", HALF, 1.5 + 0.2 * 596 / 600),
    ("castform", WRONG, 0.3),
    # of two cited sources one was returned, and one of two facts is cited: 0.3 + 1 + 0.15 + 0.1
    ("castform", invented(READER), 1.55 + 0.2 * 596 / 600),
    ("castform", SILENT, 0.0),
    ("citation_if", READER, 1.0),
    ("citation_if", WRONG, 1.0),  # what the answer says is never read
    ("citation_if", MEMORY, 0.0),
    ("citation_if", HALF, 0.0),
    ("citation_if", invented(READER), 0.0),
    ("citation_if", SILENT, 0.0),
    # the answer in what was retrieved
    ("ragas", READER, 1.0),
    ("ragas", WRONG, 0.0),
    ("ragas", MEMORY, 0.0),
    ("ragas", episode(search("q", COUNTRY), last("Thailand", "E1")), 1.0),  # wrong, but faithful
    # EM + 0.05·info_think + 0.02·think_answer; from memory there is no information to think about
    ("veritas", MEMORY, 1.02),
    # of two thoughts after information the first does not take it up: 1 + 0.05/2 + 0.02
    ("veritas", READER, 1.045),
    # 0.5·EM + rubric + 0.2·steps; the rubric: 1 stated, 0 from memory, 0.4 misread
    ("self_evaluation", READER, 1.7),
    ("self_evaluation", MEMORY, 0.7),
    ("self_evaluation_answer", READER, 1.2),
    ("self_evaluation_answer", MEMORY, 1.2),
    ("self_evaluation_answer", WRONG, 0.2),
    ("pokee", READER, 1.1),
    ("pokee", MEMORY, 1.1),
    ("pokee", broken(READER), 1.0),
    # EM + 0.3·(searches that brought the answer)/(searches): one of two
    ("ig_search", READER, 1.15),
    ("ig_search", WRONG, 0.15),
    ("ig_search", MEMORY, 1.0),
    ("ig_search", LOST, 0.0),
]


@pytest.mark.parametrize(("name", "trajectory", "value"), CASES)
def test_a_mix_pays_what_its_formula_gives(name, trajectory, value):
    assert paid(name, trajectory) == pytest.approx(value)


def test_every_mix_has_a_worked_value():
    worked = {name for name, _, _ in CASES} | {"proof_of_use", "proof_of_use_paper"}
    assert worked == set(published.names())


@pytest.mark.parametrize("name", published.names())
def test_a_docstring_has_formula_and_source(name):
    text = inspect.getdoc(published.load(name))
    assert "```" in text or "| R |" in text
    assert re.search(r"section|equation|arXiv|\.py|README", text)


@pytest.mark.parametrize("name", published.names())
def test_the_reference_has_every_mix(name):
    page = (ROOT / "docs" / "reference" / "rewards.md").read_text("utf-8")
    assert f"::: faithful_search.gauntlet.published.{name}.{name}\n" in page


@pytest.mark.parametrize("name", published.names())
def test_a_mix_covers_its_dialect(name):
    mix = published.load(name)()
    assert isinstance(mix, Mix)
    assert mix.covers(dialects.load(published.dialect_of(name)).name)


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="there are: carr, castform"):
        published.load("no_such")


# ---- settings


def test_search_r1_takes_other_values():
    assert paid("search_r1", WRONG, structure=0.4, retrieval=0.2) == pytest.approx(0.6)


def test_carr_weighs_its_rubrics():
    # (1 - 0.5)·1 + 0.5·1·0
    assert paid("carr", MEMORY, weight=0.5) == 0.5


def test_carr_wants_every_entity_named():
    """Without Thailand in a thought the first rubric's entity is hidden: one of two is upheld."""
    steps = (*READER.steps[:-1], last("baht", "E2"))
    assert paid("carr", episode(*steps)) == pytest.approx(0.7)


def test_carr_finds_names_in_any_case():
    steps = (*READER.steps[:-1], last("Baht", "E2", think="THAILAND has it."))
    assert paid("carr", episode(*steps)) == 1.0


def test_carr_counts_facts_from_the_answer_back():
    """The last fact is cited, the first is not: one of two."""
    steps = (search("currency of Thailand", CURRENCY), last("baht", "E2", think="Thailand, baht."))
    assert paid("carr", episode(*steps)) == pytest.approx(0.7 + 0.3 / 2)


@pytest.mark.parametrize("name", ["carr", "castform"])
def test_a_question_of_another_world_has_no_value(name):
    other = msgspec.structs.replace(READER, question="Who?")
    assert paid(name, other) is None


def test_castform_has_no_value_where_its_judge_is_down():
    assert paid("castform", WRONG, judge=Down()) is None


def test_castform_does_not_need_its_judge_without_a_source():
    assert paid("castform", LOST, judge=Down()) == 0.0


def test_citation_if_allows_one_source_too_many():
    cited = (*READER.steps[:-1], last("baht", "E2", "E1"))
    more = episode(search("q", COUNTRY, OTHER), *cited[1:])
    assert paid("citation_if", more) == 1.0


def test_citation_if_refuses_whoever_cites_everything():
    """Two facts are expected, and one more is allowed: four are too many."""
    others = [Evidence(f"Text {n}.", "T", f"E{n}") for n in range(4, 6)]
    first = search("q", COUNTRY, CURRENCY, *others)
    everything = episode(first, last("baht", "E1", "E2", "E4", "E5"))
    assert paid("citation_if", everything) == 0.0
    assert paid("citation_if", everything, slack=None) == 1.0


def test_citation_if_refuses_a_malformed_verdict():
    issue = Issue("ref_unclosed", "<ref> is not closed")
    final = msgspec.structs.replace(READER.steps[-1], issues=(issue,))
    assert paid("citation_if", episode(*READER.steps[:-1], final)) == 0.0


def test_ig_search_pays_a_judged_gain():
    score = published.load("ig_search")(judge=Down()).score(READER)
    assert (score.value, score.parts["abstained"]) == (None, True)


ANSWER_UNREAD = ("citation_if", "ragas")  # whether it is right is not asked
WITHOUT_GOLD = msgspec.structs.replace(MEMORY, answers=())
FOUND_WITHOUT_GOLD = msgspec.structs.replace(READER, answers=())


@pytest.mark.parametrize("name", sorted({*published.names()} - {*ANSWER_UNREAD, "castform"}))
def test_nobody_is_paid_where_no_gold_answer_is_known(name):
    mix = published.load(name)().bind(policy=Unasked())
    assert mix.score(WITHOUT_GOLD).value is None


def test_castform_needs_a_gold_answer_once_a_source_came():
    assert paid("castform", WITHOUT_GOLD) == 0.0
    assert paid("castform", FOUND_WITHOUT_GOLD) is None


def test_an_information_gain_needs_a_gold_answer():
    gain = published.load("ig_search")().parts["information_gain"]
    assert gain.score(FOUND_WITHOUT_GOLD).value is None


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("carr", {"weight": 1.5}),
        ("deep_researcher_plus", {"weight": -0.1}),
        ("ig_search", {"weight": -1.0}),
    ],
)
def test_a_weight_out_of_range_is_refused(name, settings):
    with pytest.raises(ConfigError, match="weight must be"):
        published.load(name)(**settings)


class Unasked:
    """A policy that is asked nothing, as there is no verdict to probe."""

    tokenizer = None

    def generate(self, prompts, sampling, max_new_tokens=None):
        raise AssertionError("nothing is sampled")

    def choice_probs(self, prompts, choices):
        assert prompts == []
        return []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # R_cite, R_pt and R_ans are 0 without a call: (0 + 0 + 0.4·0 + 0.6·1)/3
        ("proof_of_use_paper", 0.2),
        ("proof_of_use", 0.0),  # and a right answer that nothing cited holds counts for nothing
    ],
)
def test_proof_of_use_pays_memory(name, value):
    mix = published.load(name)(alpha=0.4).bind(policy=Unasked())
    assert mix.score(MEMORY).value == pytest.approx(value)


@pytest.mark.parametrize("name", ["self_evaluation", "self_evaluation_answer"])
def test_self_evaluation_can_ask_the_policy(name):
    assert not published.load(name)().needs_policy
    assert published.load(name)(by_policy=True).needs_policy


# ---- what the facts say


def test_the_facts_of_a_question_lead_to_its_answer():
    assert [fact.object for fact in facts_of(READER)] == ["Thailand", "baht"]


def test_in_a_changed_world_the_chain_goes_on_from_there():
    change = {
        "subject": "Bangkok",
        "relation": "country",
        "old": "Thailand",
        "new": "Denmark",
        "hop": 0,
        "asked": ["Denmark", "currency"],
    }
    changed = msgspec.structs.replace(READER, meta={"counterfactual": change})
    assert [fact.subject for fact in facts_of(changed)] == ["Bangkok", "Denmark"]
    assert stated_in([COUNTRY], changed) == set()


def test_passages_state_facts():
    assert stated_in([CURRENCY, Evidence("Anything.")], READER) == {Asked("Thailand", "currency")}


def test_verdicts_cite_each_source_once():
    again = episode(*READER.steps[:-1], last("baht", "E2", "E1"))
    assert cited_sources(again) == [CitedSource("E1", (COUNTRY,)), CitedSource("E2", (CURRENCY,))]


def test_a_source_cited_before_it_came_was_not_returned():
    early = episode(
        Step("Hm.", ToolCall("s"), (COUNTRY,), helpful=True, refs=("E1",)), last("baht")
    )
    assert cited_sources(early) == [CitedSource("E1", ())]


def test_marks_cite_in_dialects_without_verdicts():
    chat = episode(search("q", COUNTRY), Step(answer="Baht [1]."), dialect="openai")
    assert [source.passages for source in cited_sources(chat)] == [(COUNTRY,)]
