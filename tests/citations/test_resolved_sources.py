"""What a citation refers to."""

import pytest

from faithful_search.citations import page_of, read_answer
from faithful_search.trajectory import Citation, Evidence, Step, ToolCall, Trajectory

ADA = Evidence("Ada Mirov was born in Veldt.", "Ada Mirov", "E1", url="https://ex.org/ada")
VELDT = Evidence("Veldt lies on the Sule.", "Veldt", "E2", url="https://en.veldt.org/town/")


def answered(answer: str, *steps: tuple[Evidence, ...], **known) -> Trajectory:
    searches = [Step(call=ToolCall("search"), evidence=evidence) for evidence in steps]
    return Trajectory((*searches, Step(answer=answer, **known)), answer=answer, question="Where?")


def passages(answer: str, *steps: tuple[Evidence, ...], **known) -> list[list[str]]:
    """The texts of the passages that each citation refers to."""
    reading = read_answer(answered(answer, *(steps or ((ADA, VELDT),)), **known))
    return [[passage.text for passage in source.passages] for source in reading.sources]


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        ("[1]", [[ADA.text]]),
        ("[2]", [[VELDT.text]]),
        ("[3]", [[]]),
        ("[0]", [[]]),
        ("[E2]", [[VELDT.text]]),
        ("[E9]", [[]]),
        ("(https://ex.org/ada)", [[ADA.text]]),
        ("(http://www.ex.org/ada/?utm_source=chat#born)", [[ADA.text]]),
        ("(https://ex.org/ada?page=2)", [[]]),
        ("(https://ex.org/)", [[]]),
        ("[Source: Ada Mirov]", [[ADA.text]]),
        ("[Source: the page of Ada Mirov, 2020]", [[ADA.text]]),
        ("[Source: ex.org]", [[ADA.text]]),
        ("(Source: Wikipedia)", [[]]),
        ('<cite id="E1"/>', [[ADA.text]]),
        ("【2†L1】", [[VELDT.text]]),
        ("【4:1†source】", [[VELDT.text]]),
        ("citeturn0search1", [[VELDT.text]]),
        ("citeturn1search0", [[]]),
    ],
)
def test_what_a_mark_refers_to(mark, found):
    assert passages(f"Born in Veldt {mark}.") == found


def test_numbers_count_the_passages_of_all_searches():
    assert passages("So [2].", (ADA,), (VELDT,)) == [[VELDT.text]]


def test_turns_count_searches():
    assert passages("So citeturn1search0.", (ADA,), (VELDT,)) == [[VELDT.text]]


@pytest.mark.parametrize(
    "printed",
    [
        "[0] Ada (ex.org)\nL1: born\n[1] Veldt (ex.org)\nL1: on the Sule",
        "Results for 'Ada':\n\n[0] Ada\nborn\n\n[1] Veldt\non the Sule",
        "Source 0: Ada, born\nSource 1: Veldt, on the Sule",
        "0. Ada\nborn\n1. Veldt\non the Sule",
        "【0】Ada, born\n【1】Veldt, on the Sule",
    ],
)
class TestNumbersThatAResultPrints:
    def test_stand_before_places(self, printed):
        (((text,)),) = passages("So [1].", (Evidence(printed, id="E1"),))
        assert "Sule" in text

    def test_cut_the_text(self, printed):
        (((text,)),) = passages("So [1].", (Evidence(printed, id="E1"),))
        assert "born" not in text

    def test_are_all_there_are(self, printed):
        assert passages("So [2].", (Evidence(printed, id="E1"),)) == [[]]


def test_numbers_printed_by_several_results_are_all_meant():
    first = Evidence("[1] Ada was born.", id="E1")
    second = Evidence("[1] Veldt is old.", id="E2")
    assert passages("So [1].", (first,), (second,)) == [[first.text, second.text]]


def test_numbers_beyond_those_printed_again_and_again_are_places():
    first = Evidence("[1] Ada was born.", id="E1")
    second = Evidence("[1] Veldt is old.", id="E2")
    assert passages("So [2].", (first,), (second,)) == [[second.text]]


def test_a_numbered_list_in_a_page_numbers_no_results():
    page = Evidence("Steps:\n1. Go.\n2. Stay.", "How to", "E2")
    assert passages("So [1].", (ADA, page)) == [[ADA.text]]


def test_labels_are_numbers_and_ids():
    five, id_7 = (Evidence(text, label=label) for text, label in (("five", "5"), ("id", "doc_7")))
    assert passages("So [5] (doc_7, doc_9).", (five, id_7)) == [["five"], ["id"], []]


def test_numbers_of_documents_may_be_long():
    source = Evidence("Born in Veldt.", label="5412")
    assert passages("Veldt [5412], not [8812].", (source,)) == [["Born in Veldt."], []]


def test_an_id_may_stand_in_a_text_that_was_not_taken_apart():
    source = Evidence('<snippet id="S_a1">Born in Veldt.</snippet>')
    assert passages('<cite id="S_a1">Veldt</cite>', (source,)) == [[source.text]]


def test_an_address_may_stand_in_a_text_that_was_not_taken_apart():
    source = Evidence("URL: https://ex.org/ada\nBorn in Veldt.")
    assert passages("Veldt (https://ex.org/ada/).", (source,)) == [[source.text]]


