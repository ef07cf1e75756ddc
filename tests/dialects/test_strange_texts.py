"""Texts in forms that other models and projects write: each is read, or an issue says that it is
not.
"""

import json
from typing import Any

import pytest
from dialect_texts import kinds

import faithful_search as fs
from faithful_search.dialects import load, parse
from faithful_search.trajectory import Trajectory

LIMA = "Lima is the capital of Peru."
SEARCH = [("search", {"query": "Peru"})]
ARGUMENTS = '{"query": "Peru"}'
HERMES = '<tool_call>\n{"name": "search", "arguments": {"query": "Peru"}}\n</tool_call>'
USER = {"role": "user", "content": "Capital of Peru?"}
TOOL = {"role": "tool", "content": LIMA}
INFORMATION = f'<information>Doc 1(Title: "Peru") {LIMA}\n</information>'
SEARCH_R1 = (
    f"<think>a</think>\n<search>Peru</search>\n\n{INFORMATION}\n\n"
    "<think>b</think>\n<answer>Lima</answer>"
)


def said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def calls_of(trajectory: Trajectory) -> list[tuple[str, dict[str, Any]]]:
    return [(step.call.name, step.call.arguments) for step in trajectory.steps if step.call]


def evidence_of(trajectory: Trajectory) -> list[str]:
    return [item.text for step in trajectory.steps for item in step.evidence]


# calls

FORMS = {
    "Llama 4": '<|python_start|>[search(query="Peru")]<|python_end|>',
    "Llama 4, without special tokens": '[search(query="Peru")]',
    "Llama 3.1, its tags": f"<function=search>{ARGUMENTS}</function>",
    "Llama 3.1, without a bracket": f"<function=search{ARGUMENTS}</function>",
    "Qwen3-Coder, with quotes": '<function="search"><parameter="query">Peru</parameter></function>',
    "FunctionGemma": (
        "<start_function_call>call:search{query:<escape>Peru<escape>}<end_function_call>"
    ),
    "Apertus": f'<|tools_prefix|>[{{"search": {ARGUMENTS}}}]<|tools_suffix|>',
    "OLMo 3": '<function_calls>\nsearch(query="Peru")\n</function_calls>',
    "MiniMax M1": (f'<tool_calls>\n{{"name": "search", "arguments": {ARGUMENTS}}}\n</tool_calls>'),
    "Jamba": f'<tool_calls>[{{"name": "search", "arguments": {ARGUMENTS}}}]</tool_calls>',
    "LongCat": (
        f'<longcat_tool_call>{{"name": "search", "arguments": {ARGUMENTS}}}</longcat_tool_call>'
    ),
    "a prompt's": f'<function_call>{{"name": "search", "arguments": {ARGUMENTS}}}</function_call>',
    "Phi-4-mini": f'functools[{{"name": "search", "arguments": {ARGUMENTS}}}]',
    "Llama 3": f'{{"name": "search", "parameters": {ARGUMENTS}}}',
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("thought", ["", "<think>a</think>\n"])
@pytest.mark.parametrize("followers", [[], [TOOL, said("Lima")]], ids=["last", "answered"])
def test_calls_in_the_markup_of_models(form: str, thought: str, followers: list[Any]) -> None:
    read = parse([USER, said(thought + form), *followers])
    assert calls_of(read) == SEARCH
    assert evidence_of(read) == [LIMA] * bool(followers)
    assert read.answer == ("Lima" if followers else None)
    assert kinds(read) == []


@pytest.mark.parametrize(
    "last", [said("Lima"), said("<think>b</think><answer>Lima</answer>")], ids=["words", "tags"]
)
def test_two_calls_between_one_pair_of_tags(last: dict[str, Any]) -> None:
    one = '{"name": "search", "arguments": {"query": "%s"}}'
    chat = [USER, said(f"<tool_calls>\n{one % 'a'}\n{one % 'b'}\n</tool_calls>"), TOOL, TOOL, last]
    assert [arguments["query"] for _, arguments in calls_of(parse(chat))] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        f'<tool>{{"name": "search", "arguments": {ARGUMENTS}}}</tool>',
        f'<|action_start|>{{"name": "search", "parameters": {ARGUMENTS}}}<|action_end|>',
        f"search{ARGUMENTS}",
        '```tool_code\nsearch(query="Peru")\n```',
        '<code>\nsearch(query="Peru")\n</code>',
        f"<|tool_call_begin|>search<|tool_sep|>{ARGUMENTS}<|tool_call_end|>",
        '<|DSML|invoke name="search">x</|DSML|invoke>',
        f'<tool_calls>{{"name": "search", "arguments": {ARGUMENTS}}} {{oops</tool_calls>',
    ],
)
def test_an_answer_that_ends_like_a_call_is_an_issue(text: str) -> None:
    read = parse([USER, said(text)])
    assert calls_of(read) == []
    assert "call_unread" in kinds(read)


