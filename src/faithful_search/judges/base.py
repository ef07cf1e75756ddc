"""What a judge is: it reads pairs of texts and says whether the second follows from the first."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from ..world import Change

Task = Literal["support", "states", "info_think", "think_search", "think_answer", "correctness"]
"""What is asked about a pair; a judge that is prompted has one prompt for each.

| task | premise | hypothesis |
|---|---|---|
| support | evidence | a claim |
| states | passages | the query of the call that returned them; upheld when one states what it asks for |
| info_think | what a tool returned | the thought right after it |
| think_search | a thought | the call right after it |
| think_answer | the last thought | the answer |
| correctness | the gold answers | the answer |
"""
LABELS = ("1", "0")  # what a model that is asked replies: that the hypothesis follows, or not


class Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    """Does `hypothesis` follow from `premise`? `question` gives context where a judge can use it.

    `change` says in which world the premise was read, for a judge that goes by facts: see `world.Change`.
    """

    premise: str
    hypothesis: str
    question: str = ""
    task: Task = "support"
    change: Change | None = None


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """`p` in [0, 1] that the hypothesis follows; `judge` names what said so, its prompt's version included.

    A judge that could not decide about this pair (a server that was down, a reply that cannot be read) abstains: `p`
    and `label` are `None`, and `why` says what happened.
    """

    p: float | None
    label: bool | None
    why: str = ""
    judge: str = ""

    @property
    def abstained(self) -> bool:
        return self.label is None


@runtime_checkable
class Judge(Protocol):
    """Verdicts in the order of the pairs. A pair that could not be judged gets a verdict that abstains.

    Raises `JudgeError` where nothing can be judged at all: a wrong key, an unknown model.
    """

    @property
    def name(self) -> str: ...

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]: ...


class Request(msgspec.Struct, frozen=True):
    """A text to be written: the name of a file in `judges/prompts`, and what it is filled with."""

    prompt: Literal["claims", "lure", "condense", "thread_summary", "thread_synthesis"]
    fields: Mapping[str, str]


@runtime_checkable
class Writer(Protocol):
    """What can write texts on request: makes claims of an answer, invents a lure, condenses passages, sums up threads.

    Texts come in the order of the requests; `None` where none could be had. Raises `JudgeError` as a judge does.
    """

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]: ...
