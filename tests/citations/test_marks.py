"""Which marks are found, what is left of the text, and what is no mark."""

import time

import pytest
from growth import MOST, growth
from hypothesis import given, settings, strategies as st

from faithful_search.citations import read_answer, without_marks
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

ADA = Evidence("Ada Mirov was born in Veldt.", "Ada Mirov", "E1", url="https://ex.org/ada")
VELDT = Evidence("Veldt lies on the Sule.", "Veldt", "E2", url="https://ex.org/veldt")


def answered(
    answer: str,
    *evidence: Evidence,
    question: str = "Where was Ada Mirov born?",
    answers: tuple[str, ...] = (),
) -> Trajectory:
    search = Step(call=ToolCall("search"), evidence=evidence or (ADA, VELDT))
    return Trajectory(
        (search, Step(answer=answer)), answer=answer, question=question, answers=answers
    )


def targets(trajectory: Trajectory) -> list[str]:
    return [citation.target for citation in read_answer(trajectory).citations]


# The mark behind "Born in Veldt", and what it names.
FORMS = {
    "[1]": ["1"],
    " [1]": ["1"],
    "[1, 2]": ["1", "2"],
    "[1][2]": ["1", "2"],
    " [1], [2] and [3]": ["1", "2", "3"],
    "[1-3]": ["1", "2", "3"],
    "[1–2; 5]": ["1", "2", "5"],
    "[1\u20113]": ["1", "2", "3"],  # a hyphen at which no line breaks
    "(sources 2 \u2010 3, 5)": ["2", "3", "5"],
    "[2, pp. 10\u201112]": ["2"],
    "[1–31]": [str(number) for number in range(1, 32)],
    "[1-1]": ["1"],
    "[1, 1]": ["1"],
    r" \cite{a,a}": ["a"],
    " [[1]]": ["1"],
    r" \[1\]": ["1"],
    "[#1]": ["1"],
    "[1, p. 3]": ["1"],
    "［１］": ["1"],
    "［１、２］": ["1", "2"],
    "[١]": ["1"],
    "【1】": ["1"],
    " [Source 1]": ["1"],
    " [web:1]": ["1"],
    " [search 1]": ["1"],
    " (Source 1)": ["1"],
    " (sources 1, 3 and 4)": ["1", "3", "4"],
    " (see [1])": ["1"],
    " ([1], [2])": ["1", "2"],
    "[doc2]": ["2"],
    " [citation:1]": ["1"],
    " [cite: 1, 2]": ["1", "2"],
    "（来源1）": ["1"],
    "¹": ["1"],
    "¹²": ["12"],
    "¹,²": ["1", "2"],
    "<sup>1</sup>": ["1"],
    '<sup><a href="#1">[1]</a></sup>': ["1"],
    "^1^": ["1"],
    "$^{1}$": ["1"],
    r"\textsuperscript{1}": ["1"],
    r" \citep{mirov, lind}": ["mirov", "lind"],
    r" \cite{mirov,,lind}": ["mirov", "lind"],
    "[^1]": ["1"],
    "[^ada]": ["ada"],
    "[^1^]": ["1"],
    "【1†L3】": ["1"],
    "【1†L3-L5】【2†source】": ["1", "2"],
    "[1†L3】": ["1"],
    "【4:0†source】": ["4:0"],
    " \ue200cite\ue202turn0search1\ue202turn0news2\ue201": ["turn0search1", "turn0news2"],
    " citeturn0search1turn0news2": ["turn0search1", "turn0news2"],
    "【turn0search1】": ["turn0search1"],
    " [ref:citation_x]": ["citation_x"],
    " [Source: Ada Mirov]": ["Ada Mirov"],
    " (Source: Ada Mirov)": ["Ada Mirov"],
    " [Source: mirov, ]": ["mirov"],
    " [E1]": ["E1"],
    " (E1, E2)": ["E1", "E2"],
    "<co: 0,1></co: 0,1>": ["0", "1"],
    " <ref>E1</ref>": ["E1"],
    ' <cite id="S_1"/>': ["S_1"],
    " <ref id=1/>": ["1"],
    " <ref id=1,2/>": ["1", "2"],
    " <cite url=https://ex.org/ada/>": ["https://ex.org/ada/"],
    " ([ex.org](https://ex.org/ada))": ["https://ex.org/ada"],
    " ([a](https://ex.org/ada), [b](https://ex.org/b))": ["https://ex.org/ada", "https://ex.org/b"],
    " [1](https://ex.org/ada)": ["https://ex.org/ada"],
    " [[1]](https://ex.org/ada)": ["https://ex.org/ada"],
    r" [\[1\]](https://ex.org/ada)": ["https://ex.org/ada"],
    " [[1](https://ex.org/ada)]": ["https://ex.org/ada"],
    " [[1](https://ex.org/ada)][[2](https://ex.org/b)]": ["https://ex.org/ada", "https://ex.org/b"],
    " [[1](https://ex.org/ada), [2](https://ex.org/b)]": ["https://ex.org/ada", "https://ex.org/b"],
    ' [source](https://ex.org/ada "A title")': ["https://ex.org/ada"],
    " ([x](https://ex.org/Ada_(poet)))": ["https://ex.org/Ada_(poet)"],
    " (https://ex.org/ada)": ["https://ex.org/ada"],
    " <https://ex.org/ada>": ["https://ex.org/ada"],
    " (Source: https://ex.org/ada)": ["https://ex.org/ada"],
    " [https://ex.org/ada]": ["https://ex.org/ada"],
    " (doi:10.1000/182)": ["doi:10.1000/182"],
    " (arXiv:2510.14967)": ["arXiv:2510.14967"],
}