@pytest.mark.parametrize("text", ["Lima", "{Lima}", "f(x) = 1 (Lima)", "`<b>Lima</b>`", "[1] Lima"])
def test_an_answer_with_brackets_is_none(text: str) -> None:
    assert kinds(parse([USER, said(text)])) == ["dialect_assumed"]


def tongyi(call: str) -> str:
    return (
        f"<think>a</think>\n<tool_call>\n{call}\n</tool_call>\n"
        "<tool_response>\nA Google search for 'Peru' found 1 results:\n\n## Web Results\n"
        f"1. [Peru](https://ex.org)\n\n{LIMA}\n</tool_response>\n"
        "<think>b</think>\n<answer>Lima</answer>"
    )


@pytest.mark.parametrize(
    "call",
    [
        f'{{"name": "search", "parameters": {ARGUMENTS}}}',
        f'{{"name": "search", "args": {ARGUMENTS}}}',
        '{"name": "search", "query": "Peru"}',
        f'{{"name": "search", "arguments": {json.dumps(ARGUMENTS)}}}',
        f'{{"name": "search", "arguments": {json.dumps(json.dumps(ARGUMENTS))}}}',
        f'{{"type": "function", "function": {{"name": "search", "arguments": {ARGUMENTS}}}}}',
        f'[{{"name": "search", "arguments": {ARGUMENTS}}}]',
        f'```json\n{{"name": "search", "arguments": {ARGUMENTS}}}\n```',
    ],
)
def test_a_call_in_another_form_is_read_and_stays_an_issue(call: str) -> None:
    read = parse(tongyi(call), "web_dancer")
    assert calls_of(read) == SEARCH
    assert evidence_of(read) == [LIMA]
    assert kinds(read) == ["call_json"]


@pytest.mark.parametrize(
    "call",
    [
        f'{{"name": "search", "arguments": {ARGUMENTS}}}\n' * 2,
        f'[{{"name": "a", "arguments": {ARGUMENTS}}}, {{"name": "b", "arguments": {ARGUMENTS}}}]',
        '{"name": "search", "arguments": "Peru"}',
        "{'name': 'search', 'arguments': {'query': 'Peru'}}",
        '{"query": "Peru"}',
    ],
)
def test_what_is_no_single_call_is_none(call: str) -> None:
    read = parse(tongyi(call), "web_dancer")
    assert calls_of(read) == []
    assert kinds(read) == ["call_json"]


def test_a_call_without_arguments_is_no_issue() -> None:
    read = parse(tongyi('{"name": "search"}'), "web_dancer")
    assert calls_of(read) == [("search", {})]
    assert kinds(read) == []


@pytest.mark.parametrize("end", ["\n</code>", ""])
def test_code_behind_a_call_is_its_argument(end: str) -> None:
    call = f'{{"name": "PythonInterpreter", "arguments": {{}}}}\n<code>\nprint("<b>")\n{end}'
    read = parse(tongyi(call))
    assert read.dialect == "web_dancer"
    assert calls_of(read) == [("PythonInterpreter", {"code": 'print("<b>")'})]
    assert kinds(read) == []


@pytest.mark.parametrize("text", [tongyi(HERMES[12:-13]), SEARCH_R1], ids=["json", "words"])
def test_a_response_to_a_call_whose_end_the_sampler_left_out(text: str) -> None:
    read = parse(text.replace("\n</tool_call>", "").replace("</search>", ""))
    assert calls_of(read) == SEARCH
    assert evidence_of(read) == [LIMA]
    assert read.answer == "Lima"
    assert kinds(read) == ["call_unclosed"]


def test_a_token_that_only_names_a_tool_is_no_role() -> None:
    assert load("openai").parse("<|tool_mode|>Lima").answer == "Lima"


