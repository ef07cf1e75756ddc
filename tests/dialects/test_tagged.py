"""Dialects of one running text (Search-R1, ReSearch, self-evaluation, R1-Searcher): hand-worked
texts, their prompts, and the ways in which their environments write passages. Issues:
`test_pou.py`.
"""

from itertools import pairwise

import pytest
from dialect_texts import EVERY, essence, kinds
from hypothesis import given, strategies as st

from faithful_search.dialects import load
from faithful_search.dialects.turns import MOST_ISSUES, MOST_STEPS, MOST_TAGS
from faithful_search.errors import ConfigError
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.trajectory import Evidence, Step, ToolCall

R1, RESEARCH, SELF_EVAL, R1_SEARCHER = map(
    load, ("search_r1", "research", "self_eval", "r1_searcher")
)
DOCS = 'Doc 1(Title: "Seine") runs through Paris\nDoc 2(Title: "Loire") is long\n'
INFO = f"\n\n<information>{DOCS}</information>\n\n"
BODY = f"<think>plan</think>\n<search> which river </search>{INFO}<think>so</think>\n<answer> Seine </answer>"
WHOLE = {
    "search_r1": BODY,
    "research": (
        '<think>plan</think>\n<search> which river </search> <result>\n"Seine"\nruns through '
        'Paris\n\n"Loire"\n'
        "is long\n</result>\n<think>so</think>\n<answer>The final answer is \\[ \\boxed{Seine} "
        "\\]</answer>"
    ),
    "self_eval": (
        f"<think>plan</think>\n<search> which river </search>\n<search_results>{DOCS}</search_results>\n"
        "<think>so</think>\n<answer> Seine </answer>"
    ),
    "r1_searcher": (
        "plan\n\n<|begin_of_query|> which river <|end_of_query|>\n\n<|begin_of_documents|>\n(1)Title: Seine Text:  "
        "runs through Paris\n(2)Title: Loire Text:  is "
        "long\n<|end_of_documents|>\n\nso</think>\n\n<answer> Seine "
        "</answer>"
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_reads_a_trajectory_and_writes_it_back_to_the_letter(name: str) -> None:
    text = WHOLE[name]
    t = load(name).parse(text, question="Which?")
    call = ToolCall("search", {"query": "which river"}, " which river ")
    found = (Evidence("runs through Paris", "Seine", "E1"), Evidence("is long", "Loire", "E2"))
    assert essence(t) == [
        ("plan", call, None, None, (), found, ""),
        ("so", None, "Seine", None, (), (), ""),
    ]
    assert (t.answer, t.stop_reason, t.question, t.dialect) == ("Seine", "answered", "Which?", name)
    assert not t.all_issues()
    assert load(name).render(t) == text.replace(
        "<answer> Seine </answer>", "<answer>Seine</answer>"
    )
    assert all(text[slice(*step.spans["think"])] == step.think for step in t.steps)


def test_observations_are_written_to_the_letter() -> None:
    pair = (Evidence("a\nb", 'x "y"'), Evidence("c", ""))
    information = (
        '\n\n<information>Doc 1(Title: "x "y"") a\nb\nDoc 2(Title: "") c\n</information>\n\n'
    )
    assert R1.render_observation(pair) == information
    for dialect, note, text in (
        (R1, "No results.", "\n\n<information>No results.</information>\n\n"),
        (SELF_EVAL, "No results.", "\n<search_results>No results.</search_results>\n"),
        (RESEARCH, "nothing to search", " <result>\nnothing to search\n</result>\n"),
        (
            R1_SEARCHER,
            "(1)Title: x",
            "\n\n<|begin_of_documents|>\n&#40;1)Title: x\n<|end_of_documents|>\n\n",
        ),
    ):
        assert dialect.render_observation((), note) == text
        assert text[slice(*dialect.response_span(text))].strip().endswith(note[-6:])


# prompts


def test_search_r1s_example_is_never_the_answer() -> None:
    (message,) = R1.prompt("who wrote it", [])
    assert message["role"] == "user"
    assert message["content"].endswith("</answer>. Question: who wrote it?\n")
    assert R1.prompt("Who? ", [])[0]["content"].endswith("Question: Who?\n")
    empty, full = R1.parse(message["content"]), R1.parse(message["content"] + BODY)
    assert empty.answer is None
    assert empty.steps == ()
    assert empty.question == full.question == "who wrote it?"
    assert essence(full) == essence(R1.parse(BODY))


@pytest.mark.parametrize("name", ["research", "r1_searcher"])
def test_the_base_prompt_gives_the_question_and_no_answer(name: str) -> None:
    dialect, task = (
        load(name),
        RESEARCH.prompt("Who?", [])[0]["content"].partition("Given a question")[2],
    )
    base = {
        "research": f"A conversation between User and Assistant. Given a question{task} User: Who?. Assistant:",
        "r1_searcher": (
            "The User asks a question, and the Assistant solves it.\ni.e., <think> x "
            "</think>\n\n<answer> y </answer> "
            "<|begin_of_query|> z <|end_of_query|> <|begin_of_documents|> <|end_of_documents|>"
            "\n\nUser:Who?\nAssistant: <think>"
        ),
    }[name]
    assert (dialect.parse(base).answer, dialect.parse(base).question) == (None, "Who?")
    t = dialect.parse(f"{base} {WHOLE[name]}")
    assert (t.answer, t.question, len(t.steps), t.all_issues()) == ("Seine", "Who?", 2, [])
    cut = dialect.parse(base[: base.index("Who?")])
    assert cut.steps == ()
    assert cut.answer is None


SHORTENED = (
    "<|im_start|>system\nBe brief.\n<|im_end|>\n\n<|im_start|>user\nAnswer the given question. You "
    "must conduct "
    "reasoning\ninside <think> and </think> first. You can call a search engine by <search> query "
    "</search> and it "
    "will\nreturn results between <information> and </information>. For example,\n<answer> Beijing "
    "</answer>. "
    "Question: which river is the one that runs\nthrough Paris ?\n\n"
)


def test_a_prompt_without_an_assistant_marker_as_papers_print_it() -> None:
    docs = 'Doc 1: "Seine"\\nThe Seine\nruns.\nDoc 2: "Loire"\nlong\nDoc 3: "Rhine"\\n...\n'
    t = R1.parse(
        f"{SHORTENED}<think> a </think>\n\n<search> q </search>\n\n<information>\n{docs}</information>\n\n"
        "<think> b </think>\n\n<search> r </search>\n\n...\n\n<answer> partner </answer>\n"
    )
    assert t.question == "which river is the one that runs through Paris ?"
    one, two, three = t.steps
    texts = [("Seine", "The Seine\nruns."), ("Loire", "long"), ("Rhine", "...")]
    assert [(e.title, e.text) for e in one.evidence] == texts
    assert [e.id for e in one.evidence] == [
        "E1",
        "E2",
        "E3",
    ]
    assert (one.think, one.issues, two.think, two.call.arguments) == (
        " a ",
        (),
        " b ",
        {"query": "r"},
    )
    assert [i.kind for i in two.issues] == ["elided", "response_missing"]
    assert (three.think, three.answer, t.answer) == (None, "partner", "partner")
    assert R1.parse(SHORTENED).steps == ()
    assert R1.parse(SHORTENED).answer is None


@pytest.mark.parametrize(
    ("after", "question", "think"),
    [
        ("who is it?\n<think>a</think>", "who is it?", "a"),
        ("is 3 < 4?\n<think>a</think>", "is 3 < 4?", "a"),
        ("who?\nI do not know.", "who?", None),
        ("", "", None),
    ],
)
def test_where_a_raw_prompts_question_ends(after: str, question: str, think: str | None) -> None:
    t = R1.parse(
        f"{R1.prompt('', [])[0]['content'].removesuffix(chr(10)).removesuffix('?')}{after}"
    )
    assert t.question == question
    assert t.answer is None
    assert [step.think for step in t.steps] == ([think] if "\n" in after or "<" in after else [])


def test_the_prompts_words_in_evidence_begin_no_episode() -> None:
    prompt = R1.prompt("What?", [])[0]["content"].replace(
        "<information> and </information>", "tags"
    )
    t = R1.parse(
        f"<think>a</think><search>q</search>\n\n<information>{prompt}</information>\n\n<answer>b</answer>"
    )
    assert t.question is None
    assert t.answer == "b"
    assert [s.think for s in t.steps] == ["a", None]


def test_a_log_that_runs_into_the_next_is_read_to_its_end_only() -> None:
    prompt = R1.prompt("And?", [])[0]["content"]
    other = f"<|im_start|>system\nx<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    t = R1.parse(f"<think>a</think><answer>b</answer>\n{other}<think>c</think><answer>d</answer>")
    assert t.answer == "b"
    assert len(t.steps) == 1
    assert kinds(t) == ["another_episode"]


# turns

PIECES = [
    "<think>a</think>", "<search>q</search>", "<answer>b</answer>", "<answer>", "</think>", " ", "x", "<search>", "...",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_turns_follow_one_another_and_begin_as_one_would(text: str) -> None:
    turns, one = R1.parse(text).steps, R1.parse_turn(text, first=True)
    spans = [turn.spans["step"] for turn in turns]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert not any({"call", "answer"} <= set(t.spans) for t in turns)
    assert not turns or (
        turns[0].call == one.call and spans[0][0] == len(text) - len(text.lstrip())
    )
    assert len(turns) > 1 or not text.strip() or turns == (one,)


def test_more_tags_and_turns_than_any_agent_writes_are_not_read() -> None:
    step = R1.parse_turn("</think>" * (MOST_TAGS + 5) + "<answer>b</answer>", first=True)
    assert step.answer is None
    assert len(step.issues) == MOST_ISSUES
    turn = "<think>a</think><search>b</search><information>c</information>"
    t = R1.parse(turn * (MOST_STEPS + 3) + "<answer>b</answer>")
    assert len(t.steps) == MOST_STEPS
    assert t.answer is None
    assert [issue.kind for issue in t.issues] == ["turns_many"]


def test_what_follows_a_call_or_an_answer_is_another_turn() -> None:
    t = R1.parse(
        f"<think>a</think><search>q</search><answer>b</answer><|im_end|>\n<search>r</search>{INFO}<answer>c</answer>"
    )
    late = ["think_missing", "after_answer"]
    assert [(s.call and s.call.arguments["query"], s.answer, [i.kind for i in s.issues]) for s in t.steps] == [
        ("q", None, ["response_missing"]), (None, "b", late[:1]), ("r", None, late), (None, "c", late),
    ]  # fmt: skip
    assert t.answer == "c"
    assert [len(s.evidence) for s in t.steps] == [0, 0, 2, 0]


def test_the_last_answer_counts_as_in_that_systems_reward() -> None:
    t = R1.parse(
        f"<think>a</think><answer>b</answer>{INFO}<think>d</think>"
    )  # nobody asked for that information
    assert (t.answer, t.stop_reason, t.evidence) == ("b", None, {})
    assert t.steps[0].issues[-1].kind == "response_forged"
    assert R1.parse("\n\n<think>a</think><answer>b</answer><answer>c").answer == "b"
    assert R1.parse("<think>a</think><answer>b").answer is None


def test_the_line_after_an_invalid_turn_is_the_environments() -> None:
    line = R1.no_action_reply
    assert line.startswith("\nMy previous action is invalid.")
    assert line.endswith("Let me try again.\n")
    t = R1.parse(f"<think>hm</think>{line}{BODY}")
    assert [s.think for s in t.steps] == ["hm", "plan", "so"]
    assert t.steps[0].call is None
    assert kinds(t) == ["no_action"]
    assert R1.render(t).startswith(f"<think>hm</think>{line}<think>plan</think>")


@pytest.mark.parametrize("opening", ["<think>", "<think> ", " \n", "<think>\n<think>"])
def test_r1_searchers_thought_may_be_opened_or_not(opening: str) -> None:
    t = R1_SEARCHER.parse(opening + WHOLE["r1_searcher"])
    assert t.steps[1].think == "so"
    assert t.answer == "Seine"
    assert t.steps[0].think.endswith("plan")
    assert kinds(t) == (["nested"] if opening.count("<think>") == 2 else [])
    alone = R1_SEARCHER.parse(" I know.</think>\n\n <answer> Seine </answer>")
    assert (alone.answer, len(alone.steps), alone.steps[0].think, kinds(alone)) == (
        "Seine",
        1,
        "I know.",
        [],
    )


# passages


@pytest.mark.parametrize(
    ("name", "body", "evidence", "note"),
    [
        # titles without quotes, or with quotes in them
        ("search_r1", 'Doc 1(Title: Seine (river)) x\nDoc 2(Title: "The ""Loire""") b\nc\n',
         [("Seine (river", ") x"), ('The ""Loire""', "b\nc")], ""),
        # prose, with or without a line break at its ends
        *(("search_r1", f"{gap}The Seine &lt;.{gap}", [("", "The Seine &lt;.")], "") for gap in ("", "\n", " ")),
        ("self_eval", "\nThe Seine.\n\nThe Loire.\n", [("", "The Seine.\n\nThe Loire.")], ""),
        ("research", "\nT\nx\n\nU\ny\nz\n", [("T", "x"), ("U", "y\nz")], ""),
        ("research", '\n"T"\nx\n\nstill x\n\n"U"\ny\n', [("T", "x\n\nstill x"), ("U", "y")], ""),
        ("research", "\nnothing to search\n", [], "nothing to search"),
        ("research", "\nThe Seine.\n", [("", "The Seine.")], ""),
        ("r1_searcher", "\nThe Seine.\n", [("", "The Seine.")], ""),
        ("research", "\n\n", [], ""),
        ("research", "\nT\nx\n\nonly\n", [("T", "x"), ("", "only")], ""),
        ("r1_searcher", '\n(1)"Title: A ""b"" Text:  he said ""c""."\n(2)Title: D Text: e\n',
         [('A "b"', 'he said "c".'), ("D", "e")], ""),
        ("r1_searcher", "\n(1)Filippo the Elder   Filippo   was\n(2)no gap\n",
         [("Filippo the Elder", "Filippo   was"), ("", "no gap")], ""),
        ("r1_searcher", "\n(1)Title: A Text:  b\n(3) c\n(2)Title: D Text:  e\n(1) f\n",
         [("A", "b\n(3) c"), ("D", "e\n(1) f")], ""),
        ("r1_searcher", "\nNone\n", [], "None"),
    ],
)  # fmt: skip
def test_what_an_environment_returned(
    name: str, body: str, evidence: list[tuple[str, str]], note: str
) -> None:
    dialect = load(name)
    asked = dialect.render_turn(Step(think="a", call=ToolCall("search", {"query": "q"})))
    step = dialect.parse(f"{asked}{dialect.opening}{body}{dialect.closing}").steps[0]
    assert [(e.title, e.text) for e in step.evidence] == evidence
    assert step.note == note


# ReSearch's box


@pytest.mark.parametrize(
    ("inner", "answer"),
    [
        (r"\[ \boxed{a} \]", "a"),
        (r"\boxed{ a b }", "a b"),
        (r"\boxed{a} or \boxed{b}", "b"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a} or \boxed{b", "a"),
        (r"\boxed{a \boxed{b}}", "b"),
        *(
            (inner, None) for inner in ("a", r"\boxed{a", "boxed{a}")
        ),  # read as it stands, and noted
    ],
)
def test_the_last_balanced_box_is_the_answer(inner: str, answer: str | None) -> None:
    text = f"<think>\\boxed{{no}}</think><answer> {inner} </answer>"
    step = RESEARCH.parse_turn(text, first=True)
    assert step.answer == (answer or inner) == text[slice(*step.spans["answer"])].strip()
    assert [i.kind for i in step.issues] == ([] if answer else ["answer_unboxed"])


@pytest.mark.parametrize("answer", ["a", "{a}", r"\boxed{a}", "a}b", "{", r"\boxed{"])
def test_any_answer_survives_writing(answer: str) -> None:
    text = RESEARCH.render_turn(Step(think="x", answer=answer))
    assert RESEARCH.parse_turn(text, first=True).answer == (
        "a" if answer == r"\boxed{a}" else answer
    )


# Search-R1 with tools


def searching(**flags: object) -> EnvironmentArguments:
    return EnvironmentArguments(**{"dialect": "search_r1", "triples": "none", **flags})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"triples": "world"}, "of --corpus, --triples give one, and set the others to 'none'"),
        ({"negative_tool": True}, "of --corpus, --negative_tool give one"),
        ({"web_search": "ddgs"}, "of --web_search, --corpus give one"),
        ({"corpus": "none"}, "no tools: give --corpus"),
        ({"corpus": "none", "browse": "fetch"}, "a search, and browse takes no query"),
    ],
)
def test_what_is_not_one_search_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        searching(**wrong).toolbox()


@pytest.mark.parametrize("flags", [{"web_search": "ddgs"}, {"tools": "web_search=ddgs"}])
@pytest.mark.parametrize("name", [name for name in EVERY if load(name).search_tool])
def test_the_one_search_may_be_of_the_web(name: str, flags: dict[str, str]) -> None:
    with searching(dialect=name, corpus="none", **flags).toolbox() as toolbox:
        assert toolbox.names == [load(name).search_tool]


@pytest.mark.parametrize("name", ["r1", "openai"])
def test_some_dialects_need_no_tool(name: str) -> None:
    with searching(dialect=name, corpus="none").toolbox() as toolbox:
        assert toolbox.names == []