@pytest.mark.parametrize("mark", FORMS)
def test_a_mark_names_its_sources(mark):
    assert targets(answered(f"Born in Veldt{mark}.")) == FORMS[mark]


@pytest.mark.parametrize("mark", FORMS)
def test_nothing_is_left_of_a_mark(mark):
    assert without_marks(f"Born in Veldt{mark}.", answered("")) == "Born in Veldt."


@pytest.mark.parametrize("mark", FORMS)
def test_the_span_of_a_mark_is_where_it_stands(mark):
    answer = f"Born in Veldt{mark}."
    for citation in read_answer(answered(answer)).citations:
        assert answer[slice(*citation.span)] in mark


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("Born in [Veldt](https://ex.org/ada).", "Born in Veldt."),
        ('Born in <cite id="S_1">Veldt</cite>.', "Born in Veldt."),
        ('Born in <a href="https://ex.org/ada">Veldt</a>.', "Born in Veldt."),
        ('<cite index="1-2">She was born in the old town of Veldt.</cite>', "She was born in the old town of Veldt."),
        ("Born in Veldt.[1] It lies on the Sule.[2]", "Born in Veldt. It lies on the Sule."),
        ("Born in Veldt. [1]", "Born in Veldt."),
        ("Born in Veldt [1], on the Sule [2].", "Born in Veldt, on the Sule."),
        ("Born in Veldt. [1].", "Born in Veldt."),
        ("[1] Born in Veldt.", "Born in Veldt."),
        ("北京是首都［１］。它很大【2】。", "北京是首都。它很大。"),
        ("京都[1]に生まれた[2]。", "京都に生まれた。"),
        ("Veldt[1]lies there.", "Veldt lies there."),
        ("- Veldt [1]\n- Sule [2]", "- Veldt\n- Sule"),
        ("Born in Veldt. Source: https://ex.org/ada", "Born in Veldt."),
        ("Born in Veldt. See https://ex.org/ada.", "Born in Veldt."),
        ("Born in Veldt. [Ada Mirov - a page](https://ex.org/ada)", "Born in Veldt."),
        ("Born in Veldt ![portrait](https://ex.org/a.png).", "Born in Veldt."),
        ("```markdown\nBorn in Veldt [1].\n```", "```markdown\nBorn in Veldt.\n```"),
        ("According to https://ex.org/ada, in Veldt.", "According to, in Veldt."),
    ],
)  # fmt: skip
def test_the_words_of_a_sentence_stay(written, plain):
    assert without_marks(written, answered("")) == plain


@pytest.mark.parametrize(
    "content",
    [
        "It is [citation needed].",
        "It is [sic] and [...].",
        "x lies in the interval [0, 1].",
        "the list [1, 2, 3]",
        "`a[1]` is second",
        "```\nx = [1]\n```",
        "$x_{[1]}$ and $a^2 [1]$",
        r"\(x^{[1]}\)",
        "print([1])",
        "In [2019] 3 AC 12 it was held.",
        "40 m² and 5 km²",
        "10⁻³ and 10⁶",
        "E = mc² and x² + y²",
        "10<sup>6</sup> and 5<sup>th</sup>",
        "The result was 3 to 1 (result: win).",
        "(1969) and (since 1976)",
        "(Nobel, 1904)",
        "It costs $5 and 10 $.",
        "Ask [Ada](mailto:ada@ex.org) or [go](#there).",
        "Source code 3 and outsource 2.",
        "- [x] done",
    ],
)
def test_what_only_looks_like_a_mark_stays(content):
    assert targets(answered(content)) == []