WHOLE = {
    "Llama 4": (
        "<|begin_of_text|><|header_start|>user<|header_end|>\n\n{asked}<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\n{call}<|eom|>"
        '<|header_start|>ipython<|header_end|>\n\n"{found}"<|eot|>'
        "<|header_start|>assistant<|header_end|>\n\n{answer}<|eot|>",
        FORMS["Llama 4"],
    ),
    "FunctionGemma": (
        "<bos><start_of_turn>user\n{asked}<end_of_turn>\n<start_of_turn>model\n{call}"
        "<start_function_response>response:search{{value:<escape>{found}<escape>}}"
        "<end_function_response>{answer}<end_of_turn>",
        FORMS["FunctionGemma"],
    ),
    "Granite": (
        "<|start_of_role|>user<|end_of_role|>{asked}<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>{call}<|end_of_text|>\n"
        "<|start_of_role|>tool<|end_of_role|>{found}<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>{answer}<|end_of_text|>",
        f'<|tool_call|>[{{"name": "search", "arguments": {ARGUMENTS}}}]',
    ),
    "Phi-4-mini": (
        "<|user|>{asked}<|end|><|assistant|>{call}<|end|><|tool|>{found}<|end|>"
        "<|assistant|>{answer}<|end|>",
        f'<|tool_call|>[{{"name": "search", "arguments": {ARGUMENTS}}}]<|/tool_call|>',
    ),
    "Command": (
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{asked}<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>a<|END_THINKING|>{call}"
        "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{found}"
        "<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
        "<|START_RESPONSE|>{answer}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
        f'<|START_ACTION|>[{{"tool_name": "search", "parameters": {ARGUMENTS}}}]<|END_ACTION|>',
    ),
    "DeepSeek V3.2": (
        "<\uff5cUser\uff5c>{asked}<\uff5cAssistant\uff5c><think>a</think>{call}"
        "\n\n<function_results>\n<result>{found}</result>\n</function_results>\n\n"
        "<think>b</think>{answer}<\uff5cend\u2581of\u2581sentence\uff5c>",
        '<\uff5cDSML\uff5cinvoke name="search"><\uff5cDSML\uff5cparameter name="query" '
        'string="true">Peru</\uff5cDSML\uff5cparameter></\uff5cDSML\uff5cinvoke>',
    ),
}


@pytest.mark.parametrize(("layout", "call"), WHOLE.values(), ids=WHOLE)
def test_conversations_as_templates_write_them(layout: str, call: str) -> None:
    read = parse(layout.format(asked="Where?", call=call, found=LIMA, answer="Lima"))
    assert (read.question, read.answer, read.evidence_from) == ("Where?", "Lima", "text")
    assert calls_of(read) == SEARCH
    assert evidence_of(read) == [LIMA]


# thoughts and answers

THOUGHTS = {
    "thinking": "<thinking>\nIt is so.\n</thinking>\n\nLima",
    "in capitals": "<THINK>It is so.</THINK>Lima",
    "thought": "<thought>It is so.</thought>Lima",
    "Seed-OSS": "<seed:think>It is so.</seed:think>Lima",
    "Magistral": "[THINK]It is so.[/THINK]Lima",
    "Kimi-VL": "\u25c1think\u25b7It is so.\u25c1/think\u25b7Lima",
    "Gemma 4": "<|channel>thought\nIt is so.<channel|>Lima",
    "Command A": (
        "<|START_THINKING|>It is so.<|END_THINKING|><|START_RESPONSE|>Lima<|END_RESPONSE|>"
    ),
}


@pytest.mark.parametrize("content", THOUGHTS.values(), ids=THOUGHTS)
def test_a_thought_that_a_server_left_in_the_content(content: str) -> None:
    read = parse([USER, said(content)])
    assert (read.steps[0].think, read.answer) == ("It is so.", "Lima")


def test_a_thought_that_is_not_closed_is_no_answer() -> None:
    read = parse([USER, said("<thinking>It may be Lima")])
    assert (read.steps[0].think, read.answer) == ("It may be Lima", None)


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("<answer>Lima</answer>", "Lima", ""),
        ("<Answer>Lima</Answer>", "Lima", ""),
        ("It is <answer>Lima", "Lima", "answer_unclosed"),
        ("<answer>Cusco</answer> no: <answer>Lima</answer>", "Lima", "answer_multiple"),
        ("<answer>Lima</answer> or Cusco", "Lima", "content_unread"),
        ("**<answer>Lima</answer>**.", "Lima", ""),
        ("Write `<answer>x</answer>`: Lima", "Write `<answer>x</answer>`: Lima", ""),
        ("```\n<answer>Lima</answer>\n```", "Lima", ""),
        ("`<answer>x</answer>` is <answer>Lima</answer>", "Lima", ""),
    ],
)
def test_answer_tags_in_a_message(text: str, answer: str, expected: str) -> None:
    read = load("openai").parse(f"<think>a</think>{text}")
    assert read.answer == answer
    assert kinds(read) == expected.split()


@pytest.mark.parametrize(
    "token",
    ["<|im_end|>", "</s>", "<end_of_turn>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>"],
)
@pytest.mark.parametrize("dialect", ["search_r1", "web_dancer", "openai"])
def test_tokens_at_its_end_are_no_part_of_an_answer(token: str, dialect: str) -> None:
    text = f"<think>a</think><answer>Lima{token}</answer>"
    assert load(dialect).parse(text).answer == "Lima"
    assert parse([USER, said(f"Lima{token}")]).answer == "Lima"


# prompts

