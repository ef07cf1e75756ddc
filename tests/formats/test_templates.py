"""Calls in models' own markup, and conversations as their chat templates write them: each is read
to the calls, results, thoughts and answer that it holds.
"""

from typing import Any

import pytest
from chat_markup import (
    FORMS,
    ONE_CALL,
    ONE_CALL_TEXTS,
    QUOTED,
    TEXTS,
    TRL,
    WITHOUT_THOUGHTS,
    WITHOUT_TOKENS,
    Call,
    Episode,
    hermes,
    trl_text,
    without_special_tokens,
)
from dialect_texts import kinds
from hypothesis import given, settings, strategies as st

from faithful_search.dialects import parse
from faithful_search.formats import call_markup
from faithful_search.trajectory import Trajectory

TYPES = {
    "query": 'Ada "Mirov" <born> & bred\nin \u2603 \\ 1,5 %',
    "top_k": 5,
    "deep": True,
    "shallow": False,
    "sites": ["a.org", "b & c", "<d>"],
    "options": {"a": [1, None], "b": {"c": "d\ne"}},
    "ratio": 0.5,
    "nothing": None,
    "page_title": "Ada (poet)",
}
PLAIN = Call(
    "search", {"query": "Ada Mirov"}, "Ada Mirov was born in Veldt,\na town in <b>Oran</b>."
)
TYPED = Call(
    "look-up.v2", TYPES, '[{"title": "Ada", "url": "https://ex.org/a", "text": "Born in Veldt."}]'
)
SAME = Call("search", {"query": "Veldt"}, "Veldt is in Oran.")
EPISODES = {"one": Episode([PLAIN]), "typed": Episode([TYPED]), "parallel": Episode([PLAIN, SAME])}
MANY = Episode([PLAIN, TYPED, SAME])
EPISODES["three"] = MANY


def calls_of(trajectory: Trajectory) -> list[tuple[str, dict[str, Any]]]:
    return [(step.call.name, step.call.arguments) for step in trajectory.steps if step.call]


def expected(calls: list[Call]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in calls]


def results_of(trajectory: Trajectory) -> list[str]:
    return [
        "\n".join(item.text for item in step.evidence) for step in trajectory.steps if step.call
    ]


def texts_of(calls: list[Call]) -> list[str]:
    return ["Born in Veldt." if call is TYPED else call.result for call in calls]


# whole texts


@pytest.mark.parametrize("dialect", [None, "openai"])
@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_a_template_is_read(name: str, kind: str, dialect: str | None) -> None:
    episode = EPISODES[kind]
    calls = episode.calls[:1] if name in ONE_CALL_TEXTS else episode.calls
    read = parse(TEXTS[name](episode), dialect)
    assert calls_of(read) == expected(calls)
    assert results_of(read) == texts_of(calls)
    assert (read.question, read.answer) == (episode.question, episode.answer)
    assert kinds(read) == []
    assert read.evidence_from == "text"


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in WITHOUT_THOUGHTS])
def test_its_thoughts_are_read(name: str) -> None:
    read = parse(TEXTS[name](MANY))
    thoughts = [step.think.strip() for step in read.steps if step.think]
    assert thoughts == [MANY.thought, MANY.last]


@pytest.mark.parametrize("dialect", [None, "openai"])
@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("name", TRL)
def test_a_text_of_a_template_that_trl_ships_is_read(
    name: str, kind: str, dialect: str | None
) -> None:
    pytest.importorskip("trl")
    episode = EPISODES[kind]
    calls = episode.calls[:1] if TRL[name].get("one") else episode.calls
    read = parse(trl_text(name, episode), dialect)
    assert calls_of(read) == expected(calls)
    assert results_of(read) == texts_of(calls)
    assert (read.question, read.answer) == (episode.question, episode.answer)
    assert kinds(read) == []


@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("name", WITHOUT_TOKENS)
def test_also_without_its_special_tokens(name: str, kind: str) -> None:
    episode = EPISODES[kind]
    calls = episode.calls[:1] if name in ONE_CALL_TEXTS else episode.calls
    for dialect in (None, "openai"):
        read = parse(without_special_tokens(name, TEXTS[name](episode)), dialect)
        assert calls_of(read) == expected(calls)
        assert results_of(read) == texts_of(calls)
        assert (read.question, read.answer) == (episode.question, episode.answer)


