"""Episodes that a language model wrote: read in any dialect, rewritten, filtered, and trained on by
the recipe.
"""

import json

import msgspec
import pytest
from agent_rows import file_of, lines_of
from recipe_runs import TINY, call
from transformers import AutoTokenizer

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.coldstart.filtering import (
    by_tools,
    read_written,
    rewritten,
    summary,
    write_written,
)
from faithful_search.errors import DataError
from faithful_search.inference.chat import ChatFormat
from faithful_search.rewards import Citation, Format
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl

QUESTION = "Where was the director of Zodiac born?"
FIRST = '<think>I look.</think><tool_call>{"name": "local_search", "arguments": {"query": "Zodiac"}}</tool_call>'
FOUND = "<tool_response>\nZodiac [E1]: Directed by David Fincher.\nSeven [E2]: A film.\n</tool_response>"
SECOND = (
    "<think><helpful>yes</helpful><ref>E1</ref>By Fincher.</think>"
    '<tool_call>{"name": "local_search", "arguments": {"query": "David Fincher"}}</tool_call>'
)
BORN = "<tool_response>\nDavid Fincher [E3]: He was born in Denver.\n</tool_response>"
LAST = "<think><helpful>yes</helpful><ref>E3</ref>In Denver.</think><answer>Denver</answer>"
TURNS = (FIRST, FOUND, SECOND, BORN, LAST)
GOOD = "".join(TURNS)
STEPS = (
    Step(
        "I look.",
        ToolCall("local_search", {"query": "Zodiac"}),
        (Evidence("By David Fincher.", "Zodiac", "E1"),),
    ),
    Step(
        "By Fincher.",
        ToolCall("local_search", {"query": "David Fincher"}),
        (Evidence("He was born in Denver.", "David Fincher", "E2", source="p7"),),
        helpful=True,
        refs=("E1",),
    ),
    Step("In Denver.", answer="Denver", helpful=True, refs=("E2",)),
)
SEARCH_R1 = (
    "<think>I look.</think><search>Zodiac</search>\n\n<information>Doc 1(Title: Zodiac) By David "
    "Fincher.</information>"
    "\n\n<think>By Fincher.</think><search>David Fincher</search>\n\n<information>Doc 1(Title: "
    "David Fincher) He was "
    "born in Denver.</information>\n\n<think>In Denver.</think><answer>Denver</answer>"
)


@pytest.fixture(scope="module")
def tools():
    return Toolbox(
        [LocalSearch.from_corpus([{"id": "p1", "title": "Zodiac", "text": "A film."}])]
    ).schemas


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.of(AutoTokenizer.from_pretrained(tiny_policy()), dialects.load("pou"))


def row(text=GOOD, **columns):
    return {"question": QUESTION, "answers": ["Denver"], "output": text, **columns}


def stored(dialect, steps=STEPS, **fields):
    trajectory = Trajectory(
        steps, QUESTION, steps[-1].answer, dialect=dialect, answers=("Denver",), id="s"
    )
    return json.loads(msgspec.structs.replace(trajectory, **fields).to_json())


@pytest.fixture
def read(tmp_path, chat, tools):
    def one(*rows, chat=chat, **settings):
        return list(
            read_written([file_of(tmp_path / "w.jsonl", rows)], chat, lambda: tools, **settings)
        )

    return one


def reasons(rows):
    return [found.rejected for found in rows]


def test_texts_chats_and_trajectories_are_read_packed_or_not(tmp_path, chat, tools):
    told = (
        (("user", "assistant")[place % 2], text) for place, text in enumerate((QUESTION, *TURNS))
    )
    messages = [{"role": role, "content": text} for role, text in told]
    first = [row(id="a"), {"messages": messages, "answer": "Denver"}]
    files = file_of(tmp_path / "w.jsonl", first), file_of(tmp_path / "w.jsonl.gz", [stored("pou")])
    found = list(read_written(files, chat, lambda: tools))
    assert reasons(found) == [None] * 3
    assert [item.where for item in found] == [
        f"{files[0]}, line 1",
        f"{files[0]}, line 2",
        f"{files[1]}, line 1",
    ]
    for item in found:
        assert item.trajectory.answers
        assert item.trajectory.question == QUESTION
        assert item.trajectory.answer == "Denver"
        first, born = (step.evidence[0].id for step in item.trajectory.steps[:2])
        assert [step.refs for step in item.trajectory.steps] == [(), (first,), (born,)]


