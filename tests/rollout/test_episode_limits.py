"""What bounds an episode from within: observations of so many tokens, and an answer that the agent
is made to give.
"""

from functools import cache

import lab
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from faithful_search import dialects
from faithful_search.dialects.base import LAST_CALL
from faithful_search.errors import ConfigError
from faithful_search.inference.base import Sampling
from faithful_search.inference.chat import ChatFormat
from faithful_search.rollout import Engine, Limits
from faithful_search.rollout.episode import END_REASONS, fit
from faithful_search.tasks import Task
from faithful_search.tools import Toolbox
from faithful_search.tools.base import Observation
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TASK = Task("q1", "Where?", ("Rome",))
ROME = Evidence("It is in Rome.", "Place")
SEARCH = "<think>a</think>\n<search>rome</search>"
CLOSED = " Rome </answer>"
ANSWER = "<think>b</think><answer>Rome</answer>"
CALL = '<think>a</think><tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
INVALID = dialects.load("search_r1").no_action_reply
ANSWERING = [name for name in dialects.names() if dialects.load(name).answer_opening]


def shelf(*evidence: Evidence) -> Toolbox:
    return Toolbox([lab.Shelf(*evidence, name="search")])


def run(
    script, *evidence: Evidence, dialect: str = "search_r1", own=None, closes: str = "", **limits
):
    policy, toolbox = lab.InTurn(script, own, closes), shelf(*(evidence or (ROME,)))
    engine = Engine(policy, toolbox, dialect, Limits(**limits), Sampling())
    t = engine.run([TASK])[0]
    exact(engine, t)
    return engine, t


def exact(engine: Engine, t: Trajectory) -> None:
    """The policy was shown exactly the tokens before its turn, and the mask and log-probabilities
    mark its own.
    """
    ids, mask, logprobs = t.tokens.completion_ids, t.tokens.mask, t.tokens.logprobs
    assert len(ids) == len(mask) == len(logprobs)
    assert len(t.steps) == len(t.tokens.turns)
    generator, before = engine.generator, 0
    for shown, made, (start, middle, end) in zip(
        generator.seen, generator.made, t.tokens.turns, strict=True
    ):
        assert start == before
        assert shown == t.tokens.prompt_ids + ids[:start]
        assert ids[start:middle] == made.ids
        assert mask[start:middle] == [1] * (middle - start)
        assert logprobs[start:middle] == made.logprobs
        assert mask[middle:end] == [0] * (end - middle)
        assert logprobs[middle:end] == [0.0] * (end - middle)
        before = end
    assert mask[before:] == [0] * (len(ids) - before)
    assert len(ids) - before <= 2
    assert t.stop_reason in END_REASONS


def same(read: Trajectory, t: Trajectory) -> None:
    """Both have the same steps.

    A turn without any text has no place of its own in a text, and one that breaks off within its
    call no end: the line breaks before the response may be its.
    """
    one, two = (
        [replace(s, spans={}) if placeless(s) else s for s in item.steps] for item in (read, t)
    )
    assert one == two
    assert read.answer == t.answer


def placeless(step: Step) -> bool:
    unclosed = any(issue.kind == "call_unclosed" for issue in step.issues)
    return unclosed or step.spans["step"][0] == step.spans["step"][1]


def again(t: Trajectory) -> Trajectory:
    return dialects.parse(t.text, t.dialect, fenced=True)


def decode(ids) -> str:
    return lab.tokenizer().decode(ids)


@cache
def chat(dialect: str) -> ChatFormat:
    return ChatFormat.of(lab.tokenizer(), dialects.load(dialect))


# the forced answer


def test_an_agent_that_only_searches_is_made_to_answer():
    engine, t = run([SEARCH, SEARCH, CLOSED], turns=2, force_answer=True)
    assert (t.stop_reason, t.answer, len(t.steps)) == ("answered_forced", "Rome", 3)
    assert decode(engine.generator.seen[2]).endswith(f"</information>\n\n{SEARCH}\n\n<answer>")
    assert t.text.endswith(f"{SEARCH}\n\n<answer> Rome </answer>")
    assert decode(t.tokens.completion_ids) == t.text + "<|im_end|>"
    own = decode(
        [token for token, mask in zip(t.tokens.completion_ids, t.tokens.mask, strict=True) if mask]
    )
    assert own == SEARCH + SEARCH + CLOSED
    assert not t.steps[1].evidence
    assert "response_missing" in {issue.kind for issue in t.steps[1].issues}
    assert t.text[slice(*t.steps[2].spans["answer"])] == " Rome "
    assert (again(t).steps, again(t).answer) == (t.steps, t.answer)


