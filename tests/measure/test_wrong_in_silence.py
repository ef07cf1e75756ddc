"""Files that were once read without complaint, and wrongly: what is read of each now, or what is
said.
"""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_rows import file_of
from click.testing import Result
from dialect_texts import kinds
from paths import SHARED
from served import invoked

from faithful_search.dialects import parse
from faithful_search.measure import metrics
from faithful_search.measure.audit import audit
from faithful_search.measure.invented import KEPT, NOT_IN_CORPUS, SearchedCorpus
from faithful_search.reading.rows import READER, pick, read_trajectories
from faithful_search.rewards import AnswerSupport
from faithful_search.trajectory import Evidence, Step, Trajectory

REAL = SHARED / "data" / "trajectories" / "search_r1_verl_tool.jsonl.gz"
EXACT = metrics.load("answer_correctness")["exact_match_unicode"]
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "who"}}'
DOCS = '<information>\nDoc 1:\n"Ada"\nAda did it.\n\nDoc 2:\nBob\nBob did not.\n</information>'
CHAT = [
    {"role": "user", "content": "Who?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "s", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "Ada did it."},
]
SAID = {"role": "assistant", "content": "Ada"}


@pytest.mark.parametrize("behind", ["", "\nand so I wait", '\n{"made": "up"}\n</tool_call>'])
def test_calls_of_the_chat_template_with_a_brace_too_many(behind: str) -> None:
    """As verl-tool logs them: plain role lines, documents in `<information>`; the environment ran
    the call.
    """
    text = f"{CALL}}}\n</tool_call>{behind}\n\nuser\n<tool_response>\n{DOCS}\n</tool_response>\nassistant\n"
    found = READER.parse(
        json.dumps({"output": f"{text}<answer> Ada </answer>", "gts": {"target": ["Ada"]}}).encode()
    )
    assert found.dialect == "search_r1_like"
    assert found.answer == "Ada"
    assert EXACT.score(found).value == 1.0
    assert [step.call and step.call.arguments for step in found.steps] == [{"query": "who"}, None]
    titled = [(item.title, item.text) for item in found.evidence.values()]
    assert titled == [("Ada", "Ada did it."), ("Bob", "Bob did not.")]
    assert "call_json" in kinds(found)
    assert "response_forged" not in kinds(found)


@pytest.mark.skipif(not REAL.exists(), reason="the shared data are not here")
def test_the_recorded_rollouts_of_a_verl_tool_agent() -> None:
    """Each row's own columns say how it was scored and what was searched."""
    with gzip.open(REAL) as file:
        rows = [json.loads(line) for line in file]
    found = [
        (row, found.trajectory) for row, found in zip(rows, read_trajectories(REAL), strict=True)
    ]
    read = [(row, trajectory) for row, trajectory in found if trajectory]
    assert len(read) == 99  # one is a line of JSON and nothing else
    for row, found in read:
        assert EXACT.score(found).value == row["answer_em"]
        assert len(found.evidence) == row["search_num_docs"]
    calls = Counter(
        sum(step.call is not None for step in found.steps) - row["num_search_calls"]
        for row, found in read
    )
    assert calls == {0: 96, 1: 3}  # three calls were written and not run
    assert not any("response_forged" in kinds(found) for _, found in read)


def test_an_answer_between_tags_in_a_plain_chat() -> None:
    found = parse([*CHAT, {"role": "assistant", "content": "It was her.\n<answer>Ada</answer>"}])
    assert (found.answer, found.steps[-1].think, found.dialect, kinds(found)) == (
        "Ada",
        "It was her.",
        "openai",
        [],
    )


def test_sub_em_has_no_value_for_long_answers() -> None:
    (reward,) = metrics.load("think_answer_faithfulness").values()
    long = " ".join(["word"] * 21)
    found = [
        reward.score(Trajectory((Step(think="So.", answer=said),), answer=said))
        for said in (long, long[5:])
    ]
    assert [score.value for score in found] == [None, 0.0]
    assert "more than 20 words" in found[0].why
    asked = [
        *CHAT[:1],
        {**CHAT[1], "content": "I look."},
        CHAT[2],
        {"role": "assistant", "content": "Ada"},
    ]
    assert reward.score(parse(asked)).value is None
    tagged = "<think>a</think><search>b</search><information>c</information><answer>d</answer>"
    assert reward.score(parse(tagged)).value == 0.0  # a protocol that asks for a thought


def test_information_without_a_search_is_no_evidence() -> None:
    said = '<think>a</think><search>b</search>\n\n<information>Doc 1(Title: "B") found</information>\n\n'
    for before in ("", "<think>c</think>"):
        found = parse(
            f"{said}{before}<information>Ada did it.</information><answer>Ada did it.</answer>"
        )
        assert [item.text for item in found.evidence.values()] == ["found"]
        assert "response_forged" in kinds(found)
        assert AnswerSupport().score(found).value == 0.0


def test_words_stand_where_the_numbers_need_them(tmp_path: Path) -> None:
    found = audit(
        file_of(tmp_path / "rows.jsonl", [{"messages": [CHAT[0], SAID]}] * 3),
        tmp_path / "out",
        workers=1,
    )
    assert found.bare == 3
    assert "No searches found in 3 of 3 rows: is this the right column?" in str(found)
    assert "…_lexical: words are compared, not meaning" in found.text(all_rows=True)
    assert (found.mistakes, found.readings) == ({}, {"dialect_assumed": 3})


@pytest.mark.parametrize(
    ("messages", "unbacked"),
    [
        ([CHAT[0], SAID], 1),
        ([*CHAT[:3], SAID], 0),
        ([*CHAT[:2], {**CHAT[2], "content": "Error: rate limited"}, SAID], 1),
        ([CHAT[0], {**SAID, "content": "I don't know."}], 0),
    ],
)
def test_answers_without_evidence_are_counted(tmp_path: Path, messages: Any, unbacked: int) -> None:
    rows = file_of(tmp_path / "rows.jsonl", [{"messages": messages}])
    result = audit(rows, tmp_path / "out", workers=1)
    assert result.unbacked == unbacked
    assert ("answered without evidence: 1 of 1" in str(result)) == bool(unbacked)


def test_an_abstention_is_known_without_its_metric(tmp_path: Path) -> None:
    row = {"messages": [CHAT[0], {**SAID, "content": "I don't know."}], "answers": ["Ada"]}
    rows = file_of(tmp_path / "rows.jsonl", [row])
    result = audit(rows, tmp_path / "out", workers=1, metrics=("answer_correctness",))
    assert result.unbacked == 0


LONG = "It was raised from the sea in 1961."


@pytest.mark.parametrize(
    ("column", "gold", "own_gold"),
    [("answer", LONG, 1), ("Answers", LONG, 1), ("answer", "1961", 0), ("ground_truth", LONG, 0)],
)
def test_gold_answers_that_the_agent_said_are_doubted(
    tmp_path: Path, column: str, gold: str, own_gold: int
) -> None:
    row = {"messages": [*CHAT[:3], {**SAID, "content": LONG}], column: gold}
    result = audit(file_of(tmp_path / "rows.jsonl", [row]), tmp_path / "out", workers=1)
    assert result.own_gold == own_gold
    assert ("are what the agent itself said" in str(result)) == bool(own_gold)


@pytest.mark.parametrize(
    ("said", "own_gold"),
    [
        ("它于1961年从海中打捞上来。", 1),
        ("この船は1961年に海から引き揚げられました。", 1),
        ("斯德哥尔摩", 0),
        ("スウェーデン王国", 0),
    ],
)
def test_sentences_without_blanks_are_doubted_and_names_are_not(
    tmp_path: Path, said: str, own_gold: int
) -> None:
    row = {"messages": [*CHAT[:3], {**SAID, "content": said}], "answer": said}
    result = audit(file_of(tmp_path / "rows.jsonl", [row]), tmp_path / "out", workers=1)
    assert result.own_gold == own_gold


@pytest.mark.parametrize(("said", "gold"), [("Oslo", "Oslo"), (LONG, "1961")])
def test_gold_answers_that_half_of_the_rows_share_are_not_doubted(
    tmp_path: Path, said: str, gold: str
) -> None:
    rows = [
        {"messages": [*CHAT[:3], {**SAID, "content": LONG}], "answer": LONG},
        {"messages": [*CHAT[:3], {**SAID, "content": said}], "answer": gold},
    ]
    result = audit(file_of(tmp_path / "rows.jsonl", rows), tmp_path / "out", workers=1)
    assert result.own_gold == 1
    assert "are what the agent itself said" not in str(result)


def test_gold_answers_from_a_named_column_are_not_doubted(tmp_path: Path) -> None:
    row = {"messages": [*CHAT[:3], {**SAID, "content": LONG}], "answer": LONG}
    rows = file_of(tmp_path / "rows.jsonl", [row])
    result = audit(rows, tmp_path / "out", workers=1, gold_column="answer")
    assert "are what the agent itself said" not in str(result)


SESSION = [
    {"type": "summary", "summary": "s", "leafUuid": "u"},
    {"type": "user", "sessionId": "1", "message": {"role": "user", "content": "Who?"}},
    {
        "type": "assistant",
        "sessionId": "1",
        "message": {**SAID, "content": [{"type": "text", "text": "Ada"}]},
    },
]


def span(trace: str, said: str) -> dict[str, Any]:
    texts = {"input": ("user", "Who?"), "output": ("assistant", said)}
    attributes = {
        f"gen_ai.{name}.messages": json.dumps(
            [{"role": role, "parts": [{"type": "text", "content": text}]}]
        )
        for name, (role, text) in texts.items()
    }
    return {"context": {"trace_id": trace}, "attributes": attributes}


def test_files_in_which_a_row_is_no_line(tmp_path: Path) -> None:
    def answers(path: Path) -> list[str | None]:
        return [row.trajectory and row.trajectory.answer for row in read_trajectories(path)]

    (row,) = read_trajectories(file_of(tmp_path / "session.jsonl", [*SESSION, "{broken"]))
    assert row.trajectory is not None
    assert row.trajectory.answer == "Ada"
    assert any("1 lines that are no JSON" in issue.why for issue in row.trajectory.issues)
    spans = [span("a", "Ada"), span("b", "Bob"), {"context": {"trace_id": "a"}, "attributes": {}}]
    file_of(tmp_path / "spans.jsonl", spans)
    assert answers(tmp_path) == ["Ada", "Ada", "Bob"]  # the folder's files by name
    (tmp_path / "broken.eval").write_bytes(b"PK")
    assert answers(tmp_path) == [None, "Ada", "Ada", "Bob"]
    broken = next(read_trajectories(tmp_path))
    assert "cannot read" in broken.error
    assert "broken.eval" in broken.error


def test_evidence_that_the_corpus_does_not_hold_is_invented(tmp_path: Path) -> None:
    """Behind a query nobody can tell it from a tool's; with the corpus everybody can."""
    passage = "Ada Lovelace wrote the first program. It computed Bernoulli numbers. She died young, in 1852."
    corpus = file_of(
        tmp_path / "corpus.jsonl", [{"title": "Ada", "text": passage}, {"text": "Nothing else."}]
    )
    told = {
        "whole": passage,
        "cut": "It computed Bernoulli numbers. Ada Lovelace wrote the first pro...",  # as tools shorten
        "half": "She died young, in 1852. Others say she did not.",
        "reordered": "It computed  bernoulli numbers!\nAda Lovelace wrote the first program.",
        "titled": "Ada Lovelace wrote the first program. But others say that it was Grace Hopper who wrote it.",
        "made up": "Bob wrote the first program of all.",
    }
    text = (
        '<search>who</search><information>Doc 1(Title: "Ada") {}</information><answer>Ada</answer>'
    )
    rows = file_of(
        tmp_path / "rows.jsonl",
        [{"id": name, "text": text.format(said)} for name, said in told.items()],
    )
    found = audit(
        rows, tmp_path / "out", metrics=("answer_support",), corpus=str(corpus), workers=1
    )
    assert found.issues["evidence_not_in_corpus"] == 2
    assert found.evidence == 4
    assert "corpus that was" not in str(found)
    corpus = SearchedCorpus(str(tmp_path / "out" / KEPT))
    shown = {
        read.id: (NOT_IN_CORPUS in kinds(read), len(read.evidence))
        for _, read in pick(rows, range(1, len(told) + 1), revise=corpus.without_invented)
    }
    true, invented = (False, 1), (True, 0)
    assert shown == {name: invented if name in ("titled", "made up") else true for name in told}


def test_a_corpus_that_was_searched_may_have_broken_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = SearchedCorpus.of([{"text": ""}, {"text": "Ada wrote it."}], tmp_path)
    assert corpus.holds(Evidence("Ada wrote it."))
    assert "1 of its rows are left out" in caplog.text
    assert "corpus, row 1: its text is empty" in caplog.text


def test_the_page_shows_evidence_as_it_was_measured(
    tmp_path: Path,
) -> None:
    text = "<search>who</search><information>{}</information><answer>Ada</answer>"
    said = ["Ada wrote it.", "Bob wrote it.", "Cy wrote it.", "Di wrote it."]
    rows = file_of(tmp_path / "rows.jsonl", [{"text": text.format(passage)} for passage in said])
    true, other = (
        file_of(tmp_path / f"{count}.jsonl", [{"text": one} for one in said[:count]])
        for count in (2, 1)
    )

    def audited(*words: str) -> Result:
        return invoked("audit", rows, "--metrics", "answer_support", "--corpus", *words)

    out = ["--out", str(tmp_path / "out")]
    assert audited(str(true), *out).exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text()
    invented = set(re.findall(r"nowhere in the corpus: (?:'|&#39;)([^.]+\.)", page))
    assert all(passage in page for passage in said)
    assert invented == set(said[2:])
    assert "corpus that was searched?" not in page  # a half of the passages is in it
    refused = audited(str(other), *out)
    assert refused.exit_code
    assert "corpus" in refused.output
    assert "--overwrite" in refused.output
    asked = "3 of 4 passages of evidence are not in 1.jsonl (SHA-256"
    assert asked in " ".join(audited(str(other), *out, "--overwrite").output.split())


def test_audits_count_rows_where_normalisers_differ(tmp_path):
    rows = [{"output": f"<answer>{answer}</answer>", "answers": ["15"]} for answer in ("1.5", "15")]
    result = audit(file_of(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    assert result.otherwise == 1
    assert "exact match: 1 of 2 rows" in str(result)