@pytest.mark.parametrize(
    ("changed", "reason", "why"),
    [
        (row(GOOD.replace("<ref>E3", "<ref>E1")), "citation", "step 3: cites E1, which the previous response does not"),
        (row(GOOD.replace("<ref>E1", "<ref>null")), "citation", "step 2: says yes but cites nothing"),
        (row(GOOD.replace("<helpful>yes</helpful><ref>E1</ref>", "")), "citation", "step 2: no verdict"),
        (row(GOOD.replace("<answer>Denver</answer>", "")), "format", "step 3"),
        (row(answers=["Paris"]), "wrong_answer", "'Denver' against Paris"),
        (row(GOOD.replace("born in Denver.", "born.")), "ungrounded", ""),
        (row(FIRST + FOUND + LAST.replace("E3", "E1")), "ungrounded", ""),
        (row(FIRST + FOUND.replace("Fincher", "Denver") + LAST.replace("E3", "E1")), "too_short", ""),
        ({**row(), "question": None}, "no_question", ""),
        (row(GOOD.replace("local_search", "dig")), "unknown_tool", "calls dig, which its prompt would not describe"),
        (row(SEARCH_R1), "no_verdicts", "step 2 of a trajectory of search_r1 gives none"),
        (row(tools=[{"name": "bare"}]), "unreadable", "not a list of JSON schemas"),
        (row(tools="[{"), "unreadable", "not a list of JSON schemas"),
        (row(tools="[" * 100_000), "unreadable", "not a list of JSON schemas"),
        ({"question": QUESTION, "note": "x"}, "unreadable", "no column with messages or text; it has: question, note"),
    ],
)  # fmt: skip
def test_what_is_not_fit_says_why(read, changed, reason, why):
    good, found = read(row(), changed)
    assert good.rejected is None
    assert found.rejected == reason
    assert why in found.why


def test_steps_and_tokens_have_bounds_that_are_settings(read):
    assert reasons(read(row(), min_steps=4)) == ["too_short"]
    assert reasons(read(row(), max_steps=2)) == ["too_long"]
    [found] = read(row(), max_length=100)
    assert found.rejected == "too_many_tokens"
    assert found.why.endswith(" for a max_length of 100")
    length = int(found.why.split()[0])
    assert reasons(read(row(), max_length=length)) == [None]
    assert reasons(read(row(), max_length=length - 1)) == ["too_many_tokens"]


def test_only_trajectories_with_verdicts_are_rewritten(read):
    bare = tuple(msgspec.structs.replace(step, helpful=None, refs=()) for step in STEPS)
    half = (*STEPS[:2], msgspec.structs.replace(STEPS[2], helpful=None, refs=()))
    found = read(
        stored("openai"), stored("openai", bare), stored("search_r1_like", half), stored("")
    )
    assert reasons(found) == [None, "no_verdicts", "no_verdicts", None]
    assert found[2].why == "step 3 of a trajectory of search_r1_like gives none"
    made = found[0].trajectory
    assert made.dialect == "pou"
    assert (made.id, made.answers, made.answer) == (
        "s",
        ("Denver",),
        "Denver",
    )
    assert made.text.startswith(FIRST)
    assert "<ref>E2</ref>In Denver.</think><answer>Denver</answer>" in made.text
    assert made.steps[1].evidence[0].source == "p7"
    assert Format().score(made).value == Citation().score(made).value == 1.0


def test_what_the_dialect_cannot_say_is_left_out_not_bent(read):
    parallel = (
        STEPS[0],
        msgspec.structs.replace(STEPS[0], same_turn=True, helpful=False),
        *STEPS[1:],
    )
    named = [tuple(Evidence(item.text, id="doc") for item in step.evidence) for step in STEPS]
    foreign = tuple(
        msgspec.structs.replace(step, evidence=own) for step, own in zip(STEPS, named, strict=True)
    )
    assert reasons(read(stored("openai", parallel), stored("openai", foreign))) == [
        "unwritable",
        "unwritable",
    ]
    tagged = msgspec.structs.replace(STEPS[2], think="So <answer>Paris</answer> then.")
    assert reasons(read(stored("pou", (*STEPS[:2], tagged)))) == ["unwritable"]


def test_a_dialect_without_verdicts_takes_any_trajectory(read, tools):
    search_r1 = ChatFormat.of(
        AutoTokenizer.from_pretrained(tiny_policy("search_r1")), dialects.load("search_r1")
    )
    graph = msgspec.structs.replace(STEPS[0], call=ToolCall("knowledge_graph", {"query": "Zodiac"}))
    rows = [
        row(SEARCH_R1),
        stored("openai", tuple(msgspec.structs.replace(s, helpful=None, refs=()) for s in STEPS)),
    ]
    rows += [
        stored(
            "openai",
            tuple(msgspec.structs.replace(s, helpful=None, refs=()) for s in (graph, *STEPS[1:])),
        )
    ]
    found = read(*rows, chat=search_r1)
    assert reasons(found) == [None, None, "unwritable"]
    assert found[2].why == "step 1: search_r1 would not keep its call"
    assert [step.call and step.call.name for step in found[1].trajectory.steps] == [
        "search",
        "search",
        None,
    ]
    assert "<search>Zodiac</search>" in found[1].trajectory.text


@pytest.mark.parametrize("name", sorted({*dialects.names()} - {"pou"}))
def test_dialects_without_verdicts_rewrite_to_each_other(name):
    read = dialects.parse(SEARCH_R1, "search_r1", question=QUESTION)
    there = rewritten(read, dialects.load(name))
    back = rewritten(there, dialects.load("search_r1"))
    assert Format().score(there).value == 1.0
    assert there.dialect == name
    ours, theirs = (
        [(s.think, s.call and s.call.arguments, s.answer) for s in one.steps]
        for one in (back, read)
    )
    assert ours == theirs


