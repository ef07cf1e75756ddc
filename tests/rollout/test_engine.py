"""The engine: token in, token out; named endings; repaired calls; what a turn costs; refused
templates.
"""

import asyncio
import signal
import threading
import time
from unittest.mock import Mock

import lab
import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from faithful_search import dialects
from faithful_search.errors import ConfigError, TemplateError
from faithful_search.inference.base import Completion
from faithful_search.inference.chat import ChatFormat
from faithful_search.rollout import Engine, Episode, Limits
from faithful_search.rollout.episode import END_REASONS
from faithful_search.tasks import Task
from faithful_search.tools import Session, Toolbox
from faithful_search.tools.base import Observation
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.wire.cache import Cache

POU = dialects.load("pou")
CALL = (
    '<think>{}look</think><tool_call>{{"name": "shelf", "arguments": {{"query": "x"}}}}</tool_call>'
)
FIRST, AGAIN = CALL.format(""), CALL.format("<helpful>no</helpful><ref>null</ref>")
ANSWER = "<think><helpful>yes</helpful><ref>E1</ref>found</think><answer>Rome</answer>"
TASK = Task("q1", "Where?", ("Rome",))
ROME = Evidence("It is in Rome.", "Place")
FOUND = (Evidence("It is in Rome.", "Place", "E1"),)


def engine(texts: list[str], *evidence: Evidence, dialect: str = "pou", **limits: int) -> Engine:
    return Engine(
        lab.Scripted(texts), Toolbox([lab.Shelf(*evidence)], timeout=5), dialect, Limits(**limits)
    )


def run(texts: list[str], *evidence: Evidence, **settings) -> Trajectory:
    return engine(texts, *evidence, **settings).run([TASK])[0]


def test_a_whole_episode_and_its_text_read_again():
    t = run([FIRST, AGAIN, ANSWER], ROME)
    assert (t.answer, t.stop_reason, t.answers, t.id) == ("Rome", "answered", ("Rome",), "q1")
    assert t.steps[0].call.arguments == {"query": "x"}
    assert t.steps[0].evidence == FOUND
    assert (t.steps[2].helpful, t.steps[2].refs, t.steps[2].issues) == (True, ("E1",), ())
    assert dialects.parse(t.text, "pou", fenced=True).steps == t.steps
    assert t.text[slice(*t.steps[2].spans["answer"])] == "Rome"


def test_a_question_with_half_a_character_is_asked():
    e = engine([FIRST, ANSWER], ROME)
    t = e.run([Task("q1", "Where is \udcff?", ("R\ud800",))])[0]
    assert t.stop_reason == "answered"
    assert "Where is ??" in e.generator.tokenizer.decode(e.generator.seen[0])
    assert Trajectory.from_json(t.to_json()).question == "Where is ??"


@pytest.mark.parametrize(
    ("turns", "limits", "reason"),
    [
        ([ANSWER], {}, "answered"),
        ([FIRST, AGAIN], {"turns": 3}, "turn_limit"),
        ([FIRST, ANSWER], {"total_tokens": 130}, "token_limit"),
        (["<think>and so on and on"], {"turn_tokens": 9}, "turn_token_limit"),
        (["<think>I stop.</think>"], {}, "no_action"),
        (
            ['<think>a</think><tool_call>{"name": "shelf", "argu'],
            {"turn_tokens": 40},
            "turn_token_limit",
        ),
        ([""], {}, "no_action"),
    ],
)
def test_every_ending_has_its_name(turns, limits, reason):
    t = run(turns, ROME, **limits)
    assert t.stop_reason == reason
    assert reason in END_REASONS
    assert len(t.tokens.completion_ids) == len(t.tokens.mask) > 0
    ended = (
        t.tokens.completion_ids[-1] == lab.tokenizer().eos_token_id
    )  # by this, trainers tell what was cut
    assert ended is (reason in ("answered", "no_action"))
    assert turns != [""] or t.tokens.mask == [0]  # something to train on


