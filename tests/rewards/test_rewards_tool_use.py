"""Calls that repeat themselves, calls whose evidence is never used, and how calls spread over the tools."""

import pytest

from faithful_search.errors import ConfigError
from faithful_search.measure.behaviour import tool_entropy, tool_ratios
from faithful_search.rewards import ToolUse
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

MILL = Evidence(
    "The mill of Lund was kept by Ada Horn, a quiet baker, until she left the old trade.", "Mill of Lund", "E1"
)


def call(name="search", /, think="", evidence=(), **arguments) -> Step:
    return Step(think=think, call=ToolCall(name, arguments), evidence=evidence)


@pytest.mark.parametrize(
    ("steps", "value", "repeats"),
    [
        ([call(query="Old mill")], 0.0, []),
        ([call(query="Old mill"), call(query=" old  MILL?")], 0.5, [2]),
        ([call(query="old mill"), call("web", query="old mill")], 0.0, []),  # another tool
        ([call(query="a"), call(query="a"), call(query="a")], 2 / 3, [2, 3]),
        ([call(query=["a", "b"]), call(query=["A", "b."])], 0.5, [2]),
        ([call(query="?"), call(query="!")], 0.0, []),  # nothing is left of either: compared as written
        ([Step(call=ToolCall("s", raw=raw)) for raw in ("x = 1", "x = 2", "X = 1")], 1 / 3, [3]),
    ],
)
def test_repeated_by_hand(steps, value, repeats):
    score = ToolUse("repeated").score(Trajectory(tuple(steps)))
    assert score.value == pytest.approx(value)
    assert score.parts == {"calls": len(steps), "steps": repeats}


@pytest.mark.parametrize(
    ("later", "unused"),
    [
        (Step(think="So it was Ada.", answer="?"), 0.0),  # a name
        (Step(answer="Horn"), 0.0),  # one that opens the answer
        (call(query="ada horn"), 0.0),  # a later query
        (Step(think="She was a quiet baker and left.", answer="?"), 0.0),  # three plain words
        (Step(think="It was a baker.", answer="?"), 1.0),  # one plain word may be chance
        (Step(think="The keeper of the mill of Lund.", answer="Lund"), 1.0),  # known from question and query
    ],
)
def test_unused_by_words(later, unused):
    first = call(query="keeper mill", evidence=(MILL,))
    trajectory = Trajectory((first, later), question="Who kept the mill of Lund?", dialect="search_r1")
    score = ToolUse("unused").score(trajectory)
    assert score.value == unused
    assert score.parts == {"calls": 1, "steps": [1] if unused else []}
    wary = ToolUse("unused", words=1).score(trajectory)  # one plain word already shows use
    assert wary.value == (0.0 if later.think == "It was a baker." else unused)


@pytest.mark.parametrize(
    ("helpful", "refs", "uncited"), [(True, ("E1",), 0.0), (False, (), 1.0), (True, ("E9",), 1.0), (None, (), 1.0)]
)
def test_only_a_valid_citation_cites_and_what_is_taken_up_is_told_by_words_in_every_dialect(helpful, refs, uncited):
    last = Step(think="Ada Horn", helpful=helpful, refs=refs, answer="Ada Horn")
    steps = (call(query="keeper", evidence=(MILL,)), last)
    score = ToolUse("uncited").score(Trajectory(steps, dialect="pou"))
    assert score.value == uncited and score.parts == {"calls": 1, "steps": [1] if uncited else []}
    assert ToolUse("unused").score(Trajectory(steps, dialect="pou")).value == 0.0
    elsewhere = ToolUse("uncited").score(Trajectory(steps, dialect="search_r1"))
    assert elsewhere.value is None and elsewhere.why == "dialect 'search_r1' has no verdicts that cite"
    assert not ToolUse("uncited").covers("search_r1") and ToolUse("unused").covers("search_r1")


def test_no_calls_have_no_value_and_calls_without_evidence_none_to_use():
    quiet = Trajectory((Step(think="I know.", answer="a"),))
    assert ToolUse("repeated").score(quiet).value is None and ToolUse("unused").score(quiet).value is None
    assert ToolUse("unused").score(Trajectory((call(query="x"),))).value is None
    assert ToolUse("unused").score(Trajectory((call(evidence=(MILL,)),))).value == 1.0  # and nothing came after it
    with pytest.raises(ConfigError):
        ToolUse("wasted")


def test_the_entropy_is_over_the_tools_there_are():
    counts = {"search": 6, "read": 2}
    assert tool_ratios(counts, ["search", "graph"]) == {"search": 1.0, "graph": 0.0}
    assert tool_entropy(counts, ["search", "read"]) == pytest.approx(0.811278, abs=1e-6)
    assert tool_entropy(counts, ["search", "read", "graph"]) == pytest.approx(0.511860, abs=1e-6)
    assert tool_entropy(counts, ["search"]) is tool_entropy(counts, []) is tool_entropy({}, ["search", "read"]) is None
    assert tool_ratios({"search": 1}, ["read"]) == {"read": 0.0}