EMPTY = ("[ ]", "[]", "[,]", "【 】", "[Source: ]", "(Source: )", "[Sources: ;]", r"\cite{,}")


@pytest.mark.parametrize("empty", EMPTY)
def test_what_names_nothing_cites_nothing(empty):
    assert targets(answered(f"Visit Veldt {empty}.")) == []


def test_a_number_in_two_brackets_before_words_in_round_ones_is_a_mark():
    answer = "Born in Veldt [[1]](as page 3 says)."
    assert targets(answered(answer)) == ["1"]
    assert "[" not in without_marks(answer, answered(answer))


WIDE = (
    "[1–40]",
    "[1-32]",
    "[12, 40–99]",
    "^1-40^",
    "(sources 1-40)",
    "[Source: 1–40]",
    "[Source: 2020–2021]",
)
BACKWARDS = (
    "[3-1]",
    "[3\u20111]",
    "[1, 3–2]",
    "^3-1^",
    "(sources 3-1)",
    "[Source: 3–1]",
    "<ref>3-1</ref>",
)


@pytest.mark.parametrize("no_sources", [*WIDE, *BACKWARDS])
def test_a_range_that_is_too_wide_for_sources_or_runs_backwards_is_no_mark(no_sources):
    assert targets(answered(f"For those aged {no_sources}.")) == []


@pytest.mark.parametrize("cited", ["[3-12]", "[12-3]", "[Source: 12-3]", "[3-12, 12-3]"])
def test_an_id_that_looks_like_a_range_is_an_id(cited):
    parts = [Evidence("Ada was born in Veldt.", id="3-12"), Evidence("So it is.", id="12-3")]
    named = cited.strip("[]").removeprefix("Source: ").split(", ")
    assert targets(answered(f"Veldt {cited}.", *parts)) == named


def test_an_id_made_up_like_a_range_is_a_source_that_was_not_returned():
    part = Evidence("Ada was born in Veldt.", id="12-3")
    assert targets(answered("Veldt [ref: 12-1].", part)) == ["12-1"]


@pytest.mark.parametrize("empty", EMPTY)
def test_empty_brackets_are_no_mark(empty):
    assert without_marks(f"- {empty} Visit Veldt.", answered("")) == f"- {empty} Visit Veldt."


@pytest.mark.parametrize(
    ("answer", "question", "evidence"),
    [
        ("It prints [1].", "", "print([1]) gives [1]."),
        ("It prints [1].", "What does print([1]) print?", "Nothing."),
        ("The interval is [0, 1].", "", "In [0,1]."),
        ("Numbers [1, 2].", "", "They are [1, 2]."),
        ("Project MC² ended.", "When did Project MC² end?", "Nothing."),
        ("Project MC² ended.", "", "Project MC² ended in 2017."),
        ("Use arr[3].", "", "Then arr[3] is read."),
        ("See [E1].", "What is [E1]?", "Nothing."),
    ],
)
def test_what_question_or_evidence_have_is_content(answer, question, evidence):
    read = answered(answer, Evidence(evidence, id="E1"), question=question)
    assert without_marks(answer, read) == answer


def test_what_a_gold_answer_has_is_content():
    assert without_marks("It is [2].", answered("", answers=("[2]",))) == "It is [2]."


@pytest.mark.parametrize(
    "evidence",
    [
        "[1] Ada Mirov was born in Veldt.",  # the number of a result
        "Ada Mirov[1] was born in Oran.[1]",  # the page's own marks
        "Oran [1], Sule [2] and Kay [3] are towns.",
    ],
)
def test_marks_of_the_evidence_make_no_content(evidence):
    assert targets(answered("Born in Veldt [1].", Evidence(evidence, id="E1"))) == ["1"]


@pytest.mark.parametrize("answer", ["[1]", "https://ex.org/ada", "[E1]", "[1] [2]"])
def test_an_answer_of_marks_alone_is_content(answer):
    assert without_marks(answer, answered(answer)) == answer


def test_authors_and_years_are_marks_where_a_source_has_them():
    source = Evidence("Mirov, A. (2020). Lind and Oss, 2021.", id="E1")
    read = answered("So it is (Mirov, 2020; Oss et al., 2021; Kay, 1999).", source)
    assert targets(read) == ["Mirov 2020", "Oss 2021", "Kay 1999"]


