"""Were cited sources returned, do they carry their sentences, and how many sentences cite?"""

import pytest
from agent_rows import CountingJudge

from faithful_search.judges import GroundingJudge
from faithful_search.rewards import CitationCoverage, CitationReturned, CitationSupport
from faithful_search.trajectory import Citation, Evidence, Step, ToolCall, Trajectory

ADA = Evidence("Ada Mirov was born in Veldt.", "Ada Mirov", "E1", url="https://ex.org/ada")
VELDT = Evidence("Veldt lies on the river Sule.", "Veldt", "E2", url="https://ex.org/veldt")
UNREAD = Evidence("", "Veldt", "E1", url="https://ex.org/veldt")


def answered(answer: str, *evidence: Evidence, **known) -> Trajectory:
    search = Step(call=ToolCall("search"), evidence=evidence or (ADA, VELDT))
    last = Step(answer=answer, **known)
    return Trajectory((search, last), question="Where?", answer=answer)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Born in Veldt [1].", 1.0),
        ("Born in Veldt [1]. Its mayor is Bo [7].", 0.5),
        ("Born in Veldt [1], on the Sule [2]. Its mayor is Bo [7].", 2 / 3),
        ("Born in Veldt [1][1] (https://ex.org/ada#life).", 1.0),  # one source
        ("Born in Veldt [7] and [7].", 0.0),
        ("Born in [Veldt](https://ex.org/ada), on the [Sule](https://made.example/up).", 0.5),
        ("Born in Veldt[^1].\n\n[^1]: https://ex.org/ada\n[^2]: https://made.example/up", 0.5),
        ("Born in Veldt (E1, E9).", 0.5),
    ],
)
def test_the_share_of_sources_that_were_returned(answer, value):
    assert CitationReturned().score(answered(answer)).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Ada Mirov was born in Veldt [1]. Veldt lies on the river Sule [2].", 1.0),
        ("Ada Mirov was born in Veldt [2]. Veldt lies on the river Sule [1].", 0.0),
        ("Ada Mirov was born in Veldt [1]. Its mayor is Bo Lind [7].", 0.5),
        ("Ada Mirov was born in Veldt [1]. Its mayor is Bo Lind.", 1.0),
        ("Ada Mirov was born in Veldt [2][1].", 1.0),
        ("Ada Mirov was born in Veldt [7][1].", 1.0),
    ],
)
def test_the_share_of_sentences_that_are_carried(answer, value):
    assert CitationSupport().score(answered(answer)).value == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Born in Veldt [1].", 1.0),
        ("Born in Veldt [1]. It is old.", 0.5),
        ("# Ada\n\nBorn in Veldt [1]. It is old. It is small. It is [7].", 0.5),
        ("Born in Veldt.\n\nSources:\n- https://ex.org/ada", 0.0),
    ],
)
def test_the_share_of_sentences_that_cite(answer, value):
    assert CitationCoverage().score(answered(answer)).value == value


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport, CitationCoverage])
@pytest.mark.parametrize(
    ("answer", "why"),
    [("Born in Veldt.", "the answer cites nothing"), ("", "no answer given")],
)
def test_without_citations_there_is_no_value(reward, answer, why):
    score = reward().score(answered(answer))
    assert (score.value, score.why) == (None, why)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            "Born in Veldt [1]. Its mayor is Bo [7].",
            "never returned: [7]; numbers count passages in the order in which they were returned",
        ),
        ("Born in Veldt (https://made.example/up).", "never returned: https://made.example/up"),
        ("Born in Veldt [E1].", ""),
        ("So [6][7][8][9][5].", "never returned: [6], [7], [8] and 2 more"),
    ],
)
def test_reasons_name_what_was_never_returned(answer, why):
    assert CitationReturned().score(answered(answer)).why == why


def test_the_judge_reads_only_what_the_sentence_cites():
    judge = CountingJudge()
    CitationSupport(judge).score(answered("Born in Veldt [1]. It lies there [2]. It is old."))
    assert [(pair.premise, pair.hypothesis) for pair in judge.asked] == [
        ("Ada Mirov\nAda Mirov was born in Veldt.", "Born in Veldt."),
        ("Veldt\nVeldt lies on the river Sule.", "It lies there."),
    ]


