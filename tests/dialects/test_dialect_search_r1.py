"""Search-R1's dialect: hand-worked texts, its traps, and real trajectories of a published checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import pytest

from faithful_search.dialects import load
from faithful_search.errors import ConfigError
from faithful_search.rollout import Engine, Limits
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import Task
from faithful_search.trajectory import Evidence, ToolCall, Trajectory

D = load("search_r1")
INFO = '\n\n<information>Doc 1(Title: "Seine") runs through Paris\nDoc 2(Title: "Loire") is long\n</information>\n\n'
BODY = f"<think>plan</think>\n<search> which river </search>{INFO}<think>so</think>\n<answer> Seine </answer>"


def kinds(turn: str) -> set[str]:
    return {issue.kind for issue in D.parse_turn(turn, first=False).issues}


def essence(trajectory: Trajectory) -> list[tuple[object, ...]]:
    return [(s.think, s.call, s.answer, s.evidence, s.note) for s in trajectory.steps]


def test_reads_a_trajectory() -> None:
    t = D.parse(BODY)
    assert essence(t) == [
        (
            "plan",
            ToolCall("search", {"query": "which river"}, " which river "),
            None,
            (Evidence("runs through Paris", "Seine", "E1"), Evidence("is long", "Loire", "E2")),
            "",
        ),
        ("so", None, "Seine", (), ""),
    ]
    assert t.answer == "Seine" and t.stop_reason == "answered" and not t.all_issues()


def test_the_prompts_example_is_never_the_answer() -> None:
    (message,) = D.prompt("who wrote it", [])
    assert message["role"] == "user" and message["content"].endswith("</answer>. Question: who wrote it?\n")
    assert D.prompt("Who? ", [])[0]["content"].endswith("Question: Who?\n")
    chat = f"<|im_start|>system\nx<|im_end|>\n<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
    for opening in (message["content"], chat, chat.replace("<|im_start|>", "").replace("<|im_end|>", "")):
        empty, full = D.parse(opening), D.parse(opening + BODY)
        assert empty.answer is None and empty.steps == () and empty.question == "who wrote it?"
        assert essence(full) == essence(D.parse(BODY)) and full.question == "who wrote it?"


SHORTENED = (
    "<|im_start|>system\nBe brief.\n<|im_end|>\n\n<|im_start|>user\nAnswer the given question. You must conduct "
    "reasoning\ninside <think> and </think> first. You can call a search engine by <search> query </search> and it "
    "will\nreturn results between <information> and </information>. For example,\n<answer> Beijing </answer>. "
    "Question: which river is the one that runs\nthrough Paris ?\n\n"
)


def test_a_prompt_without_an_assistant_marker_as_papers_print_it() -> None:
    docs = 'Doc 1: "Seine"\\nThe Seine\nruns.\nDoc 2: "Loire"\nlong\nDoc 3: "Rhine"\\n...\n'
    t = D.parse(
        f"{SHORTENED}<think> a </think>\n\n<search> q </search>\n\n<information>\n{docs}</information>\n\n"
        "<think> b </think>\n\n<search> r </search>\n\n...\n\n<answer> partner </answer>\n"
    )
    assert t.question == "which river is the one that runs through Paris ?"
    one, two, three = t.steps
    assert [(e.id, e.title, e.text) for e in one.evidence] == [
        ("E1", "Seine", "The Seine\nruns."),
        ("E2", "Loire", "long"),
        ("E3", "Rhine", "..."),
    ]
    assert (one.think, one.issues, two.think, two.call.arguments) == (" a ", (), " b ", {"query": "r"})
    assert [i.kind for i in two.issues] == ["elided", "response_missing"]
    assert (three.think, three.answer, t.answer) == (None, "partner", "partner")
    assert D.parse(SHORTENED).steps == () and D.parse(SHORTENED).answer is None


def test_an_elided_observation_is_a_note() -> None:
    t = D.parse(
        f"{SHORTENED}<think>a</think><search>q</search>\n\n<information>...</information>\n\n<search>r</search>"
    )
    assert (t.steps[0].note, t.steps[0].evidence) == ("...", ())


@pytest.mark.parametrize(
    ("after", "question", "think"),
    [
        ("who is it?\n<think>a</think>", "who is it?", "a"),
        ("who is it? <think>a</think>", "who is it?", "a"),
        ("who is it\n\n<think>a</think>", "who is it", "a"),
        ("is 3 < 4?\n<think>a</think>", "is 3 < 4?", "a"),
        ("who?\nI do not know.", "who?", None),
        ("who?", "who?", None),
        ("", "", None),
    ],
)
def test_where_a_raw_prompts_question_ends(after: str, question: str, think: str | None) -> None:
    t = D.parse(f"{D.prompt('', [])[0]['content'].removesuffix(chr(10)).removesuffix('?')}{after}")
    assert t.question == question and t.answer is None
    assert [step.think for step in t.steps] == ([think] if "\n" in after or "<" in after else [])


def test_the_prompts_words_in_evidence_begin_no_episode() -> None:
    prompt = D.prompt("What?", [])[0]["content"].replace("<information> and </information>", "tags")
    t = D.parse(f"<think>a</think><search>q</search>\n\n<information>{prompt}</information>\n\n<answer>b</answer>")
    assert t.question is None and t.answer == "b" and [s.think for s in t.steps] == ["a", None]


def test_what_follows_a_call_or_comes_after_an_answer_is_a_turn_of_its_own() -> None:
    t = D.parse(
        f"<think>a</think><search>q</search><answer>b</answer><|im_end|>\n<search>r</search>{INFO}<answer>c</answer>"
    )
    assert [(s.call and s.call.arguments["query"], s.answer) for s in t.steps] == [
        ("q", None), (None, "b"), ("r", None), (None, "c"),
    ]  # fmt: skip
    assert [[i.kind for i in s.issues] for s in t.steps] == [
        ["response_missing"],
        ["think_missing"],
        ["think_missing", "after_answer"],
        ["think_missing", "after_answer"],
    ]
    assert t.answer == "c" and [len(s.evidence) for s in t.steps] == [0, 0, 2, 0]


@pytest.mark.parametrize("gap", ["", "\n", " "])
def test_information_in_prose_is_evidence_without_a_title(gap: str) -> None:
    response = f"<information>{gap}The Seine &amp;lt;.{gap}</information>"
    t = D.parse(f"<think>a</think><search>q</search>\n{response}<answer>b</answer>")
    assert t.steps[0].evidence == (Evidence("The Seine &amp;lt;.", "", "E1"),) and t.steps[0].note == ""


def test_a_log_that_runs_into_the_next_is_read_to_its_end_only() -> None:
    prompt = D.prompt("And?", [])[0]["content"]
    other = f"<|im_start|>system\nx<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    t = D.parse(f"<think>a</think><answer>b</answer>\n{other}<think>c</think><answer>d</answer>")
    assert t.answer == "b" and len(t.steps) == 1 and [i.kind for i in t.all_issues()] == ["another_episode"]


def test_titles_and_texts_of_the_real_kind() -> None:
    loose = '\n\n<information>Doc 1(Title: Seine (river)) text\nDoc 2(Title: "The ""Loire""") b\nc\n</information>\n\n'
    docs = D.parse(f"<think>a</think><search>q</search>{loose}").steps[0].evidence
    assert [d.title for d in docs] == ["Seine (river", 'The ""Loire""']
    assert docs[1].text == "b\nc"