@pytest.mark.parametrize("made_up", ["[doc_9]", "(doc_7, doc_9)"])
def test_an_id_made_like_those_returned_is_a_mark(made_up):
    source = Evidence("Ada Mirov was born in Veldt.", id="E1", label="doc_7")
    assert "doc_9" in targets(answered(f"Veldt {made_up}", source))


# The writer's own list

LISTS = {
    "## Sources\n[1] Page: https://ex.org/ada": ["https://ex.org/ada"],
    "**References:**\n1. [Page](https://ex.org/ada)\n2. https://ex.org/b": ["https://ex.org/ada", "https://ex.org/b"],
    "Quellen:\n- Page, https://ex.org/ada\n\n- Other, https://ex.org/b": ["https://ex.org/ada", "https://ex.org/b"],
    "参考文献：\n[1] https://ex.org/ada": ["https://ex.org/ada"],
    "Sources: [1] https://ex.org/ada [2] https://ex.org/b": ["https://ex.org/ada", "https://ex.org/b"],
    "Sources: https://ex.org/ada, https://ex.org/b": ["https://ex.org/ada", "https://ex.org/b"],
    "[^1]: https://ex.org/ada\n[^2]: The page of Ada Mirov": ["https://ex.org/ada", "The page of Ada Mirov"],
    "[1]: https://ex.org/ada": ["https://ex.org/ada"],
    "[1] Page, https://ex.org/ada\n[2] Other, https://ex.org/b": ["https://ex.org/ada", "https://ex.org/b"],
    "### 📚 Sources\n* Ada Mirov\n* Nobody knows": ["Ada Mirov", "Nobody knows"],
    "References\n[1] A long title\n    https://ex.org/ada": ["https://ex.org/ada"],
}  # fmt: skip


@pytest.mark.parametrize("section", LISTS)
def test_entries_of_a_list_of_sources_are_citations(section):
    assert targets(answered(f"Born in Veldt.\n\n{section}")) == LISTS[section]


@pytest.mark.parametrize("section", LISTS)
def test_a_list_of_sources_is_no_part_of_the_answer(section):
    assert without_marks(f"Born in Veldt.\n\n{section}", answered("")) == "Born in Veldt."


@pytest.mark.parametrize(
    "content",
    [
        "The Nile has two sources.\n\nSources:\n- White Nile\n- Blue Nile",
        "The towns are:\n1. [Veldt](https://ex.org/veldt)\n2. [Oran](https://ex.org/oran)",
        "Sources of income: farming.",
    ],
)
def test_a_list_that_was_asked_for_stays(content):
    plain = without_marks(content, answered(""))
    assert plain.count("\n") == content.count("\n")


def test_what_follows_a_list_of_sources_stays():
    answer = "Veldt [1].\n\nSources:\n[1] https://ex.org/ada\n\nThat is all we know."
    assert without_marks(answer, answered("")).split("\n\n")[-1].strip() == "That is all we know."


# Any text

PIECES = (
    "[", "]", "[1]", "【", "†", "(", ")", "](", "http://a.b/", "https://ex.org/ada", "<cite ", "<sup>",
    "</", ">", "¹", "\ue200", "\ue201", "cite", "turn0search0", "\n", "Sources:", "- ", "1. ", "[^1]:",
    " ", "a", "E1", ", ", "$", "`", "```", "\\", "(Mirov, 2020)", "。", "**", "#",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_read(text):
    reading = read_answer(answered(text))
    assert len(reading.plain) <= len(text) + len(reading.citations)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_every_source_of_a_sentence_is_cited(text):
    reading = read_answer(answered(text))
    cited = {source.key for sentence in reading.sentences for source in sentence.sources}
    assert cited <= {source.key for source in reading.sources}


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abc .,!?\n", max_size=80))
def test_a_text_without_signs_stays_as_it_is(text):
    assert read_answer(answered(text)).plain == text


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("role", ["answer", "evidence"])
def test_reading_takes_linear_time(piece, role):
    def seconds(length: int) -> float:
        text = (piece * (length // len(piece) + 1))[:length]
        answer = text if role == "answer" else "Veldt [1] m² (Mirov, 2020) [doc_1] https://a.b/c."
        evidence = (
            (Evidence(text, id="E1"), Evidence(text, "Title", "E2")) if role == "evidence" else ()
        )
        begun = time.process_time()
        reading = read_answer(answered(answer, *evidence))
        assert len(reading.sources) == len(reading.citations)
        assert reading.sentences is not None
        return time.process_time() - begun

    assert growth(seconds, 80_000, floor=0.004) <= MOST