def test_nobody_is_asked_about_what_was_never_returned():
    judge = CountingJudge()
    CitationSupport(judge).score(answered("Born in Veldt [7]."))
    assert judge.asked == []


def test_a_judge_that_abstains_has_not_judged():
    score = CitationSupport(CountingJudge(lambda pair: None)).score(answered("In Veldt [1]."))
    assert score.parts["abstained"] is True


def test_sources_without_a_text_are_not_judged():
    score = CitationSupport().score(answered("Born in Veldt [1].", UNREAD))
    assert (score.value, score.parts["unread"]) == (None, 1)


def test_sentences_whose_sources_have_no_text_are_counted():
    found = answered("Born in Veldt [1]. Ada Mirov was born in Veldt [2].", UNREAD, ADA)
    assert CitationSupport().score(found).parts["unread"] == 1


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport])
def test_where_no_result_was_kept_nothing_is_made_up(reward):
    answer = "Born in Veldt (https://ex.org/ada)."
    steps = (Step(call=ToolCall("web_search")), Step(answer=answer))
    assert reward().score(Trajectory(steps, answer=answer)).value is None


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport])
def test_where_an_api_cites_what_it_does_not_list_nothing_is_made_up(reward):
    sent = (Citation((0, 14), "https://ex.org/ada", "api"),)
    step = Step(answer="Born in Veldt.", citations=sent)
    assert reward().score(Trajectory((step,), answer=step.answer)).value is None


def test_an_agent_that_never_searched_made_its_sources_up():
    answer = "Born in Veldt (https://ex.org/ada)."
    assert CitationReturned().score(Trajectory((Step(answer=answer),), answer=answer)).value == 0.0


def test_citations_that_an_api_sent_count_like_marks():
    sent = (
        Citation((0, 28), "https://ex.org/ada", "api"),
        Citation((29, 43), "x.example/y", "api"),
    )
    found = answered("Ada Mirov was born in Veldt. Its mayor is Bo.", citations=sent)
    values = [
        reward.score(found).value
        for reward in (CitationReturned(), CitationSupport(GroundingJudge()), CitationCoverage())
    ]
    assert values == [0.5, 0.5, 1.0]


UNANSWERED = Step(call=ToolCall("web_search"))
LOOKED_UP = Step(call=ToolCall("lookup"), evidence=(ADA,))
SENT = (
    Citation((0, 28), "https://ex.org/ada", "api"),
    Citation((29, 43), "https://x.example/y", "api"),
)


def beside(*steps: Step, citations: tuple[Citation, ...] = SENT) -> Trajectory:
    answer = "Ada Mirov was born in Veldt. Its mayor is Bo."
    return Trajectory((*steps, Step(answer=answer, citations=citations)), answer=answer)


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport])
def test_what_an_apis_own_search_may_have_returned_is_not_counted(reward):
    assert reward().score(beside(UNANSWERED, LOOKED_UP)).value == 1.0


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport])
def test_where_only_such_sources_are_cited_there_is_no_value(reward):
    found = beside(LOOKED_UP, UNANSWERED, citations=SENT[1:])
    assert reward().score(found).value is None


def test_how_many_such_sources_there_are_is_said():
    found = beside(UNANSWERED, LOOKED_UP)
    assert CitationReturned().score(found).parts["unknown"] == 1
    assert CitationSupport().score(found).parts["unread"] == 1


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport])
def test_where_each_call_has_a_result_they_were_never_returned(reward):
    assert reward().score(beside(LOOKED_UP)).value == 0.5


@pytest.mark.parametrize("reward", [CitationReturned, CitationSupport])
def test_an_address_that_the_agent_wrote_is_no_such_source(reward):
    answer = "Its mayor is Bo (https://x.example/y)."
    steps = (UNANSWERED, LOOKED_UP, Step(answer=answer))
    assert reward().score(Trajectory(steps, answer=answer)).value == 0.0