def test_the_environments_line_after_an_invalid_turn_is_not_the_agents() -> None:
    line = D.invalid
    assert line.startswith("\nMy previous action is invalid.") and line.endswith("Let me try again.\n")
    t = D.parse(f"<think>hm</think>{line}{BODY}")
    assert [s.think for s in t.steps] == ["hm", "plan", "so"] and t.steps[0].call is None
    assert [i.kind for i in t.all_issues()] == ["no_action"]
    assert D.render(t).startswith(f"<think>hm</think>{line}<think>plan</think>")


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("<think>a</think>\n<search>b</search>", set()),
        ("<search>b</search>", {"think_missing"}),
        ("<think>a<search>b</search>", {"think_unclosed"}),
        ("<think>a</think><search>b", {"call_unclosed"}),
        ("<think>a</think><search> </search>", {"call_empty"}),
        ("<think>a</think><search>b</search><search>c</search>", {"call_multiple"}),
        ("<think>a</think><search>b</search><answer>c</answer>", {"answer_and_call"}),
        ("<think>a</think><answer>b</answer><answer>c</answer>", {"answer_multiple"}),
        ("<think>a</think><answer>b", {"answer_unclosed"}),
        ("<think>a</think> so <answer>b</answer>", {"text_outside"}),
        ("<think>a <answer>x</answer></think><answer>b</answer>", {"nested"}),
        ("<think>a</think></information><answer>b</answer>", {"tag_unbalanced"}),
        ("<think>a</think><information>fact</information><answer>b</answer>", {"response_forged"}),
        *[(f"<think>a</think>{dots}<answer>b</answer>", {"elided"}) for dots in ("...", "\u2026", "\n...\n")],
        ("", {"think_missing", "no_action"}),
    ],
)
def test_issues(turn: str, expected: set[str]) -> None:
    assert kinds(turn) == expected


