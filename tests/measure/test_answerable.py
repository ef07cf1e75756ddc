"""Can questions be answered from a corpus: gold passages, answers, queries, and the way to ask."""

import json

import pytest
from agent_rows import file_of
from served import Shelf, invoked, retrieving

from faithful_search.errors import ConfigError, ToolError
from faithful_search.measure.answerable import (
    ANSWERABLE,
    IN_GRAPH,
    NO_GOLD,
    NO_STRING,
    NOT_ANNOTATED,
    NOT_RETRIEVED,
    LookupLimits,
    Query,
    QuestionLookup,
    gold_of,
    gold_warning,
    is_closed,
    look_up,
    queries_of,
    run_lookup,
    searches_needed,
    searching,
    verdict_of,
)
from faithful_search.tasks import Task, load_tasks
from faithful_search.tools.retrieval.corpus import passages
from faithful_search.trajectory import Evidence

CORPUS = [
    {"id": "p0", "title": "Arvon", "text": "The keeper of Arvon is Mila Dorn."},
    {"id": "p1", "title": "Mila Dorn", "text": "She was born on 1 October 1949 in Veldt."},
    {"id": "p2", "title": "Belt", "text": "The keeper of Belt is Ivo Kast."},
]
STEPS = [
    {"question": "Who keeps Arvon?", "answer": "Mila Dorn"},
    {"question": "#1 >> place of birth", "answer": "Veldt"},
]
QUESTIONS = [
    {
        "id": "born",
        "question": "Where was the keeper of Arvon born?",
        "answers": ["Veldt"],
        "supporting_titles": ["Arvon", "Mila Dorn"],
        "decomposition": STEPS,
    },
    {
        "id": "day",
        "question": "When was the keeper of Arvon born?",
        "answers": ["1949-10-01"],
        "supporting_titles": ["Mila Dorn"],
    },
    {
        "id": "same",
        "question": "Do Arvon and Belt have the same keeper?",
        "answers": ["no"],
        "supporting_titles": ["Arvon", "Belt"],
    },
    {
        "id": "gone",
        "question": "Who keeps Corvin?",
        "answers": ["Ada Lund"],
        "supporting_titles": ["Corvin"],
    },
    {
        "id": "paraphrased",
        "question": "How many keepers has Belt?",
        "answers": ["exactly one"],
        "supporting_titles": ["Belt"],
    },
]
LIMITS = LookupLimits(top_k=3, searches=4)


def row(
    closed=False, in_corpus=(True,), answer_in_corpus=None, queries=(), in_graph=()
) -> QuestionLookup:
    """A question that was looked up; `in_corpus` and `in_graph` have an entry a gold passage."""
    gold = tuple(f"g{place}" for place in range(len(in_corpus)))
    return QuestionLookup(
        "q", "?", ("x",), closed, gold, in_corpus, tuple(queries), answer_in_corpus, in_graph
    )


def query_with_ranks(answer=None, gold=(None,)) -> Query:
    """A query that was searched, with the ranks of the answer and of each gold passage."""
    return Query("text", "question", answer, gold)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(tmp_path / "cache"))
    file_of(tmp_path / "corpus.jsonl", CORPUS)
    file_of(tmp_path / "questions.jsonl", QUESTIONS)
    return tmp_path


def look(files, **changes):
    arguments = {
        "tasks": load_tasks(files / "questions.jsonl"),
        "search": searching(str(files / "corpus.jsonl")),
        "passages": lambda: passages(files / "corpus.jsonl"),
        "folder": files / "out",
        "settings": {"corpus": "here"},
        "limits": LIMITS,
    }
    return run_lookup(**{**arguments, **changes})


# --- one question


@pytest.mark.parametrize(
    ("question", "answer", "closed"),
    [
        ("Is Arvon in Belt?", "no", True),
        ("Which is older, Arvon or Belt?", "Belt", True),
        ("Who keeps Belt?", "Ivo Kast", False),
        ("Who keeps Beltham?", "Belt", False),
    ],
)
def test_answers_that_a_passage_cannot_show(question, answer, closed):
    assert is_closed(Task("q", question, (answer,))) is closed