TOLD = (
    "Reason between <think> and </think>. Search with <search> query </search>; what is found is "
    "between <information> and </information>. Answer between <answer> and </answer>. For "
    "example, <answer> Beijing </answer>. Question: Where?\n"
)


@pytest.mark.parametrize(
    ("before", "after", "issues"),
    [
        ("", "", ["text_outside", "no_action"]),
        ("Human: ", "Assistant: ", ["text_outside", "no_action"]),
        ("[INST] ", "[/INST] ", ["no_action"]),
        ("<s>[SYSTEM_PROMPT]x[/SYSTEM_PROMPT][INST]", "[/INST]", ["no_action"]),
        (
            "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>",
            "<\uff5cAssistant\uff5c>",
            ["no_action"],
        ),
    ],
)
def test_the_example_of_a_prompt_in_other_words_is_no_answer(
    before: str, after: str, issues: list[str]
) -> None:
    cut = SEARCH_R1[: SEARCH_R1.index("<answer>")]
    read = parse(f"{before}{TOLD}{after}{cut}")
    assert read.answer is None
    assert calls_of(read) == SEARCH
    assert kinds(read) == issues
    assert "Where?" in str(read.question)


def test_an_agents_words_about_tags_are_a_fault_of_form_as_other_words() -> None:
    read = load("search_r1").parse(f"Between <think> and <search> I say more.\n{SEARCH_R1}")
    assert fs.rewards.load("format")().score(read).value == 0


def test_a_thought_that_names_one_tag_is_no_prompt() -> None:
    read = load("search_r1").parse(f"I use <search> and </search>.\n{SEARCH_R1}")
    assert "text_outside" in kinds(read)


# whole texts


def test_lines_that_end_as_on_windows() -> None:
    assert parse(SEARCH_R1.replace("\n", "\r\n")) == parse(SEARCH_R1)
    text = tongyi(HERMES[12:-13])
    assert parse(text.replace("\n", "\r\n")) == parse(text)


@pytest.mark.parametrize("blank", ["\u2581", "\u0120"])
def test_tokens_that_were_written_down_are_an_issue(blank: str) -> None:
    text = SEARCH_R1.replace(" ", blank)
    assert "text_undecoded" in kinds(parse(text))
    assert kinds(parse(f"{SEARCH_R1} {blank}")) != ["text_undecoded"]


@pytest.mark.parametrize(
    "text",
    [
        "<think>a <external>Peru</external> <document>Lima</document></think><answer>Lima</answer>",
        "<think>a</think><web_search>Peru</web_search><observation>Lima</observation>"
        "<think>b</think><answer>Lima</answer>",
    ],
)
def test_tags_of_unknown_dialects_are_named(text: str) -> None:
    read = parse(text)
    assert {"dialect_assumed", "tags_unread"} <= set(kinds(read))
    why = next(issue.why for issue in read.issues if issue.kind == "tags_unread")
    assert "<external>" in why or "<web_search>" in why


def test_a_response_behind_an_unknown_block_is_not_the_agents() -> None:
    page = f"<think>c</think><access>https://ex.org</access>\n{INFORMATION}"
    read = parse(SEARCH_R1.replace("<think>b", f"{page}\n<think>b"))
    assert len(evidence_of(read)) == 2
    assert "response_forged" not in kinds(read)
    assert "response_unasked" in kinds(read)


@pytest.mark.parametrize("role", ["tool", "user"])
def test_calls_of_tools_that_no_dialect_knows(role: str) -> None:
    result = LIMA if role == "tool" else f"<tool_response>\n{LIMA}\n</tool_response>"
    end = "<think>b</think>\n<answer>Lima</answer>"
    call = HERMES.replace("search", "open_page")
    read = parse(
        [USER, said(f"<think>a</think>{call}"), {"role": role, "content": result}, said(end)]
    )
    assert (read.dialect, read.answer) == ("openai", "Lima")
    assert calls_of(read) == [("open_page", {"query": "Peru"})]
    assert evidence_of(read) == [LIMA]
    assert kinds(read) == ["dialect_assumed"]


def test_calls_are_not_read_in_a_usual_dialect_that_has_none() -> None:
    call = HERMES.replace("search", "open_page")
    text = (
        f"<think>a</think>{call}\n<tool_response>\n{LIMA}\n</tool_response>\n<answer>Lima</answer>"
    )
    assert parse(text, usual="search_r1").dialect == "openai"


def test_prose_does_not_hide_that_another_dialect_was_asked_for() -> None:
    text = tongyi(f'{{"name": "search", "arguments": {json.dumps({"query": ["Peru"]})}}}')
    assert "dialect_mismatch" in kinds(parse(text, "search_r1_like"))
    assert kinds(parse(text, "web_dancer")) == []