def test_a_link_within_a_page_was_not_returned():
    page = Evidence("See https://ex.org/other.", url="https://ex.org/ada")
    assert passages("So (https://ex.org/other).", (page,)) == [[]]


def test_a_page_is_known_by_the_address_that_was_opened():
    page = Evidence("Born in Veldt.")
    call = ToolCall("open", {"url": "https://ex.org/ada"})
    answer = "Veldt (https://ex.org/ada)."
    steps = (Step(call=call, evidence=(page,)), Step(answer=answer))
    (source,) = read_answer(Trajectory(steps, answer=answer)).sources
    assert [passage.evidence for passage in source.passages] == [page]


def test_evidence_that_came_after_the_answer_was_not_returned():
    answer = "Born in Veldt [1]."
    steps = (Step(answer=answer), Step(call=ToolCall("search"), evidence=(ADA,)))
    (source,) = read_answer(Trajectory(steps, answer=answer)).sources
    assert source.passages == ()


def test_all_passages_of_the_same_page_are_meant():
    part = Evidence("Another part of the page.", url="https://ex.org/ada#part")
    assert passages("So [1].", (ADA, VELDT), (part,)) == [[ADA.text, part.text]]


LISTED = "Ada [2]. Veldt [1]. Sule [3].\n\nSources:\n[1] {0}\n[2] {1}"


def test_the_writers_own_numbers_stand_before_places():
    answer = LISTED.format("https://en.veldt.org/town", "https://ex.org/ada")
    assert passages(answer)[:2] == [[ADA.text], [VELDT.text]]


def test_a_number_that_the_writers_list_lacks_refers_to_nothing():
    answer = LISTED.format("https://en.veldt.org/town", "https://ex.org/ada")
    assert passages(answer, (ADA, VELDT, ADA))[2] == []


def test_an_entry_may_be_a_title():
    assert passages(LISTED.format("Veldt", "Nobody knows"))[:2] == [[], [VELDT.text]]


def test_entries_without_numbers_are_counted():
    answer = "Ada [2].\n\nSources:\n- https://en.veldt.org/town\n- https://ex.org/ada"
    assert passages(answer)[0] == [ADA.text]


# Sentences


def cited(answer: str, *steps: tuple[Evidence, ...], **known) -> list[tuple[str, int]]:
    """The sentences of an answer, and how many sources each cites."""
    reading = read_answer(answered(answer, *(steps or ((ADA, VELDT),)), **known))
    return [(sentence.text, len(sentence.sources)) for sentence in reading.sentences]


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("Born in Veldt [1]. It lies there [2].", [1, 1]),
        ("Born in Veldt.[1] It lies there.[1][2]", [1, 2]),
        ("Born in Veldt. [1] It lies there. [2]", [1, 1]),
        ("[1] Born in Veldt. [2] It lies there.", [1, 1]),
        ("Born in Veldt [1][1]. It lies there.", [1, 0]),
        ("Born in Veldt.\nIt lies there.\n[1]", [0, 1]),
        ("- Born in Veldt [1]\n- It lies there", [1, 0]),
        ("# Town [1]\n\nBorn in Veldt.", [0]),
        ("| a | b |\n|---|---|\n| Veldt [1] | Sule [2] |", [2]),
        ("她生于韦尔特。[1]它在河边。[2]", [1, 1]),
        ("她生于韦尔特[1]。它在河边[2]。", [1, 1]),
        ("Born in [Veldt](https://ex.org/ada). It lies there.", [1, 0]),
        ("Born in <cite id='E1'>Veldt</cite>. It lies <cite id='E2'>there</cite>.", [1, 1]),
        ("Born in Veldt [1], which [2] lies there.", [2]),
    ],
)
def test_which_sentences_cite(answer, numbers):
    assert [number for _, number in cited(answer)] == numbers


ANSWER = "Born in Veldt. It lies there."


@pytest.mark.parametrize(
    ("span", "numbers"),
    [
        ((0, 14), [1, 0]),
        ((14, 29), [0, 1]),
        ((0, 29), [1, 1]),
        ((14, 14), [1, 0]),
        ((0, 0), [0, 0]),
    ],
)
def test_the_words_of_a_citation_that_an_api_sent(span, numbers):
    sent = (Citation(span, "https://ex.org/ada", "api"),)
    assert [number for _, number in cited(ANSWER, citations=sent)] == numbers


def test_an_api_names_the_mark_in_the_text():
    answer = "Born in Veldt ([ex.org](https://ex.org/ada)). It lies there."
    sent = (Citation((14, 44), "https://ex.org/ada", "api"),)
    assert cited(answer, citations=sent) == [("Born in Veldt.", 1), ("It lies there.", 0)]


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("https://www.Ex.org/Ada/", "ex.org/Ada"),
        ("http://ex.org/ada#:~:text=born", "ex.org/ada"),
        ("https://ex.org/a?utm_source=x&id=1&utm_medium=y", "ex.org/a?id=1"),
        ("https://ex.org/caf%C3%A9", "ex.org/café"),
        ("ex.org", "ex.org"),
        ("https://dx.doi.org/10.1000/ABC", "doi.org/10.1000/abc"),
        ("https://arxiv.org/pdf/2510.14967v2.pdf", "arxiv.org/abs/2510.14967"),
        ("", ""),
    ],
)
def test_addresses_of_one_page(address, page):
    assert page_of(address) == page
