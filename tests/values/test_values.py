"""What every value promises: equal to its copies, whole after pickling, printed by its fields, and never changed."""

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


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_equal_to_its_copies_prints_its_fields_and_never_changes(value):
    kind = dataclasses if dataclasses.is_dataclass(value) else msgspec.structs
    again = kind.replace(value)
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == again == value
    assert repr(again) == repr(value) and repr(value).startswith(f"{type(value).__name__}(")
    for name in [field.name for field in kind.fields(value)] or ["anything"]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, None)
