"""Dialects on real trajectories, and the report on files of them."""

import json
import re
from collections import Counter
from pathlib import Path

import dialect_report
import pytest
from agent_rows import file_of
from dialect_texts import assert_read, essence
from real_texts import R1, real, rows

from faithful_search.dialects import detect, parse


@real
@pytest.mark.parametrize("name", R1)
def test_r1_searcher_rollouts(name: str) -> None:
    clean = 0
    for row in rows(name):
        text = row["gen_text_store"]
        found = assert_read("r1_searcher", text)
        assert found.answer == row["pred_ans"].strip()
        assert found.stop_reason == "answered"
        asked = text.count("<|begin_of_query|>")
        assert [len(step.evidence) for step in found.steps] == [5] * asked + [0]
        assert all(item.title and item.text for step in found.steps for item in step.evidence)
        assert detect(text).dialect == ("r1_searcher" if asked else None)
        clean += not found.all_issues()
    assert clean >= len(rows(name)) - 1  # one asks twice without a thought between


@real
def test_search_r1_logs() -> None:
    agree, kinds = 0, Counter()
    for number, row in enumerate(rows("search_r1_ppo_3b")):
        found = assert_read("search_r1", row["solution"])
        if number % 20 == 0:
            assert_read("research", row["solution"])
            assert_read("self_eval", row["solution"])
        kinds.update({issue.kind for issue in found.all_issues()})
        agree += (found.answer or "") == (row["extracted"] or "").strip()
        assert found.question.rstrip("?") == row["question"].strip().rstrip("?")
        assert detect(row["solution"]).dialect == "search_r1"
        assert found.answer != "Beijing" or "Beijing" in row["extracted"]
        made_up = [
            step for step in found.steps if step.call is not None and "response" in step.spans
        ]
        assert (
            all(step.evidence or step.note for step in made_up)
            or row["solution"].count("<information>") > 2
        )
    assert agree >= 598  # the others put information, which is data, inside an answer
    assert kinds["think_missing"] > 500  # this checkpoint seldom thinks before it answers


@real
def test_web_dancer_chats() -> None:
    """All without an issue, every result of every search as evidence; messages, ChatML and bare
    roles read alike.
    """
    for row in rows("webdancer"):
        messages = row["messages"]
        t = parse(messages)
        assert t.dialect == "web_dancer"
        assert not t.all_issues()
        assert t.question
        assert "User:" not in t.question
        final = re.search(r"<answer>(.*)</answer>", messages[-1]["content"], re.DOTALL)
        assert final
        assert t.answer == final[1].strip()
        received = "".join(m["content"] for m in messages[3:] if m["role"] == "user")
        counts = map(
            int, re.findall(r"(?m)^A Google search for .* found (\d+) results:$", received)
        )
        assert len(t.evidence) >= sum(counts)
        for form in ("<|im_start|>{role}\n{content}<|im_end|>\n", "{role}\n{content}\n"):
            read = assert_read(
                "web_dancer", "".join(form.format(**message) for message in messages)
            )
            assert essence(read) == essence(t)


def test_the_report_counts_rows_issues_and_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "a\n\n<|begin_of_query|> q<|end_of_query|>"
    good = f"{query}\n\n<|begin_of_documents|>\nNone\n<|end_of_documents|>\n\nb</think>\n\n"
    lines = [
        {"gen_text_store": f"{good}<answer>x</answer>", "pred_ans": " x "},
        {"gen_text_store": f"{good}<answer>x</answer>", "pred_ans": "y"},
        {"gen_text_store": good.removesuffix("</think>\n\n") + "<answer>x</answer>"},
        {"gen_text_store": "no tags"},
    ]
    path = file_of(tmp_path / "some.jsonl", lines)
    assert dialect_report.main([str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["dialects"], found["issues"]) == (
        4,
        {"r1_searcher": 3},
        {"think_unclosed": 1},
    )
    assert (found["clean"]["n"], found["agree"]["value"], sum(found["unread"].values())) == (
        3,
        0.5,
        1,
    )
    assert dialect_report.main([str(path), str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err


def test_the_report_names_a_rows_issues_in_an_order_of_their_own(tmp_path: Path) -> None:
    text = "</think> a <answer>x</answer> <answer>y</answer> <information>b <search>q</search>"
    report = dialect_report.report(file_of(tmp_path / "some.jsonl", [{"text": text}]), "pou")
    kinds = [*report.issues]
    assert len(kinds) > 4
    assert kinds == sorted(kinds)