def test_sub_questions_name_what_the_earlier_ones_found():
    task = Task("q", "Where?", meta={"decomposition": STEPS})
    texts = [text for text, _ in queries_of(task, ["Arvon"])]
    assert texts == ["Where?", "Arvon", "Who keeps Arvon?", "Mila Dorn place of birth"]


def test_sub_questions_are_those_of_one_column():
    other = [{"question": "Who owns Arvon?", "answer": "Ivo Kast"}, {"question": "#1 >> spouse"}]
    task = Task("q", "Where?", meta={"decomposition": STEPS, "question_decomposition": other})
    alone = Task("q", "Where?", meta={"decomposition": STEPS})
    assert queries_of(task, []) == queries_of(alone, [])


@pytest.mark.parametrize("odd", [None, "text", [1, None], {"a": 1}])
def test_odd_annotations_are_none(odd):
    task = Task("q", "Where?", meta={"decomposition": odd, "chain": odd})
    assert queries_of(task, []) == [("Where?", "question")]
    assert gold_of(task) == {}


def test_a_title_of_signs_alone_is_not_that_of_an_untitled_passage():
    task = Task("band", "?", ("x",), supporting_titles=("!!!",))
    untitled = look_up([task], [Evidence("A poem.")])
    assert not untitled.keys


def test_a_title_of_signs_alone_is_found():
    task = Task("band", "?", ("x",), supporting_titles=("!!!",))
    titled = look_up([task], [Evidence("A band.", "!!!")])
    assert titled.keys == {("title", "!!!")}


def test_a_fact_is_stated_by_a_passage_or_a_triple():
    fact = {"passage": "W1", "triple": "T1"}
    assert gold_of(Task("q", "?", meta={"chain": [fact]})) == {
        "W1 or T1": (("id", "W1"), ("id", "T1"))
    }


@pytest.mark.parametrize(
    ("ranks", "top_k", "needed"),
    [
        ([(1, None), (None, 2)], 3, 2),
        ([(1, None), (None, 2), (3, 3)], 3, 1),
        ([(1, None), (None, 4)], 3, None),
        ([(None, None)], 3, None),
    ],
)
def test_fewest_searches_for_all_gold_passages(ranks, top_k, needed):
    queries = [query_with_ranks(gold=gold) for gold in ranks]
    assert searches_needed(row(in_corpus=(True, True), queries=queries), top_k) == needed


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (row(queries=[query_with_ranks(answer=3)]), ANSWERABLE),
        (row(queries=[query_with_ranks(answer=4)]), NOT_RETRIEVED),
        (row(in_corpus=(False,), queries=[query_with_ranks(answer=1)]), ANSWERABLE),
        (row(in_corpus=(False,), answer_in_corpus=False), NO_GOLD),
        (row(in_corpus=(False, True), in_graph=(True, False)), IN_GRAPH),
        (row(in_corpus=(False, False), in_graph=(True, False)), NO_GOLD),
        (row(answer_in_corpus=False), NO_STRING),
        (row(in_corpus=(None,)), NOT_RETRIEVED),
        (row(closed=True, queries=[query_with_ranks(gold=(1,))]), ANSWERABLE),
        (row(closed=True, queries=[query_with_ranks(gold=(4,))]), NOT_RETRIEVED),
        (row(closed=True, in_corpus=()), NOT_ANNOTATED),
    ],
)
def test_each_verdict_has_its_reason(case, verdict):
    assert verdict_of(case, LIMITS) == verdict


def test_a_closed_question_needs_enough_searches():
    both = row(
        closed=True,
        in_corpus=(True, True),
        queries=[query_with_ranks(gold=(1, None)), query_with_ranks(gold=(None, 1))],
    )
    assert verdict_of(both, LookupLimits(top_k=1, searches=2)) == ANSWERABLE
    assert verdict_of(both, LookupLimits(top_k=1, searches=1)) == NOT_RETRIEVED


# --- all questions


