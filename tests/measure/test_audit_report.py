"""What an audit says first: few rows, sentences in words, and what is no mistake of the agent."""

import msgspec
import pytest
from agent_rows import file_of, rollout

from faithful_search.measure.audit import audit
from faithful_search.measure.report import extremes, sentences, telling
from faithful_search.measure.stats import mean_ci
from faithful_search.measure.summary import Audit


def audited(tmp_path, rows, **settings):
    return audit(file_of(tmp_path / "a.jsonl", rows), tmp_path / "out", workers=1, **settings)


def made(n: int = 8, **shares: float) -> Audit:
    """An audit of `n` rows in which each metric holds in this share of them."""
    rows = {}
    for name, share in shares.items():
        right = round(share * n)
        rows[name] = mean_ci([1.0] * right + [0.0] * (n - right))
    return Audit(rows=rows, n=n, bounds=dict.fromkeys(rows, (0.0, 1.0)))


def table_of(text: str) -> list[str]:
    """The names in the first table."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("metric"))
    rows = lines[start + 2 :]
    return [row.split()[0] for row in rows[: rows.index("")] if "[" in row or " - " in row]


def test_five_rows_are_shown_and_how_many_more_there_are(tmp_path):
    found = audited(tmp_path, map(rollout, range(8)))
    assert len(table_of(str(found))) == 5
    assert f"{len(found.rows) - 4} more results: --all shows them" in str(found)


def test_all_rows_are_shown_where_they_are_asked_for(tmp_path):
    found = audited(tmp_path, map(rollout, range(8)))
    assert {*table_of(found.text(all_rows=True))} == {*found.rows, "tool_entropy"}


def test_the_rows_that_the_sentences_name_are_among_the_five():
    middling = ("sub_em_unicode", "answer_support", "info_think", "think_search", "unused_evidence")
    found = made(**dict.fromkeys(middling, 0.5), query_from_thought_lexical=1.0, repeated_calls=0.0)
    assert extremes(found) == ("repeated_calls", "query_from_thought_lexical")
    assert {*extremes(found)} < {*telling(found)}


def unfinished(number: int) -> dict[str, str]:
    """A rollout of this question that ends before its answer."""
    row = rollout(number)
    return {**row, "output": row["output"].partition("<answer>")[0]}


def test_rows_without_an_answer_are_counted_by_row(tmp_path):
    """Nine of one question and one of another: their mean over questions would make eight."""
    result = audited(tmp_path, [*[unfinished(0)] * 9, unfinished(1), rollout(1)])
    assert "10 of 11 rows end without an answer." in sentences(result)


CITED = ("citation_returned", "citation_support_lexical", "citation_coverage")


def test_rows_about_citations_stand_together():
    others = ("sub_em_unicode", "answer_support_lexical", "think_search_lexical", "answered")
    found = made(**dict.fromkeys(others, 0.5), **dict.fromkeys(CITED, 1.0))
    assert {*CITED} < {*telling(found)}
    assert len(telling(found)) == 5


def test_where_few_answers_cite_other_rows_say_more():
    found = made(**dict.fromkeys(("sub_em_unicode", "answered", *CITED), 0.5))
    few = {name: msgspec.structs.replace(found.rows[name], not_applicable=7) for name in CITED}
    found = msgspec.structs.replace(found, rows=found.rows | few)
    assert telling(found)[0] == "sub_em_unicode"


def test_a_row_that_says_nothing_is_not_among_the_five(tmp_path):
    found = audited(tmp_path, map(rollout, range(8)))
    assert found.rows["citation_validity"].value is None
    assert "citation_validity" not in telling(found)


def test_whether_answers_are_right_is_said_first():
    found = made(exact_match_unicode=0.25, sub_em_unicode=0.5, answer_support_lexical=1.0)
    assert sentences(found)[0] == (
        "Right: of 8 questions, in 25% the answer is a gold answer, in 50% it contains one "
        "(exact_match_unicode, sub_em_unicode)."
    )


def test_without_gold_answers_nothing_is_said_of_what_is_right():
    found = made(answer_support_lexical=1.0, info_think_lexical=0.5)
    assert sentences(found)[0].startswith("Best: ")


def test_an_echo_of_the_question_is_told_from_support(tmp_path):
    search = (
        "<think>Where is it?</think><search>Mount Aso</search>"
        "<information>Mount Aso is in Japan.</information>"
    )
    row = {
        "question": "Which currency is used in the land that is home to Mount Aso?",
        "output": f"{search}<think>Mount Aso.</think><answer>Mount Aso</answer>",
        "answers": ["yen"],
    }
    found = audited(tmp_path, [row] * 2)
    assert sentences(found)[0].startswith("Right: of 1 question, in 0% the answer is a gold answer")


def test_the_share_of_what_is_good_in_a_row_where_less_is_better():
    found = made(answer_support_lexical=1.0, unused_evidence_lexical=0.625)
    worst = sentences(found)[1]
    assert worst.startswith("Worst: in 38%")
    assert "what a call returns is taken up later (1 − unused_evidence_lexical, 8 qu" in worst


def test_of_equally_good_rows_the_one_that_says_most_is_named():
    halves = ("unused_evidence_lexical", "think_search_lexical", "answer_support_lexical")
    found = made(**dict.fromkeys(halves, 0.5), repeated_calls=0.0)
    assert extremes(found) == ("repeated_calls", "answer_support_lexical")


def test_shares_that_are_the_same_in_whole_per_cent_are_neither_best_nor_worst():
    found = made(answer_support_lexical=1.0, info_think_lexical=1.0)
    nearly = mean_ci([1.0] * 299 + [0.0])
    found = msgspec.structs.replace(found, rows=found.rows | {"info_think_lexical": nearly})
    assert sentences(found)[0].startswith("Neither best nor worst: all 2 shares")


def test_right_answers_are_a_result_although_nothing_else_is():
    found = made(exact_match_unicode=0.5)
    assert "nothing measured but whether answers are right" in sentences(found)[-1]


def test_an_audit_without_any_share_says_so():
    assert "nothing that is good or bad measured" in sentences(made(calls=2.0))[-1]


def test_the_same_share_is_not_both_best_and_worst():
    found = made(answer_support_lexical=1.0, info_think_lexical=1.0, repeated_calls=0.0)
    assert extremes(found) is None
    assert sentences(found)[0] == ("Neither best nor worst: all 3 shares of what is good are 100%.")


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        ("answer_support_lexical", "answer_support_lexical compares words, not meaning"),
        ("answer_support", ""),
    ],
)
def test_words_are_said_to_be_compared_only_where_they_were(judged, said):
    found = made(**{judged: 1.0, "citation_validity": 0.5})
    sure = sentences(found)[-1]
    assert said in sure
    assert bool(said) is ("compare" in sure)


def test_how_a_row_was_read_is_no_mistake_in_its_writing(tmp_path):
    bare = {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A."}]}
    found = audited(tmp_path, [bare] * 3)
    assert (found.clean, found.mistakes) == (3, {})
    assert "how rows were read, which says nothing about the agent (docs/" in str(found)


def test_an_episode_whose_endpoint_failed_is_counted_as_failed(tmp_path):
    found = Audit(n=3, stop_reasons={"failed": 1, "answered": 2})
    assert "1 episode failed, which says nothing about the agent" in sentences(found)[-1]