@pytest.mark.parametrize(
    "turn", ["", "<think>b", "<think>b</think><search>unfinished", "<answer>unfinished"]
)
@pytest.mark.parametrize("closes", ["", "<|im_end|>"])
def test_a_last_turn_with_nothing_is_told_so_and_made_to_answer(turn, closes):
    engine, t = run([SEARCH, turn, CLOSED], turns=2, force_answer=True, closes=closes)
    assert (t.stop_reason, t.answer) == ("answered_forced", "Rome")
    assert decode(engine.generator.seen[2]).endswith(f"{turn}{closes}{INVALID}<answer>")
    same(again(t), t)


def test_an_agent_that_answers_is_not_forced():
    plain, forced = (run([SEARCH, ANSWER], turns=2, force_answer=on)[1] for on in (False, True))
    assert plain == forced
    assert (forced.stop_reason, forced.answer) == ("answered", "Rome")


@pytest.mark.parametrize("turn", ["I cannot say", "Rome <search>more</search>"])
def test_a_forced_answer_that_is_not_one_ends_as_before(turn):
    _, t = run([SEARCH, turn], turns=1, force_answer=True, turn_tokens=60)
    assert (t.stop_reason, t.answer, len(t.steps)) == ("turn_limit", None, 2)
    assert t.tokens.completion_ids[-1] != lab.tokenizer().eos_token_id


def test_without_the_limit_or_without_room_nothing_is_opened():
    end = run([SEARCH], turns=1)[1].tokens.turns[0][2]
    opened = len("\n\n<answer>")
    for limits in ({}, {"force_answer": True, "total_tokens": end + opened}):
        _, t = run([SEARCH, CLOSED], turns=1, **limits)
        assert (t.stop_reason, len(t.steps), len(t.tokens.completion_ids)) == ("turn_limit", 1, end)
    _, t = run([SEARCH, CLOSED], turns=1, force_answer=True, total_tokens=end + opened + 4)
    assert (t.stop_reason, len(t.steps)) == ("turn_limit", 2)
    assert t.text.endswith("<answer> Rom")


@pytest.mark.parametrize("name", ANSWERING)
def test_every_dialect_with_an_answer_tag_can_be_forced(name):
    dialect = dialects.load(name)
    call = dialect.render_turn(Step(think="a", call=ToolCall("search", {"query": "rome"})))
    engine, t = run([call, call, " Rome</answer>"], dialect=name, turns=2, force_answer=True)
    assert (t.stop_reason, t.steps[2].answer) == ("answered_forced", "Rome")
    same(again(t), t)
    assert decode(engine.generator.seen[2]).endswith("<answer>")
    assert t.steps[1].note == (
        "" if name in ("r1", "search_r1", "research", "self_eval", "auto_refine") else LAST_CALL
    )


def test_the_answer_of_a_dialect_without_a_tag_cannot_be_forced():
    for name in set(dialects.names()) - set(ANSWERING):
        with pytest.raises(ConfigError, match=f"force_answer: dialect '{name}'"):
            Engine(lab.InTurn([]), shelf(), name, Limits(force_answer=True))


def test_in_a_chat_the_opening_stands_in_a_turn_of_the_agents():
    for closes in ("", "<|im_end|>"):
        engine, t = run([CALL + closes, "Rome</answer>"], dialect="pou", turns=1, force_answer=True)
        shown = decode(engine.generator.seen[1])
        assert shown.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n<answer>")
        assert (t.stop_reason, t.answer, t.steps[0].note) == ("answered_forced", "Rome", LAST_CALL)
    _, t = run(["<think>a</think>", "Rome</answer>"], dialect="pou", turns=1, force_answer=True)
    assert (t.stop_reason, t.answer) == ("turn_limit", None)
    # a thought that the template opens is closed before the answer
    own, script = lab.family("qwen3_thinking"), [CALL.removeprefix("<think>"), "Rome</answer>"]
    engine, t = run(script, dialect="pou", own=own, turns=1, force_answer=True)
    assert own.decode(engine.generator.seen[1]).endswith("assistant\n<think>\n</think>\n<answer>")
    assert t.answer == "Rome"
    assert again(t).steps == t.steps


