"""Words that a response holds only in a copy of the call support nothing."""

import time

import msgspec
import pytest
from hypothesis import given, strategies as st

from faithful_search.evidence import note_kind, own_words, supporting
from faithful_search.evidence.copies import marked, texts_of, unframed
from faithful_search.evidence.phrases import COPY
from faithful_search.rewards import AnswerSupport, InfoThink, SourceGated
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

QUERY = "Ada Mirov born Oslo"


def shown(text: str, *said: str) -> str:
    return unframed(text, said or [QUERY]).replace(COPY, "…")


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("Search results for 'Ada Mirov born Oslo':\nA poet.", "Search results for '…':\nA poet."),
        ("Results for Ada Mirov born Oslo:\nA poet.", "Results for …:\nA poet."),
        ("You searched for Ada Mirov born Oslo. A poet.", "You searched for …. A poet."),
        ("Query: Ada Mirov born Oslo\nA poet.", "Query: …\nA poet."),
        ("# Search: Ada Mirov born Oslo\nA poet.", "# Search: …\nA poet."),
        ("Found 3 results for “ada mirov BORN Oslo”\nA poet.", "Found 3 results for “…”\nA poet."),
        (
            "<query>Ada Mirov born Oslo</query><doc>A poet.</doc>",
            "<query>…</query><doc>A poet.</doc>",
        ),
        ('{"query": "Ada Mirov born Oslo", "answer": "x"}', '{"query": "…", "answer": "x"}'),
        ("Ergebnisse für „Ada Mirov born Oslo“:\nA poet.", "Ergebnisse für „…“:\nA poet."),
        ("“Ada Mirov born Oslo”的搜索结果\uff1a\nA poet.", "“…”的搜索结果\uff1a\nA poet."),
        ("Ada Mirov born Oslo\nA poet.", "…\nA poet."),
        ("Ada Mirov born Oslo - Search results", "… - Search results"),
    ],
)
def test_a_copy_is_told_by_its_frame(text, without):
    assert shown(text) == without


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Birthplace: Oslo", "Oslo"),
        ("He found the way to Oslo.", "Oslo"),
        ('Sofia Coppola directed "Lost in Translation" in 2003.', "Lost in Translation"),
        ("Results: Oslo", "Oslo"),
        ('{"query": "who", "answer": "Oslo"}', "Oslo"),
        ("Oslo\nOslo is a city.", "Oslo"),
        ("The capital of France is Paris.", "capital of France"),
        ("Ada Mirov, born Oslo 1902, found fame late.", "Ada Mirov, born Oslo"),
    ],
)
def test_the_same_words_in_a_source_are_no_copy(text, query):
    assert shown(text, query) == text


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ({"query": " Oslo "}, ("Oslo",)),
        ({"query_list": ["Oslo", "Ada"], "n": 3, "x": None}, ("Oslo", "Ada")),
        ({"todos": [{"content": "Find Ada"}]}, ("Find Ada",)),
        (
            {"url": "https://ex.org/Ada_Mirov?q=born+in%20Oslo"},
            ("https://ex.org/Ada_Mirov?q=born+in%20Oslo", "born in Oslo", "Ada_Mirov", "Ada Mirov"),
        ),
        ({"code": "print('Oslo')"}, ("print('Oslo')", "Oslo")),
        ({"url": "http://["}, ("http://[",)),
    ],
)
def test_the_texts_of_a_call(arguments, texts):
    assert texts_of(ToolCall("search", arguments)) == texts


def test_of_a_call_that_could_not_be_read_all_is_its_text():
    assert texts_of(ToolCall("", {}, "find Oslo")) == ("find Oslo",)


def searched(text: str, answer: str, query: str = QUERY, title: str = "") -> Trajectory:
    call = ToolCall("search", {"query": query})
    first = Step(think="Look it up.", call=call, evidence=(Evidence(text, title, "E1"),))
    last = Step(think=f"So {answer}.", answer=answer)
    return Trajectory(
        (first, last), "Where was Ada Mirov born?", answer, dialect="openai", answers=(answer,)
    )


ECHOES = [
    "Search results for 'Ada Mirov born Oslo':\nAda Mirov is a poet.",
    "No results found for 'Ada Mirov born Oslo'.",
    "Error: no page about Ada Mirov born Oslo",
    "Ada Mirov born Oslo",
]


@pytest.mark.parametrize("text", ECHOES)
@pytest.mark.parametrize("reward", [AnswerSupport(), SourceGated(), InfoThink()])
def test_no_reward_of_support_pays_for_an_echo(reward, text):
    assert not reward.score(searched(text, "Oslo")).value


@pytest.mark.parametrize("reward", [AnswerSupport(), SourceGated(), InfoThink()])
def test_what_the_query_guessed_and_a_source_states_is_paid_for(reward):
    text = "Search results for 'Ada Mirov born Oslo':\nAda Mirov was born in Oslo."
    assert reward.score(searched(text, "Oslo")).value == 1.0


def test_a_title_that_repeats_the_query_supports_nothing():
    found = searched("A poet.", "Oslo", title="Ada Mirov born Oslo - Search results - Wikipedia")
    assert AnswerSupport().score(found).value == 0.0


@pytest.mark.parametrize("reward", [AnswerSupport(), SourceGated()])
def test_a_title_that_was_asked_for_is_a_sources(reward):
    found = searched("It is set in Tokyo.", "Lost in Translation", "lost in translation")
    item = Evidence("It is set in Tokyo.", "Lost in Translation", "E1", url="https://ex.org/lost")
    first = msgspec.structs.replace(found.steps[0], evidence=(item,))
    found = msgspec.structs.replace(found, steps=(first, found.steps[1]))
    assert reward.score(found).value == 1.0


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_yes_and_no_rest_on_no_note(answer):
    assert SourceGated().score(searched("Error: 429", answer)).value == 0.0


def test_evidence_without_copies_stays_the_same_object():
    step = Step(call=ToolCall("search", {"query": "q"}), evidence=(Evidence("A."),))
    assert supporting(step)[0] is step.evidence[0]


def test_a_notes_own_words():
    call = ToolCall("the answer is Oslo", {"query": "born in Oslo"})
    note = "Unknown tool 'the answer is Oslo' for 'born in Oslo'."
    assert own_words(note, call) == "Unknown tool '…' for '…'."


@given(st.text(max_size=60), st.lists(st.text(min_size=2, max_size=12), max_size=3))
def test_any_text_is_taken(text, texts):
    assert note_kind(Evidence(text), texts) in (None, "error", "empty", "wall", "echo")
    assert marked(text, texts).count(COPY) >= unframed(text, texts).count(COPY) or COPY in text


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("a" * 400_000, "a" * 200_000),
        ("a " * 200_000, "a " * 100_000 + "b"),
        ("ab " * 130_000, "ab ab ab a"),
        ("'q' results " * 40_000, "q q"),
        ("search for 'q q' " * 30_000, "q q"),
        ("\n" * 400_000, "\n" * 9),
        ("Error" * 80_000, "Error"),
        ("no " * 400 + "results", "no"),
        ("sorry, " * 200, "x"),
        ('{"a":' * 3_000, "x"),
        ("[" * 10_000, "x"),
    ],
)
def test_a_hostile_response_is_read_quickly(text, query):
    step = Step(call=ToolCall("search", {"query": query}), evidence=(Evidence(text),))
    start = time.process_time()
    supporting(step)
    assert time.process_time() - start < 1.0