def test_each_question_is_looked_up(files):
    assert look(files).verdicts == {
        ANSWERABLE: ["born", "day", "same"],
        NO_GOLD: ["gone"],
        NO_STRING: ["paraphrased"],
    }


@pytest.mark.parametrize(
    ("result", "value", "n"),
    [
        ("exact_match_ceiling", 3 / 5, 5),
        ("gold_in_corpus", 4 / 5, 5),
        ("answer_in_corpus", 2 / 4, 4),  # "same" is a comparison: no passage states its answer
        ("closed_by_gold", 1.0, 1),
    ],
)
def test_shares_are_of_the_questions_that_they_apply_to(files, result, value, n):
    estimate = look(files).rows[result]
    assert estimate.value == pytest.approx(value)
    assert estimate.n == n


def test_what_was_looked_up_is_not_searched_again(files):
    first = look(files)

    def refuse(queries, top_k):
        raise AssertionError("searched again")

    assert look(files, search=refuse).rows == first.rows
    fewer = look(files, search=refuse, limits=LookupLimits(1, 4))
    assert fewer.verdicts[ANSWERABLE] == ["same"]


def test_other_settings_need_another_folder(files):
    look(files)
    with pytest.raises(ConfigError, match="corpus: 'here' there, 'there' now"):
        look(files, settings={"corpus": "there"})
    assert look(files, settings={"corpus": "there"}, anew=True).rows["gold_retrieved"].n == 5


def test_repeated_ids_are_refused(files):
    with pytest.raises(ConfigError, match="these are repeated: q"):
        look(files, tasks=[Task("q", "Where?"), Task("q", "Who?")])


def test_a_failed_search_counts_nowhere_and_is_tried_again(files):
    working = searching("corpus.jsonl")

    def failing(queries, top_k):
        return [ToolError("it is down") if "Corvin" in query else [] for query in queries]

    result = look(files, search=failing)
    assert result.failed == {"gone": "it is down"}
    assert result.rows["gold_retrieved"].n == 4
    assert look(files, search=working).verdicts[NO_GOLD] == ["gone"]


def test_a_server_shows_only_the_passages_that_it_returns(files):
    result = look(files, search=searching(str(files / "corpus.jsonl")), passages=None)
    assert result.verdicts[NOT_RETRIEVED] == ["gone", "paraphrased"]
    assert result.rows["gold_in_corpus"].n == 4


def test_a_retrieval_server_is_searched():
    with retrieving(Shelf()) as url:
        outcomes = searching(url)(["w", "v"], 2)
    titles = [[passage.title for passage in found] for found in outcomes]
    assert titles == [["w #0", "w #1"], ["v #0", "v #1"]]


def test_the_command_prints_shares_and_reasons(files):
    done = invoked("answerable", "questions.jsonl", "--corpus", "corpus.jsonl")
    assert done.exit_code == 0, done.output
    assert "upper bound of exact match                              0.600" in done.output
    assert "1  a gold passage is not in the corpus (ids: gone)" in done.output
    folder = files / "questions-answerable"
    results = json.loads((folder / "answerable.json").read_text())
    assert results["rows"]["exact_match_ceiling"]["n"] == 5
    assert len((folder / "rows.jsonl").read_text().splitlines()) == 5


def test_facts_that_only_the_graph_has_are_not_called_missing(files):
    done = invoked("answerable", "world", "--corpus", "world", "--limit", "20")
    assert done.exit_code == 0, done.output
    assert "7  a gold fact is not in the corpus, but in the knowledge graph" in done.output
    assert "0  a gold passage is not in the corpus" in done.output


# --- before a training


def test_a_warning_where_most_gold_passages_are_missing(files):
    tasks = load_tasks(files / "questions.jsonl")
    assert gold_warning(tasks, passages(CORPUS)) is None
    warning = gold_warning(tasks, passages(CORPUS[2:]))
    assert warning is not None
    assert "gold passages of 1 of the first 5 questions" in warning


def test_nothing_is_said_of_questions_without_annotation():
    assert gold_warning([Task("q", "Where?", ("Veldt",))], passages(CORPUS)) is None