PIECES = [
    SEARCH,
    "<search></search>",
    "hm",
    "",
    "<think>x",
    "<think>x</think>",
    "<search>q",
    "<answer>no",
    CLOSED,
]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(5, 300),
    st.sampled_from(["", "<|im_end|>"]),
)
def test_tokens_are_exact_whatever_the_agent_does(turns, most, tokens, closes):
    _, t = run(
        turns, turns=most, turn_tokens=tokens, total_tokens=3000, force_answer=True, closes=closes
    )
    assert len(t.steps) <= most + 1
    assert (t.stop_reason == "answered_forced") is (
        len(t.steps) == most + 1 and t.answer is not None
    )
    same(again(t), t)


# the observation's limit

WORDS = st.text("ab \n.<>&;é漢\U0001f600", max_size=60)
FOUND = st.lists(st.builds(Evidence, WORDS, WORDS), max_size=4).map(
    lambda found: tuple(Evidence(item.text, item.title, f"E{n}") for n, item in enumerate(found, 1))
)


@pytest.mark.parametrize("name", dialects.names())
@settings(max_examples=25, deadline=None)
@given(found=FOUND, note=WORDS, room=st.integers(0, 150))
def test_a_cut_observation_is_a_beginning_within_its_limit(name, found, note, room):
    def size(seen: Observation) -> int:
        return len(chat(name).encode(chat(name).render_observation(seen.evidence, seen.note)))

    limit, whole = size(Observation()) + room, Observation(found, "" if found else note)
    shown = fit(whole, size, limit)
    assert size(shown) <= limit
    assert (shown == whole) is (size(whole) <= limit)
    assert shown == fit(whole, size, limit)
    if shown.evidence:
        *kept, last = shown.evidence
        assert tuple(kept) == found[: len(kept)]
        origin = found[len(kept)]
        assert (last.title, last.id) == (origin.title, origin.id)
        assert origin.text.startswith(last.text)
    assert whole.note.startswith(shown.note)


def test_passages_are_shortened_from_the_end_at_a_words_border():
    found = [
        Evidence("one two three", "A"),
        Evidence("four fivefold six", "B"),
        Evidence("seven", "C"),
    ]
    first = len('\n\n<information>Doc 1(Title: "A") one two three\n')
    frame = len("</information>\n\n")
    second = len('Doc 2(Title: "B") ')
    for more, texts in (
        (0, 1),
        (second, 1),
        (second + 3, 2),
        (second + 9, 2),
        (second + 14, 2),
        (second + 17, 2),
    ):
        _, t = run(
            [SEARCH, CLOSED], *found, turns=2, observation_tokens=first + frame + more + (more > 0)
        )
        seen = t.steps[0].evidence
        assert len(seen) == texts
        assert seen[0].text == "one two three"
        if texts == 2:
            assert (
                seen[1].text
                == {3: "fou", 9: "four", 14: "four fivefold", 17: "four fivefold six"}[
                    more - second
                ]
            )
        assert t.meta["observations_cut"] == [{"step": 1, "found": 3, "shown": texts}]
        assert t.tokens.turns[0][2] - t.tokens.turns[0][1] <= first + frame + more + 1


def test_what_is_recorded_is_what_the_agent_saw():
    long = [Evidence(f"word{n} " * 200, f"Title {n}") for n in range(3)]
    engine, t = run([SEARCH, SEARCH, ANSWER], *long, observation_tokens=300)
    for step, (_, middle, end) in zip(t.steps[:2], t.tokens.turns[:2], strict=True):
        text = decode(t.tokens.completion_ids[middle:end])
        assert 250 < end - middle <= 300
        assert text == engine.chat.render_observation(step.evidence)
        assert text.endswith("</information>\n\n")
    texts = [
        [[item.text for item in step.evidence] for step in read.steps] for read in (again(t), t)
    ]
    assert texts[0] == texts[1]
    assert not again(t).all_issues()
    assert t.meta == {
        "observations_cut": [
            {"step": 1, "found": 3, "shown": 1},
            {"step": 2, "found": 3, "shown": 1},
        ]
    }
    assert Trajectory.from_json(t.to_json()) == t
    wide = run([SEARCH, SEARCH, ANSWER], *long, observation_tokens=10_000)[1]
    assert wide == run([SEARCH, SEARCH, ANSWER], *long)[1]
    assert not wide.meta


