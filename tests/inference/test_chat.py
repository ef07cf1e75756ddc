"""Chat formats of the families of models: control tokens, ends of turns, refused roles and thoughts
opened for them.
"""

import lab
import pytest

from faithful_search import dialects
from faithful_search.dialects.fence import fenceable
from faithful_search.errors import TemplateError
from faithful_search.inference.chat import ChatFormat
from faithful_search.rollout import Engine
from faithful_search.tasks import Task
from faithful_search.tools import Toolbox
from faithful_search.trajectory import Evidence

ENDS = {
    "mistral": ("", "</s>"),
    "llama2": (" ", "</s>"),
    "gemma": ("", "<end_of_turn>"),
    "phi3": ("", "<|end|>"),
    "llama3": ("", "<|eot_id|>"),
    "qwen3_thinking": ("", "<|im_end|>"),
    "qwen3_base": ("", "<|im_end|>"),
}
CALL = '<think>look</think><tool_call>{"name": "shelf", "arguments": {"query": "x"}}</tool_call>'
ANSWER = "<think><helpful>yes</helpful><ref>E1</ref>found</think><answer>Rome</answer>"
TASK = Task("q1", "Where?", ("Rome",))


def chat(family: str, dialect: str = "pou") -> ChatFormat:
    return ChatFormat.of(lab.family(family), dialects.load(dialect))


def rollout(family: str, turns: list[str]):
    policy = lab.InTurn(turns, own=lab.family(family), whole=True)
    engine = Engine(policy, Toolbox([lab.Shelf(Evidence("It is in Rome.", "Place"))]), "pou")
    return engine, engine.run([TASK])[0]


def sampled(family: str, turn: str) -> str:
    """`turn` as a model of this family samples it: its thought may be opened already."""
    return turn.removeprefix("<think>") if chat(family).prefill else turn


def test_ordinary_added_words_are_left_alone_and_markup_is_not():
    escape = chat("qwen3_thinking").fence.escape
    assert escape("name of a place, 1 < 2, [sic]") == "name of a place, 1 < 2, [sic]"
    assert escape("a <tool_call>") == "a &lt;tool_call>"


def test_tokens_that_no_fence_can_hold_do_not_stop_construction():
    assert fenceable([" ", "\n", "lt", "1", "", "</s>", "<a&b;c>", "</s>"]) == ("</s>", "<a")
    special = (" ", "lt", "7", "<amp;stop>", "<|im_start|>", "<|im_end|>")
    odd = lab.byte_tokenizer(special, eos_token="<|im_end|>", chat_template=lab.TEMPLATE)
    format_ = ChatFormat.of(odd, dialects.load("pou"))
    ids = format_.encode(format_.render_observation([Evidence("7 lt <amp;stop>", "", "E1")]))
    assert not {odd.convert_tokens_to_ids(name) for name in ("<amp;stop>", "<|im_end|>")} & set(ids)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("family", lab.FAMILIES)
def test_the_policy_sees_what_the_template_writes(family, closes):
    closing, own = ENDS[family][1], lab.family(family)
    engine, t = rollout(
        family, [sampled(family, turn) + closing * closes for turn in (CALL, ANSWER)]
    )
    assert (t.stop_reason, t.answer, [step.issues for step in t.steps]) == (
        "answered",
        "Rome",
        [(), ()],
    )
    assert (t.steps[1].helpful, t.steps[1].refs) == (True, ("E1",))
    assert dialects.parse(t.text, "pou", fenced=True).steps == t.steps
    format_ = engine.chat
    assert format_.prefill == ("<think>\n" if family == "qwen3_thinking" else "")
    assert (format_.gap, format_.end, len(format_.end_ids)) == (*ENDS[family], 1)
    assert format_.ended(format_.encode(ANSWER + closing))
    assert not format_.ended(format_.encode(ANSWER))
    messages = engine.dialect.prompt(TASK.question, engine.toolbox.schemas)
    if family in ("mistral", "llama2", "gemma"):  # whose templates refuse a system role
        messages = [
            {"role": "user", "content": messages[0]["content"] + "\n\n" + messages[1]["content"]}
        ]
    messages += [
        {"role": "assistant", "content": sampled(family, CALL)},
        {
            "role": "user",
            "content": "<tool_response>\nPlace [E1]: It is in Rome.\n</tool_response>",
        },
    ]
    expected = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if format_.prefill:  # earlier turns keep the thought that was opened for them
        at = expected.index(sampled(family, CALL))
        expected = expected[:at] + format_.prefill + expected[at:]
    if (
        format_.gap
    ):  # what was sampled stays as it was sampled, without the blanks the template would write
        expected = expected.replace(
            f"{format_.gap}{CALL}{format_.gap}", CALL + format_.gap * (not closes)
        )
    assert engine.generator.seen[1] == own(expected, add_special_tokens=False)["input_ids"]

    ids, mask, end = t.tokens.completion_ids, t.tokens.mask, own.convert_tokens_to_ids(closing)
    assert (
        sum(mask)
        == len(format_.encode("".join(sampled(family, x) for x in (CALL, ANSWER)))) + 2 * closes
    )
    if format_.prefill:  # a thought that the template opens is read, but not sampled
        think, prompt = (
            own.convert_tokens_to_ids("<think>"),
            engine.dialect.prompt("", ())[0]["content"],
        )
        assert think not in [token for token, written in zip(ids, mask, strict=True) if written]
        assert [*t.tokens.prompt_ids, *ids].count(think) == prompt.count("<think>") + 2
    assert ids[-1] == own.eos_token_id  # others end all roles
    assert ids.count(end) == (2 if closing == "</s>" else 3)
    assert mask[-2:] == ([int(closes), 0] if end != own.eos_token_id else [mask[-2], int(closes)])
    # an end that is not the EOS is one more stop string
    assert engine.sampling.stop == (
        *engine.dialect.stop,
        *([] if end == own.eos_token_id else [closing]),
    )


def test_an_eos_of_another_name_needs_no_second_end():
    _, t = rollout("gemma", [CALL, ANSWER + "<eos>"])
    own = lab.family("gemma")
    assert t.tokens.completion_ids[-1] == own.eos_token_id
    assert t.tokens.completion_ids.count(own.eos_token_id) == 1


@pytest.mark.parametrize("family", lab.FAMILIES)
def test_a_transcript_equals_the_rollout_it_writes_down(family):
    gap, end = ENDS[family]
    engine, t = rollout(family, [sampled(family, x) + gap + end for x in (CALL, ANSWER)])
    written = engine.chat.transcript(t, engine.toolbox.schemas)
    assert (written.prompt_ids, written.completion_ids) == (
        t.tokens.prompt_ids,
        t.tokens.completion_ids,
    )
    assert (written.mask, written.turns) == (t.tokens.mask, t.tokens.turns)


def test_a_template_that_refuses_both_prompts_is_reported():
    short = "{% if messages[0].content | length > 99 %}{{ raise_exception('too long for me') }}{% endif %}"
    own = lab.byte_tokenizer(
        ("<|im_end|>",), eos_token="<|im_end|>", chat_template=short + lab.TEMPLATE
    )
    with pytest.raises(
        TemplateError, match=r"refuses the prompt of dialect 'pou' \(too long for me\)"
    ):
        ChatFormat.of(own, dialects.load("pou"))


def test_only_the_first_turn_of_a_raw_dialect_is_opened():
    format_ = chat("qwen3_thinking", "search_r1")
    assert (format_.opened(first=True), format_.opened(first=False)) == ("<think>\n", "")