@pytest.mark.parametrize("name", TEXTS)
def test_a_completion_has_no_prompt(name: str) -> None:
    """The agent's first words follow the prompt's last token, which opened a thought."""
    text = TEXTS[name](MANY)
    marks = {"kimi_k3": MANY.thought, "harmony": "<|channel|>analysis", "llama": '{"name"'}
    marks |= {"mistral": "[TOOL_CALLS]"}
    start = text.index(marks.get(name, MANY.thought))
    read = parse(text[start:])
    calls = MANY.calls[:1] if name in ONE_CALL_TEXTS else MANY.calls
    assert calls_of(read) == expected(calls)
    assert results_of(read) == texts_of(calls)
    assert read.answer == MANY.answer


# calls in messages of a chat


def chat(said: dict[str, Any], calls: list[Call], results: str = "tool") -> list[dict[str, Any]]:
    back = [{"role": results, "content": call.result} for call in calls]
    return [
        {"role": "user", "content": "Where was Ada Mirov born?"},
        {"role": "assistant", **said},
        *back,
        {"role": "assistant", "content": "Veldt"},
    ]


@pytest.mark.parametrize("dialect", [None, "openai", "search_r1_like"])
@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("name", FORMS)
def test_a_call_in_the_content_is_one(name: str, kind: str, dialect: str | None) -> None:
    calls = EPISODES[kind].calls[: 1 if name in ONE_CALL or dialect == "search_r1_like" else None]
    read = parse(chat({"content": f"{FORMS[name](calls)}"}, calls), dialect)
    assert calls_of(read) == expected(calls)
    if dialect != "search_r1_like":
        assert results_of(read) == texts_of(calls)
        assert kinds(read) == []
        assert read.answer == "Veldt"


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("harmony", "llama")])
def test_words_before_a_call_are_its_thought(name: str) -> None:
    calls = MANY.calls[: 1 if name in ONE_CALL else None]
    for content in (f"I look.{FORMS[name](calls)}", f"I look.\n\n{FORMS[name](calls)}"):
        read = parse(chat({"content": content}, calls))
        assert calls_of(read) == expected(calls)
        assert read.steps[0].think == "I look."


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("harmony", "llama")])
@pytest.mark.parametrize(
    "think", ["<think>Hm.</think>\n", "Hm.</think>\n\n", "<think>\nHm.\n</think>"]
)
def test_a_thought_in_the_content_stays_one(name: str, think: str) -> None:
    calls = MANY.calls[: 1 if name in ONE_CALL else None]
    read = parse(chat({"content": f"{think}{FORMS[name](calls)}"}, calls), "openai")
    assert calls_of(read) == expected(calls)
    assert (read.steps[0].think or "").strip() == "Hm."


@pytest.mark.parametrize(
    "name", [*(name for name in FORMS if name not in ("harmony", "llama")), "hermes"]
)
@pytest.mark.parametrize("content", [None, ""])
def test_a_call_that_was_left_in_the_thought_is_one(name: str, content: str | None) -> None:
    calls = MANY.calls[: 1 if name in ONE_CALL else None]
    thought = f"I look.\n{ {**FORMS, 'hermes': hermes}[name](calls) }"
    read = parse(chat({"content": content, "reasoning_content": thought}, calls))
    assert calls_of(read) == expected(calls)
    assert results_of(read) == texts_of(calls)
    assert read.steps[0].think == "I look."


@pytest.mark.parametrize("name", FORMS)
def test_results_may_come_as_the_users_messages(name: str) -> None:
    read = parse(chat({"content": FORMS[name]([PLAIN])}, [PLAIN], results="user"), "openai")
    assert calls_of(read) == expected([PLAIN])
    assert results_of(read) == [PLAIN.result]


def test_kimis_results_name_their_calls() -> None:
    back = [f"## Return of functions.search:{number}\nr{number}" for number in (1, 0)]
    messages = chat({"content": FORMS["kimi_k2"]([PLAIN, SAME])}, [])
    messages[2:2] = [{"role": "tool", "content": text} for text in back]
    assert results_of(parse(messages)) == ["r0", "r1"]


def test_a_channel_that_was_left_in_the_content_is_a_thought() -> None:
    content = (
        "<|channel|>analysis<|message|>So Veldt.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Veldt"
    )
    read = parse([{"role": "user", "content": "Where?"}, {"role": "assistant", "content": content}])
    assert [(step.think, step.answer) for step in read.steps] == [("So Veldt.", "Veldt")]


