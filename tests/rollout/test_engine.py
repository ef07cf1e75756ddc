"""The engine: token in, token out; exact masks; named endings; hostile evidence stays data."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import lab
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faithful_search import dialects
from faithful_search.errors import ConfigError, TemplateError
from faithful_search.inference.base import Completion, Sampling
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rollout import Engine, Limits
from faithful_search.rollout.episode import END_REASONS, Episode
from faithful_search.tasks import Task
from faithful_search.tools import Session, Toolbox
from faithful_search.trajectory import Evidence, ToolCall, Trajectory
from faithful_search.wire.cache import Cache

CALL = '<think>{}look</think><tool_call>{{"name": "shelf", "arguments": {{"query": "x"}}}}</tool_call>'
FIRST = CALL.format("")
AGAIN = CALL.format("<helpful>no</helpful><ref>null</ref>")
ANSWER = "<think><helpful>yes</helpful><ref>E1</ref>found</think><answer>Rome</answer>"
TASK = Task("q1", "Where?", ("Rome",))
ROME = Evidence("It is in Rome.", "Place")


def engine(texts: list[str], *evidence: Evidence, dialect: str = "pou", **limits: int) -> Engine:
    return Engine(lab.Scripted(texts), Toolbox([lab.Shelf(*evidence)], timeout=5), dialect, Limits(**limits))


def run(texts: list[str], *evidence: Evidence, **settings):
    return engine(texts, *evidence, **settings).run([TASK])[0]


def decode(ids: list[int]) -> str:
    return lab.tokenizer().decode(ids)


def test_a_whole_episode():
    t = run([FIRST, ANSWER], ROME)
    assert (t.answer, t.stop_reason, t.answers, t.id) == ("Rome", "answered", ("Rome",), "q1")
    assert t.steps[0].call.arguments == {"query": "x"}
    assert t.steps[0].evidence == (Evidence("It is in Rome.", "Place", "E1"),)
    assert (t.steps[1].helpful, t.steps[1].refs, t.steps[1].issues) == (True, ("E1",), ())


def test_trained_ids_are_the_sampled_ids():
    """Prompt and completion ids are what the generator saw and produced, in order; the mask marks exactly its own."""

    class Recording(TransformersGenerator):
        def generate(self, prompts, sampling, max_new_tokens=None):
            completions = super().generate(prompts, sampling, max_new_tokens)
            log.extend(zip([list(prompt) for prompt in prompts], completions, strict=True))
            return completions

    log: list[tuple[list[int], Completion]] = []
    generator = Recording(lab.model(), lab.tokenizer())
    dialect = type(
        "Chatty",
        (type(dialects.load("pou")),),
        {"on_invalid": lambda self, step: "<tool_response>\nGo on.\n</tool_response>"},
    )()
    t = Engine(
        generator, Toolbox([lab.Shelf(ROME)]), dialect, Limits(turns=4, turn_tokens=7), Sampling(logprobs=True)
    ).run([TASK])[0]
    assert len(log) == 4
    ids, mask, seen = t.tokens.completion_ids, t.tokens.mask, 0
    for (prompt, completion), (start, middle, end) in zip(log, t.tokens.turns, strict=True):
        assert prompt == t.tokens.prompt_ids + ids[:start]
        assert ids[start:middle] == completion.ids
        assert mask[start:middle] == [1] * len(completion.ids)
        assert mask[middle:end] == [0] * (end - middle)
        assert t.tokens.logprobs[start:middle] == completion.logprobs
        seen = end
    assert sum(mask) == sum(len(completion.ids) for _, completion in log)
    assert len(ids) == len(mask) == seen


def test_the_policy_sees_prompt_turns_and_responses_as_the_chat_template_writes_them():
    e = engine([FIRST, ANSWER], ROME)
    t = e.run([TASK])[0]
    response = "<tool_response>\nPlace [E1]: It is in Rome.\n</tool_response>"
    messages = e.dialect.prompt(TASK.question, e.toolbox.schemas)
    messages += [{"role": "assistant", "content": FIRST}, {"role": "user", "content": response}]
    expected = lab.tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert decode(e.generator.seen[1]) == expected
    assert decode(t.tokens.completion_ids).endswith(ANSWER + "<|im_end|>")
    assert t.tokens.mask[-1] == 0  # the end of turn was not sampled


def test_a_transcript_equals_the_rollout_it_writes_down():
    e = engine([FIRST + "<|im_end|>", ANSWER + "<|im_end|>"], ROME)
    t = e.run([TASK])[0]
    written = e.chat.transcript(t, e.toolbox.schemas)
    assert (written.prompt_ids, written.completion_ids) == (t.tokens.prompt_ids, t.tokens.completion_ids)
    assert (written.mask, written.turns) == (t.tokens.mask, t.tokens.turns)


def test_reading_the_text_again_gives_the_same_steps():
    t = run([FIRST, AGAIN, ANSWER], ROME)
    again = dialects.parse(t.text, "pou", fenced=True)
    assert again.steps == t.steps
    assert t.text[slice(*t.steps[2].spans["answer"])] == "Rome"


@pytest.mark.parametrize(
    ("turns", "limits", "reason"),
    [
        ([FIRST, ANSWER], {}, "answered"),
        ([FIRST, AGAIN], {"turns": 3}, "turn_limit"),
        ([FIRST, ANSWER], {"total_tokens": 130}, "token_limit"),
        (["<think>and so on and on"], {"turn_tokens": 9}, "turn_token_limit"),
        (["<think>I stop.</think>"], {}, "no_action"),
        (['<think>a</think><tool_call>{"name": "shelf", "argu'], {"turn_tokens": 40}, "turn_token_limit"),
        (['<think>a</think><tool_call>{"name": "shelf", "argu'], {"total_tokens": 40}, "token_limit"),
    ],
)
def test_every_ending_has_its_name(turns, limits, reason):
    t = run(turns, ROME, **limits)
    assert t.stop_reason == reason
    assert reason in END_REASONS
    assert t.tokens.completion_ids
    assert len(t.tokens.completion_ids) == len(t.tokens.mask)


def test_only_episodes_that_ended_by_themselves_end_with_the_end_of_turn():
    eos = lab.tokenizer().eos_token_id
    assert run([ANSWER], ROME).tokens.completion_ids[-1] == eos
    assert run(["<think>stop</think>"], ROME).tokens.completion_ids[-1] == eos
    assert run([FIRST, AGAIN], ROME, turns=2).tokens.completion_ids[-1] != eos


def test_a_sampled_end_of_turn_is_not_written_twice():
    t = run([FIRST + "<|im_end|>", ANSWER + "<|im_end|>"], ROME)
    assert decode(t.tokens.completion_ids).count("<|im_end|>") == 3  # two turns and the response between
    assert t.tokens.mask[-1] == 1


def test_an_empty_turn_ends_the_episode_with_something_to_train_on():
    t = run([""], ROME)
    assert t.stop_reason == "no_action"
    assert t.tokens.completion_ids == [lab.tokenizer().eos_token_id]
    assert t.tokens.mask == [0]


def test_a_call_that_cannot_be_read_is_answered_with_the_form_expected():
    t = run(["<think>a</think><tool_call>{oops</tool_call>", AGAIN, ANSWER.replace("E1", "E1")], ROME)
    assert "call_json" in {issue.kind for issue in t.steps[0].issues}
    assert "shelf" in t.steps[0].note
    assert '"arguments"' in t.steps[0].note
    assert t.answer == "Rome"


BROKEN = "<think>{}a</think><tool_call>{{'name': 'shelf', 'arguments': {{'query': 'x',}}</tool_call>"


@pytest.mark.parametrize("dialect", ["pou", "web_dancer"])
def test_broken_json_is_repaired_and_stays_an_issue(dialect):
    turn = BROKEN.format("")
    t = run([turn, ANSWER], ROME, dialect=dialect)
    first = t.steps[0]
    raw = turn.split("<tool_call>")[1].split("</tool_call>")[0]
    assert first.call == ToolCall("shelf", {"query": "x"}, raw)
    assert first.evidence == (Evidence("It is in Rome.", "Place", "E1"),) and not first.note
    assert "call_json" in {issue.kind for issue in first.issues}
    assert t.text[slice(*first.spans["call"])] == raw
    assert t.answer == "Rome"
    assert Trajectory.from_json(t.to_json()) == t


def test_reading_a_repaired_rollout_again_is_strict_and_else_the_same():
    t = run([BROKEN.format(""), BROKEN.format("<helpful>no</helpful><ref>null</ref>"), ANSWER], ROME)
    again = dialects.parse(t.text, "pou", fenced=True)
    assert [step.call for step in again.steps] == [None, None, None]
    assert [msgspec.structs.replace(step, call=None) for step in t.steps] == list(again.steps)
    assert dialects.load("pou").render(t).split() == t.text.split()


def test_no_repair_of_several_calls_of_long_text_or_of_what_is_not_a_call():
    one = '{"name": "shelf", "arguments": {"query": "x"}}'
    two = "{'name': 'shelf', 'arguments': {}}</tool_call><tool_call>{'name': 'shelf', 'arguments': {}}"
    for raw in (one + one, two, one[:-2] + "x" * 5000, "{'name': 'shelf'}", "[" + one + "]x" + one, "{oops", "{" * 999):
        t = run([f"<think>a</think><tool_call>{raw}</tool_call>", ANSWER], ROME, turn_tokens=6000, total_tokens=20000)
        assert t.steps[0].call is None and "could not be read" in t.steps[0].note, raw


@settings(max_examples=150, deadline=None)
@given(st.text("{}[]\"':,\\ \nnamearguments1/*#`<", max_size=300))
def test_repair_never_raises_and_yields_calls_only(text):
    for raw in (text, '{"name": "a", "arguments": ' + text):
        call = dialects.load("pou").repair_call(raw)
        assert call is None or (call.name and isinstance(call.arguments, dict) and call.raw == raw)
        assert msgspec.json.decode(msgspec.json.encode(call), type=ToolCall | None) == call


def test_repair_is_fast_whatever_the_text():
    start = time.process_time()
    for piece in ('"a"b', 'x"', '{"', "{a:", "[", '\\"', "/*", "'a':", '{"a":"b" '):
        for opening in ('{"name": "a", "arguments": ["', '{"name": "a", "arguments": {"a": "'):
            dialects.load("pou").repair_call((opening + piece * 2000)[:2000])
            dialects.load("pou").repair_call(opening + piece * 10_000)
    assert time.process_time() - start < 10


class Slow(lab.Shelf):
    """Never answers, and tells when it is no longer waited for."""

    name = "shelf"

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ended = threading.Event(), threading.Event()

    async def shelf(self, query: str) -> list[Evidence]:
        """Search.

        Args:
            query: What to look for.
        """
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()
        return []


def test_an_interrupt_ends_the_calls_that_run(tmp_path):
    """Ctrl-C while the engine waits for its tools, through every layer of the toolbox."""
    slow = Slow()
    slow.cache_key = "slow"
    with Toolbox([slow], cache=Cache(tmp_path / "c.sqlite")) as toolbox:
        here = threading.get_ident()
        timer = threading.Thread(target=lambda: (slow.begun.wait(20), signal.pthread_kill(here, signal.SIGINT)))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            Engine(lab.Scripted([FIRST, ANSWER]), toolbox).run([TASK] * 3)
        timer.join()
        assert slow.ended.wait(5)
        assert time.monotonic() - start < 15


def test_sessions_of_ended_and_of_broken_off_episodes_are_closed():
    class Watching(Toolbox):
        def session(self, edits=None):
            made.append(super().session(edits))
            return made[-1]

    made: list[Session] = []
    e = Engine(lab.Scripted([FIRST, ANSWER]), Watching([lab.Shelf(ROME)]))
    e.run([TASK])
    assert [session.closed for session in made] == [True]

    class Down(lab.Scripted):
        def generate(self, *args):
            raise RuntimeError("the policy is down")

    e.generator = Down([])
    with pytest.raises(RuntimeError, match="down"):
        e.run([TASK] * 3)
    assert [session.closed for session in made] == [True] * 4


def test_an_open_call_that_the_model_closed_itself_is_answered():
    """Only the token limit ends such an episode: who stops writing within a call is told so."""
    t = run(["<think>a</think><tool_call>{oops<|im_end|>", AGAIN, ANSWER], ROME)
    assert "call_unclosed" in {issue.kind for issue in t.steps[0].issues}
    assert "shelf" in t.steps[0].note
    assert t.answer == "Rome"


def test_schemas_are_made_once_per_run():
    class Counting(Toolbox):
        @property
        def schemas(self):
            made.append(1)
            return super().schemas

    made: list[int] = []
    e = Engine(lab.Scripted([FIRST, ANSWER]), Counting([lab.Shelf(ROME)]))
    assert len(e.run([TASK] * 5)) == 5
    assert len(made) == 1


def test_an_unknown_tool_is_answered_with_the_tools_there_are():
    t = run([FIRST.replace("shelf", "oracle"), ANSWER], ROME)
    assert "oracle" in t.steps[0].note
    assert "shelf" in t.steps[0].note


def test_a_megabyte_of_evidence_ends_at_the_token_limit():
    t = run([FIRST, ANSWER], Evidence("a" * 10**6))
    assert t.stop_reason == "token_limit"
    assert len(t.tokens.completion_ids) < 8192


def test_many_episodes_come_back_in_order_with_ids_of_their_own():
    e = engine([FIRST, ANSWER], ROME)
    e.concurrency = 3
    ended = []
    tasks = [Task(f"q{number // 2}", "Where?") for number in range(8)]
    found = e.run(tasks, on_end=ended.append)
    assert [t.id for t in found] == ["q0", "q0#1", "q1", "q1#1", "q2", "q2#1", "q3", "q3#1"]
    assert len(ended) == 8
    assert {t.steps[0].evidence[0].id for t in found} == {"E1"}


def test_an_ended_episode_leaves_the_batch():
    class Counting(lab.Scripted):
        def generate(self, prompts, sampling, max_new_tokens=None):
            sizes.append(len(prompts))
            return super().generate(prompts, sampling, max_new_tokens)

        def _turn(self, prompt, limit):
            if "Now." in decode(prompt):
                return Completion(lab.tokenizer()(ANSWER)["input_ids"], "stop")
            return super()._turn(prompt, limit)

    sizes: list[int] = []
    Engine(Counting([FIRST, ANSWER]), Toolbox([lab.Shelf(ROME)])).run([Task("a", "Now."), Task("b", "Where?")])
    assert sizes == [2, 1]


def test_a_concurrency_that_would_never_end_is_refused():
    with pytest.raises(ConfigError, match="concurrency must be at least 1, got 0"):
        Engine(lab.Scripted([ANSWER]), Toolbox([lab.Shelf(ROME)]), concurrency=0)


def test_a_template_that_refuses_the_tool_role_is_reported_as_such():
    template = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('unknown role') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    refusing = lab.byte_tokenizer(("<|im_end|>",), eos_token="<|im_end|>", chat_template=template)
    strict = type("Strict", (type(dialects.load("pou")),), {"observation_role": "tool"})()
    with pytest.raises(TemplateError, match=r"refuses an assistant turn followed by a 'tool' turn: unknown role"):
        ChatFormat.of(refusing, strict)


def test_a_model_without_chat_template_is_refused_with_advice():
    bare = lab.byte_tokenizer(("<|im_end|>",), eos_token="<|im_end|>")
    with pytest.raises(TemplateError, match=r"no chat template.*search_r1"):
        ChatFormat.of(bare, dialects.load("pou"))
    raw = ChatFormat.of(bare, dialects.load("search_r1"))
    assert "Where?" in decode(raw.prompt_ids("Where?"))


def test_a_template_that_drops_turns_is_refused():
    template = "{{ messages[0]['content'] }}"
    broken = lab.byte_tokenizer(("<|im_end|>",), eos_token="<|im_end|>", chat_template=template)
    with pytest.raises(TemplateError, match="does not keep"):
        ChatFormat.of(broken, dialects.load("pou"))


def test_a_response_after_which_no_token_is_left_ends_the_episode():
    end = run([FIRST, ANSWER], ROME).tokens.turns[0][2]
    cut = run([FIRST, ANSWER], ROME, total_tokens=end)
    assert (cut.stop_reason, len(cut.steps), cut.steps[0].evidence) == ("token_limit", 1, ())
    assert run([FIRST, ANSWER], ROME, total_tokens=end + 1).steps[0].evidence


def test_an_episode_knows_its_budget():
    chat = ChatFormat.of(lab.tokenizer(), dialects.load("pou"))
    episode = Episode(TASK, chat, Limits(turn_tokens=50, total_tokens=60), [])
    assert episode.budget == 50
    episode.take_turn(Completion(lab.tokenizer()("<think>abc")["input_ids"] * 5, "length"))
    assert episode.budget == 10