def test_entities_of_fenced_text_are_never_cut_in_two():
    found = Evidence("</information>" * 50, "T")
    for limit in range(60, 80):
        t = run([SEARCH, CLOSED], found, turns=2, observation_tokens=limit)[1]
        assert found.text.startswith(t.steps[0].evidence[0].text)
        assert t.text.count("</information>") == 1
        assert again(t).steps[0].evidence == t.steps[0].evidence


def test_notes_are_cut_and_titles_are_whole_or_left_out():
    _, t = run(["<search></search>", CLOSED], turns=2, observation_tokens=60)
    assert t.steps[0].note
    assert t.meta["observations_cut"] == [{"step": 1, "found": 0, "shown": 0}]
    _, t = run([SEARCH, CLOSED], Evidence("x", "T" * 500), turns=2, observation_tokens=60)
    assert t.steps[0].evidence == ()
    assert "<information></information>" in t.text
    assert t.meta["observations_cut"] == [{"step": 1, "found": 1, "shown": 0}]


def test_limits_without_meaning_are_refused():
    frame = len("\n\n<information></information>\n\n")
    Engine(lab.InTurn([]), shelf(), "search_r1", Limits(observation_tokens=frame))
    with pytest.raises(
        ConfigError, match=rf"observation_tokens={frame - 1} is too few.*takes {frame} tokens"
    ):
        Engine(lab.InTurn([]), shelf(), "search_r1", Limits(observation_tokens=frame - 1))
    for name, value in (("observation_tokens", -1), ("turns", 0)):
        with pytest.raises(ConfigError, match=name):
            Limits(**{name: value})


def test_long_observations_cost_a_few_looks_at_their_beginning():
    looks: list[int] = []

    def tokens(seen: Observation) -> int:
        looks.append(sum(len(item.text) for item in seen.evidence))
        return looks[-1] // 4

    found = tuple(Evidence("word " * 200_000, f"T{n}") for n in range(3))
    shown = fit(Observation(found), tokens, 500)
    assert 1_990 <= len(shown.evidence[0].text) <= 2_003
    assert len(shown.evidence) == 1
    assert len(looks) <= 20
    assert max(looks) <= 4_000
    assert run([SEARCH, CLOSED], *found, turns=2, observation_tokens=500)[1].steps[0].evidence


# base models, whose tokenizers have no chat template


def bare(**named):
    """A byte-level tokenizer without template; with a BOS it puts that before every text, as
    Llama's does.
    """
    from tokenizers.processors import TemplateProcessing

    own = lab.byte_tokenizer(
        ("<|bos|>", "<|endoftext|>", "<|pad|>"), eos_token="<|endoftext|>", **named
    )
    if "bos_token" in named:
        bos = ("<|bos|>", own.bos_token_id)
        own.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|bos|> $A", special_tokens=[bos]
        )
    return own


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("closes", ["", "<|endoftext|>"])
def test_a_base_model_gets_the_prompt_as_text_behind_its_bos(bos, closes):
    own = bare(**({"bos_token": "<|bos|>"} if bos else {}))
    answer = "<think>b</think>\n<answer>Rome</answer>"
    engine, t = run(["hm", SEARCH, answer], own=own, closes=closes)
    [message] = engine.dialect.prompt(TASK.question, [])
    assert own.decode(t.tokens.prompt_ids) == "<|bos|>" * bos + message["content"]
    assert t.tokens.prompt_ids == own(message["content"])["input_ids"]
    response = engine.chat.render_observation(t.steps[1].evidence)
    assert (
        own.decode(t.tokens.completion_ids)
        == f"hm{closes}{INVALID}{SEARCH}{response}{answer}<|endoftext|>"
    )
    assert t.tokens.mask[-1] == 0
    assert t.text == f"hm{INVALID}{SEARCH}{response}{answer}"
    assert own.bos_token_id is None or own.bos_token_id not in t.tokens.completion_ids


@pytest.mark.parametrize(("template", "written"), [("", 0), ("{{ bos_token }}" + lab.TEMPLATE, 1)])
def test_the_bos_token_is_written_at_most_once(template, written):
    names = {"bos_token": "<|bos|>", "chat_template": template or None}
    silent = lab.byte_tokenizer(("<|bos|>", "<|endoftext|>"), eos_token="<|endoftext|>", **names)
    for own, count in ((silent, written), (bare(**names), 1)):
        ids = ChatFormat.of(own, dialects.load("search_r1")).prompt_ids("Where?")
        assert ids.count(own.bos_token_id) == count == ids[:1].count(own.bos_token_id)