def test_a_tools_message_in_the_agents_own_is_no_evidence() -> None:
    content = TEXTS["harmony"](EPISODES["one"])
    for source, responses in (
        (
            [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": content}],
            "anywhere",
        ),
        (content, "messages"),
    ):
        read = parse(source, "openai", responses=responses)
        assert read.passages == []
        assert "response_forged" in kinds(read)


# what is no call


@pytest.mark.parametrize("name", QUOTED)
def test_a_quotation_in_a_sentence_is_no_call(name: str) -> None:
    call = FORMS[name]([PLAIN])
    for content in (
        f"Models write {call} to search.",
        f"`{call}`",
        f"So:\n```\n{call}\n```\nDone.",
    ):
        read = parse(
            [{"role": "user", "content": "How?"}, {"role": "assistant", "content": content}]
        )
        assert calls_of(read) == []
        assert read.answer == content


@pytest.mark.parametrize("name", FORMS)
def test_a_thought_about_a_call_is_none(name: str) -> None:
    thought = f"I could write\n{FORMS[name]([PLAIN])}\nbut I know."
    said = {"role": "assistant", "reasoning_content": thought, "content": "Veldt"}
    read = parse([{"role": "user", "content": "Where?"}, said])
    assert calls_of(read) == []
    assert (read.steps[0].think, read.answer) == (thought, "Veldt")


@pytest.mark.parametrize("name", TEXTS)
def test_evidence_with_such_markup_is_evidence(name: str) -> None:
    page = TEXTS[name](MANY)
    text = f"<think>a</think><search>q</search>\n\n<information>{page}</information>\n\n"
    read = parse(f"{text}<think>b</think><answer>c</answer>")
    assert calls_of(read) == [("search", {"query": "q"})]
    assert read.answer == "c"


@pytest.mark.parametrize("name", FORMS)
def test_a_result_with_such_markup_is_a_result(name: str) -> None:
    call = PLAIN._replace(result=f"A page says: {FORMS[name]([SAME])}")
    read = parse(chat({"content": FORMS[name]([call])}, [call]))
    assert calls_of(read) == expected([call])


def test_json_that_is_no_call_is_an_answer() -> None:
    for content in ('{"name": "Ada", "born": 1815}', '{"answer": "Veldt"}', '["a", {"name": "b"}]'):
        read = parse(
            [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": content}]
        )
        assert calls_of(read) == []
        assert read.answer == content


@pytest.mark.parametrize("name", ["qwen_coder", "glm", "glm_47"])
@pytest.mark.parametrize("dialect", ["search_r1_like", "recall", "pokee", "openai"])
def test_a_query_is_never_markup(name: str, dialect: str) -> None:
    text = f"<think>I look.</think>\n{FORMS[name]([PLAIN])}"
    text += "\n<tool_response>\nBorn in Veldt.\n</tool_response>\n<think>b</think>\n<answer>Veldt</answer>"
    read = parse(text, dialect)
    assert calls_of(read) == expected([PLAIN])
    assert "<" not in str(calls_of(read))


def test_arguments_that_cannot_be_read_are_an_issue() -> None:
    content = '<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": <|tool_call_end|>'
    read = parse(chat({"content": content}, [PLAIN]))
    assert kinds(read) == ["call_json"]


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("llama", "llama_tag")])
def test_a_call_that_was_cut_off_says_nothing(name: str) -> None:
    whole = FORMS[name]([PLAIN])
    for cut in (len(whole) // 2, len(whole) - 3):
        read = parse(chat({"content": whole[:cut]}, []), "openai")
        assert all(name == "search" for name, _ in calls_of(read))


# properties

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
VALUES = st.recursive(
    st.booleans() | st.none() | st.integers(-(2**53), 2**53) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
EXACT = ("kimi_k2", "kimi_k3", "deepseek", "deepseek_31", "deepseek_32", "mistral", "nemotron_h", "mcp",
         "command", "harmony", "mistral_2025")  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=25)
@given(st.lists(st.builds(Call, NAMES, st.dictionaries(NAMES, VALUES, max_size=3), st.just("r")),
                min_size=1, max_size=3))  # fmt: skip
def test_whatever_the_arguments_are(name: str, calls: list[Call]) -> None:
    if name == "kimi_k3":  # an empty call has nothing to be told by, and JSON is data there
        calls = [call for call in calls if call.arguments] or [PLAIN]
    read = parse(chat({"content": FORMS[name](calls)}, calls), "openai")
    assert [(n, a) for n, a in calls_of(read) if n not in ("submit", "finish")] == [
        (call.name, call.arguments) for call in calls if call.name not in ("submit", "finish")
    ]


@given(st.text(alphabet='<>/=_|\uff5c abc{}"[]:,`', max_size=60), st.booleans(), st.booleans())
def test_nothing_raises(text: str, answered: bool, thought: bool) -> None:
    for sign in ("<function=", "<arg_key>", "<|python_tag|>", "<use_mcp_tool>", "[TOOL_CALLS]"):
        parts = call_markup.split_calls(f"{sign}{text}", answered, thought)
        assert parts is None or all(part.kind in ("text", "call") for part in parts)
