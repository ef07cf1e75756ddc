"""What a judge is: it reads pairs of texts and says whether the second follows from the first."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import msgspec

from ..wire.llm import Stats
from .presets import Preset

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
LABELS = ("1", "0")
"""The replies of a model that is asked: the hypothesis follows, or it does not."""


class Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    """Does `hypothesis` follow from `premise`? A judge may read the `question`, too.

    `context` is for judges that know the facts: `tasks.world_context` of the rollout. All others
    leave it unread.
    """

    premise: str
    hypothesis: str
    question: str = ""
    task: Task = "support"
    context: str = ""

    @property
    def characters(self) -> int:
        """How many characters its texts have together."""
        return len(self.premise) + len(self.hypothesis) + len(self.question) + len(self.context)


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """`p` in [0, 1] that the hypothesis follows; `judge` names what said so, its prompt's version
    included.

    A judge that could not decide about this pair (a server that was down, a reply that cannot be
    read) abstains: `p` and `label` are `None`, and `why` says what happened.
    """

    p: float | None
    label: bool | None
    why: str = ""
    judge: str = ""

    @property
    def abstained(self) -> bool:
        return self.label is None


class Weights(NamedTuple):
    """Which model answers: the Hub id or directory it was read from, its revision there, and its
    licence where that is known.
    """

    source: str = ""
    revision: str | None = None
    licence: str = ""

    def record(self) -> dict[str, str]:
        """What is known of them, as provenance states it.

        Example:
            >>> Weights("me/judge", licence="MIT").record(), Weights().record()
            ({'source': 'me/judge', 'licence': 'MIT'}, {})
        """
        return {name: value for name, value in self._asdict().items() if value}


def weights_of(source: str, model: Any) -> Weights:
    """The weights of an opened Transformers model, which may not say where it is from."""
    config = getattr(model, "config", None)
    source = source or getattr(config, "name_or_path", "")
    return Weights(source, getattr(config, "_commit_hash", None))


class Judge(ABC):
    """Gives verdicts on pairs; a subclass needs a `name` and `judge_batch`.

    A judge in a file of its own is found by the file's name, as `--judge` and `judges.load` take
    it; a file outside the package by its path, or by an entry point of the group
    `faithful_search.judges`. All other members have defaults. They fit a judge that runs in this
    process, costs nothing and reads each pair by itself. A dataclass may make one of them a field,
    which then needs a default.
    """

    needs_model: ClassVar[bool] = False
    """Whether `open` needs the name of a model."""
    preset: ClassVar[Preset | None] = None
    """The published weights that are opened where no model is named."""
    flags: ClassVar[tuple[str, ...]] = ()
    """The settings of `open` that the flags `--judge_…` of recipes and commands set."""

    if TYPE_CHECKING:  # at run time a property would stand in the way of a dataclass's field

        @property
        def name(self) -> str:
            """What results and verdicts call the judge, such as `kind:model`."""

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        """The judge with a model, a Hub id or a directory where it needs one, and settings.

        Raises `ConfigError` when it cannot be opened so.
        """
        return cls(**settings) if model is None else cls(model=model, **settings)  # type: ignore[call-arg]

    @abstractmethod
    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict for each pair, in order; a pair that could not be judged gets one that
        abstains.

        Raises `JudgeError` where nothing can be judged at all: a wrong key, an unknown model.
        """

    @property
    def lexical(self) -> bool:
        """Whether it only compares words: results are then named so, see `judges.made_by`.

        Raises `JudgeError` for a served judge whose server is down, as `reads_queries` does.
        """
        return False

    @property
    def reads_queries(self) -> bool:
        """Whether it can tell if passages state what a query asks for (the task `states`).

        Judges that compare texts cannot: nothing follows from a query, and what is near its topic
        is what has to be told apart.
        """
        return True

    @property
    def together(self) -> bool:
        """Whether claims on the same evidence are judged by one prompt about all of them."""
        return False

    @property
    def concurrency(self) -> int | None:
        """How many requests are under way at once; `None` where the judge runs in this process."""
        return None

    @property
    def stats(self) -> Stats | None:
        """What asking has taken so far; `None` where nothing is counted."""
        return None

    @property
    def weights(self) -> Weights:
        """The model whose weights its verdicts depend on."""
        return Weights()

    def keeping(self, path: Path) -> AbstractContextManager[None]:
        """A context in which answers that cost money, and that no cache keeps, are kept in this
        file.
        """
        return nullcontext()

    def reporting(self, on_progress: Callable[[int], object]) -> "Judge":
        """A judge like this one that calls `on_progress` with the number of pairs finished since
        the last call. One that takes no time returns itself, and calls nothing.
        """
        return self


class Request(msgspec.Struct, frozen=True):
    """A text to be written: the name of a file in `judges/prompts`, and what it is filled with."""

    prompt: Literal["claims", "lure", "condense", "rubric", "thread_summary", "thread_synthesis"]
    fields: Mapping[str, str]


class Writer(ABC):
    """Writes texts on request: the claims of an answer, a lure, what passages say about a query,
    what is wrong with a trajectory, the summary of a thread.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """What results and caches call the writer."""

    @abstractmethod
    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        """The texts in the order of the requests; `None` where none could be had. Raises
        `JudgeError` as a judge does.
        """

    @property
    def writing(self) -> Mapping[str, Any]:
        """The settings that its texts depend on besides its name and the request."""
        return {}
