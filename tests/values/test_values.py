"""What every value promises: equal to its copies, whole after pickling, printed by its fields, and never changed."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import msgspec
import pytest

from faithful_search import rewards
from faithful_search.inference.base import Completion, Sampling
from faithful_search.judges import Pair, Request, Verdict
from faithful_search.rewards import MixState, Score, Warmup
from faithful_search.rollout import Limits
from faithful_search.tasks import Task
from faithful_search.trajectory import Evidence, Issue, Step, Tokens, ToolCall, Trajectory

EVIDENCE = Evidence("Rome is a city.", "Rome", "E1", url="https://rome.example/", score=0.5)
STEP = Step(think="so", call=ToolCall("search", {"query": "Rome"}), evidence=(EVIDENCE,), helpful=True, refs=("E1",))
VALUES = [
    EVIDENCE,
    STEP,
    Issue("no_action", "neither a call nor an answer", (0, 3)),
    Trajectory((STEP, Step(answer="Rome")), question="Where?", answer="Rome", answers=("Rome",), meta={"a": [1]}),
    Tokens([1, 2], [3, 4], [1, 0], turns=((0, 1, 2),)),
    Task("q", "Where?", ("Rome",)),
    Pair("Rome is a city.", "Rome", "Where?", "info_think"),
    Verdict(0.5, True, "", "lexical"),
    Request("claims", {"question": "q", "answer": "a"}),
    Score(0.5, "why", {"applies": True}),
    Limits(),
    Sampling(1.0),
    Completion([1], "stop", [-0.5]),
    MixState(0.1 + 0.2, 41),
    Warmup(("answer",), 4, 8),
    rewards.pou_mix(budget=2),
    *(rewards.load(name)() for name in rewards.names()),
]
every = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@every
def test_a_copy_in_another_process_is_equal(value):
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value


@every
def test_another_with_the_same_fields_is_equal_and_prints_alike(value):
    change = dataclasses.replace if dataclasses.is_dataclass(value) else msgspec.structs.replace
    assert change(value) == value and repr(change(value)) == repr(value)
    assert repr(value).startswith(f"{type(value).__name__}(")


@every
def test_nothing_changes_it(value):
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else msgspec.structs.fields(value)
    for name in [field.name for field in fields] or ["anything"]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, None)