def test_rows_bring_tools_of_their_own_in_a_column_or_in_meta(read, tools, chat, tmp_path):
    dig = [
        {
            "type": "function",
            "function": {"name": "dig", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    text = GOOD.replace('"local_search"', '"dig"')
    found = read(
        row(text, tools=dig),
        row(text, tools=json.dumps(dig)),
        stored("pou", meta={"tools": tools}),
        row(),
    )
    assert reasons(found) == [None] * 4
    names = [[one["function"]["name"] for one in item.tools] for item in found]
    assert names == [["dig"], ["dig"], ["local_search"], ["local_search"]]
    assert [(len(kept), described) for kept, described in by_tools(found)] == [(2, dig), (2, tools)]
    own, opened = (
        file_of(tmp_path / "own.jsonl", [row(tools=tools), stored("pou", meta={"tools": tools})]),
        [],
    )
    assert reasons(read_written([own], chat, lambda: opened.append(1))) == [None] * 2
    assert not opened


def test_unreadable_rows_are_listed_and_end_nothing(read, tmp_path):
    found = read(
        row(id="a"), "{broken", "[1, 2]", {"question": QUESTION, "output": SEARCH_R1, "id": "b"}
    )
    said, path = summary(found), tmp_path / "w.jsonl"
    assert said[0] == "1 of 4 trajectories kept; rejected: 2 unreadable, 1 no_verdicts"
    assert any(line.startswith(f"{path}, line 2: not JSON") for line in said)
    assert any(
        line.startswith(f"{path}, line 3: expected an object, a text or a list") for line in said
    )
    write_written(tmp_path / "out", found)
    assert [item.id for item in read_jsonl(tmp_path / "out" / "episodes.jsonl")] == ["a", "b"]
    lines = lines_of(tmp_path / "out" / "reasons.jsonl")
    told = [(line["id"], line["rejected"]) for line in lines]
    assert told == [("a", None), ("", "unreadable"), ("", "unreadable"), ("b", "no_verdicts")]
    assert lines[1]["where"] == f"{path}, line 2"
    assert lines[1]["why"].startswith("not JSON")
    none = r"none of 3 trajectories.*: 2 unreadable, 1 no_verdicts; the first, .*line 2: "
    with pytest.raises(DataError, match=none):
        by_tools(found[1:])
    many = summary(read(row(), *["{broken"] * 12))
    assert many[-1] == "… and 2 more that cannot be read; reasons.jsonl lists all"


def test_a_file_that_breaks_off_is_read_as_far_as_it_goes(tmp_path, chat, tools):
    path = file_of(
        tmp_path / "w.jsonl.gz", [row(id=str(number), pad="x" * number) for number in range(200)]
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    found = list(
        read_written([path, file_of(tmp_path / "more.jsonl", [row()])], chat, lambda: tools)
    )
    assert found[-1].rejected is None
    assert found[-1].where.endswith("more.jsonl, line 1")
    assert found[-2].rejected == "unreadable"
    assert "cannot read" in found[-2].why
    assert len(found) > 3
    assert set(reasons(found[:-2])) == {None}
    with pytest.raises(DataError, match="cannot read"):
        list(read_written([tmp_path / "missing.jsonl"], chat, lambda: tools))
    with pytest.raises(DataError, match="no rows in it"):
        list(read_written([file_of(tmp_path / "empty.jsonl", [])], chat, lambda: tools))


def test_the_recipe_trains_on_them(tmp_path, capsys):
    """A file of all kinds, as a user would give it."""
    bare = {"question": QUESTION, "output": GOOD, "id": "no_gold"}
    path = file_of(
        tmp_path / "w.jsonl.gz", [row(id="a"), "{broken", stored("openai"), row(SEARCH_R1), bare]
    )
    out = tmp_path / "out"
    small = [
        "--max_steps",
        "1",
        "--per_device_train_batch_size",
        "2",
        "--threads",
        "1",
        "--save_strategy",
        "no",
    ]
    flags = ["--trajectories", str(path), "--output_dir", str(out), *small]
    flags += [
        "--tiny",
        json.dumps(TINY),
        "--loss_on",
        "agent",
        "--swaps_per_episode",
        "0",
        "--max_length",
        "1500",
    ]
    call("sft", *flags)
    said = capsys.readouterr().out.splitlines()
    assert "3 of 5 trajectories kept; rejected: 1 unreadable, 1 no_verdicts" in said
    assert (
        "1 of those kept have no gold answers: whether their answers are right was not checked"
        in said
    )
    assert "3 prompts describe local_search, knowledge_graph" in said
    assert any(line.startswith("3 rows of ") for line in said)
    assert len((out / "reasons.jsonl").read_text().splitlines()) == 5
    assert (out / "model.safetensors").exists()