def test_the_last_answer_counts_as_in_that_systems_reward() -> None:
    assert D.parse("<think>a</think><answer>b</answer><answer> c </answer>").answer == "c"
    t = D.parse(f"<think>a</think><answer>b</answer>{INFO}<think>d</think>")  # nobody asked for that information
    assert (t.answer, t.stop_reason, t.evidence) == ("b", None, {}) and t.steps[0].issues[-1].kind == "response_forged"
    assert D.parse("\n\n<think>a</think><answer>b</answer><answer>c").answer == "b"
    assert D.parse("<think>a</think><answer>b").answer is None


def test_observation_is_written_to_the_letter() -> None:
    assert D.render_observation((Evidence("a\nb", 'x "y"'), Evidence("c", ""))) == (
        '\n\n<information>Doc 1(Title: "x "y"") a\nb\nDoc 2(Title: "") c\n</information>\n\n'
    )
    assert D.render_observation((), "No results.") == "\n\n<information>No results.</information>\n\n"


@pytest.fixture
def river_corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.jsonl"
    texts = {"Seine": "The Seine runs through Paris.", "Loire": "The Loire is the longest river of France."}
    rows = ({"id": title, "title": title, "text": text} for title, text in texts.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def run(corpus: str, *turns: str) -> Trajectory:
    settings = EnvironmentArguments(corpus=corpus, triples="none", dialect="search_r1", search_top_k=1)
    generator = lab.Scripted(turns, marker="<information>Doc 1(")
    with settings.toolbox() as toolbox:
        assert toolbox.names == ["search"]
        (found,) = Engine(generator, toolbox, "search_r1", Limits(turns=3)).run([Task("q", "Which river?")])
    return found


def test_its_calls_reach_local_search(river_corpus: str) -> None:
    end = "<think>so</think><answer>Seine</answer>"
    t = run(river_corpus, "<think>plan</think><search>river through Paris</search>", end)
    assert [item.title for item in t.steps[0].evidence] == ["Seine"] and t.steps[0].note == ""
    assert t.answer == "Seine" and essence(D.parse(t.text))[0][3][0].text == "The Seine runs through Paris."


def test_an_empty_query_is_told_this_dialects_form(river_corpus: str) -> None:
    t = run(river_corpus, "<think>plan</think><search> </search>")
    assert t.steps[0].note == (
        "The tool call could not be read: the query is empty. "
        "Write it as a query between an opening and a closing search tag. Available tools: search."
    )


@pytest.mark.parametrize("wrong", [{"triples": "world"}, {"corpus": "none"}, {"negative_tool": True}])
def test_more_tools_than_it_can_call_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match="'search_r1' has one tool, search in a corpus: give --corpus, and set --triples"
    ):
        EnvironmentArguments(**{"dialect": "search_r1", "triples": "none", **wrong}).toolbox()