@pytest.mark.parametrize(
    ("turn", "kinds", "told"),
    [
        ("<think>a</think><tool_call>{oops</tool_call>", {"call_json"}, ("shelf", '"arguments"')),
        # only the token limit ends an episode here: who stops writing within a call is told so
        ("<think>a</think><tool_call>{oops<|im_end|>", {"call_unclosed"}, ("shelf",)),
        (FIRST.replace("shelf", "oracle"), set(), ("Unknown tool", "shelf")),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_with_what_can_be(turn, kinds, told):
    t = run([turn, AGAIN, ANSWER], ROME)
    assert kinds <= {issue.kind for issue in t.steps[0].issues}
    assert all(word in t.steps[0].note for word in told)
    assert t.answer == "Rome"


@pytest.mark.parametrize("dialect", ["pou", "web_dancer"])
def test_broken_json_is_repaired_and_stays_an_issue(dialect):
    turn = "<think>a</think><tool_call>{'name': 'shelf', 'arguments': {'query': 'x',}</tool_call>"
    t = run([turn, ANSWER], ROME, dialect=dialect)
    first, raw = t.steps[0], turn.split("<tool_call>")[1].split("</tool_call>")[0]
    assert first.call == ToolCall("shelf", {"query": "x"}, raw)
    assert first.evidence == FOUND
    assert not first.note
    assert "call_json" in {issue.kind for issue in first.issues}
    assert t.text[slice(*first.spans["call"])] == raw
    assert t.answer == "Rome"
    assert Trajectory.from_json(t.to_json()) == t
    again = dialects.parse(t.text, dialect, fenced=True)  # which is strict
    assert [msgspec.structs.replace(step, call=None) for step in t.steps] == list(again.steps)


def test_only_a_single_short_call_is_repaired():
    one = '{"name": "shelf", "arguments": {"query": "x"}}'
    two = "{'name': 'shelf', 'arguments': {}}</tool_call><tool_call>{'name': 'shelf', 'arguments': {}}"
    for raw in (
        one + one,
        two,
        one[:-2] + "x" * 5000,
        "{'name': 'shelf'}",
        "[" + one + "]x" + one,
        "{oops",
        "{" * 999,
    ):
        t = run(
            [f"<think>a</think><tool_call>{raw}</tool_call>", ANSWER],
            ROME,
            turn_tokens=6000,
            total_tokens=20000,
        )
        assert t.steps[0].call is None, raw
        assert "could not be read" in t.steps[0].note, raw


@settings(max_examples=60, deadline=None)
@given(st.text("{}[]\"':,\\ \nnamearguments1/*#`<", max_size=300))
def test_repair_never_raises_and_yields_calls_only(text):
    for raw in (text, '{"name": "a", "arguments": ' + text):
        call = POU.repair_call(raw)
        assert call is None or (call.name and isinstance(call.arguments, dict) and call.raw == raw)
        assert msgspec.json.decode(msgspec.json.encode(call), type=ToolCall | None) == call


def test_repair_is_fast_whatever_the_text():
    start = time.process_time()
    for piece in ('"a"b', 'x"', '{"', "{a:", "[", '\\"', "/*", "'a':", '{"a":"b" '):
        for opening in ('{"name": "a", "arguments": ["', '{"name": "a", "arguments": {"a": "'):
            POU.repair_call((opening + piece * 2000)[:2000])
            POU.repair_call(opening + piece * 10_000)
    assert time.process_time() - start < 10


class Slow(lab.Shelf):
    """Never answers, and tells when it is no longer waited for."""

    cache_key = "slow"

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ended = threading.Event(), threading.Event()

    async def shelf(self, query: str) -> list[Evidence]:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()


def test_an_interrupt_ends_the_calls_that_run(tmp_path):
    """Ctrl-C while the engine waits for its tools, through every layer of the toolbox."""
    slow = Slow()
    with Toolbox([slow], cache=Cache(tmp_path / "c.sqlite")) as toolbox:
        here = threading.get_ident()
        timer = threading.Thread(
            target=lambda: (slow.begun.wait(20), signal.pthread_kill(here, signal.SIGINT))
        )
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
    e.generator.generate = Mock(side_effect=RuntimeError("the policy is down"))
    with pytest.raises(RuntimeError, match="down"):
        e.run([TASK] * 3)
    assert [session.closed for session in made] == [True] * 4


def test_a_response_without_room_for_a_turn_ends_the_episode():
    end = run([FIRST, ANSWER], ROME).tokens.turns[0][2]
    cut = run([FIRST, ANSWER], ROME, total_tokens=end)
    assert (cut.stop_reason, len(cut.steps), cut.steps[0].evidence) == ("token_limit", 1, ())
    assert run([FIRST, ANSWER], ROME, total_tokens=end + 1).steps[0].evidence
    flood = run([FIRST, ANSWER], Evidence("a" * 10**6))
    assert flood.stop_reason == "token_limit"
    assert len(flood.tokens.completion_ids) < 8192


def test_ended_episodes_leave_the_batch():
    class Counting(lab.Scripted):
        def generate(self, prompts, sampling, max_new_tokens=None):
            sizes.append(len(prompts))
            return super().generate(prompts, sampling, max_new_tokens)

        def _turn(self, prompt, limit):
            if "Now." in self.tokenizer.decode(prompt):
                return Completion(lab.tokenizer()(ANSWER)["input_ids"], "stop")
            return super()._turn(prompt, limit)

    sizes, ended = [], []
    e = Engine(Counting([FIRST, ANSWER]), Toolbox([lab.Shelf(ROME)]))
    e.run([Task("a", "Now."), Task("b", "Where?")])
    assert sizes == [2, 1]
    e.concurrency = 3
    found = e.run([Task(f"q{number // 2}", "Where?") for number in range(8)], on_end=ended.append)
    assert [t.id for t in found] == ["q0", "q0#1", "q1", "q1#1", "q2", "q2#1", "q3", "q3#1"]
    assert len(ended) == 8
    assert {t.steps[0].evidence[0].id for t in found} == {"E1"}
    assert max(sizes) == 3
    with pytest.raises(ConfigError, match="concurrency"):
        Engine(lab.Scripted([ANSWER]), Toolbox([lab.Shelf(ROME)]), concurrency=0)


class Watched:
    """A tokenizer that notes how much text and how many ids pass through it."""

    def __init__(self, own):
        self._own, self.passed = own, 0

    def __call__(self, text, **kwargs):
        self.passed += len(text)
        return self._own(text, **kwargs)

    def decode(self, ids, **kwargs):
        self.passed += len(ids)
        return self._own.decode(ids, **kwargs)

    def __getattr__(self, name):
        return getattr(self._own, name)


@pytest.mark.parametrize("name", ["pou", "search_r1"])
def test_each_turn_tokenises_and_decodes_only_what_is_new(name):
    """In messages, and in one raw text."""
    tokenizer, dialect = Watched(lab.tokenizer()), dialects.load(name)
    episode = Episode(
        TASK, ChatFormat.of(tokenizer, dialect), Limits(turns=31, total_tokens=10**6), []
    )
    call, passed = ToolCall(dialect.search_tool or "shelf", {"query": "x"}), []
    for number in range(30):
        before = tokenizer.passed
        verdict = {"helpful": True, "refs": (f"E{number}",)} if number and name == "pou" else {}
        text = dialect.render_turn(Step(think="look", call=call, **verdict))
        episode.take_turn(Completion(lab.tokenizer()(text)["input_ids"], "stop"))
        episode.take_observation(
            Observation((Evidence("It is in Rome.", "Place", f"E{number + 1}"),))
        )
        passed.append(tokenizer.passed - before)
    for own, (start, _, end) in zip(passed[1:], episode.turns[1:], strict=True):
        assert (
            own <= end - start + 50
        )  # one token a byte, but for the template's markers between the turns
    assert len(episode.context) > 20 * max(passed)
    text = episode.trajectory().text
    assert all(text[slice(*step.spans["think"])].endswith("look") for step in episode.steps)


STRICT = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ "
    "raise_exception('unknown role') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "role", "said"),
    [
        (None, "user", r"no chat template.*search_r1"),
        ("{{ messages[0]['content'] }}", "user", "does not keep"),
        (STRICT, "tool", "refuses an assistant turn followed by a 'tool' turn"),
    ],
)
def test_a_template_that_cannot_write_episodes_is_refused(template, role, said):
    tokenizer = lab.byte_tokenizer(("<|im_end|>",), eos_token="<|im_end|>", chat_template=template)
    dialect = type("Strict", (type(POU),), {"observation_role": role})()
    with pytest.raises(TemplateError, match=said):
        ChatFormat.of(tokenizer, dialect)
