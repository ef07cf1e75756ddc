"""Questions that are named instead of given as a file, and suites, which are sets of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Rows = Iterable[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class QuestionSource:
    """Questions that `load_tasks` knows by name, and the judges that know their facts.

    Args:
        names: the names of its sets of questions. One of them may also name its corpus and triples.
        rows: given one of the names and a split, the rows of that set, with the columns that
            `tasks.task_from_row` reads. Raises `DataError` for a split that it does not have.
        judges: the judges that know the facts behind the questions, so that nothing need be
            compared and no model asked: by name, where the class is, as `module:Class`.
        has_corpus: whether they come with the passages that they are answered from, under one of
            their names. They cannot be asked of another corpus, nor others of theirs.
    """

    names: tuple[str, ...]
    rows: Callable[[str, str], Rows]
    judges: Mapping[str, str] = field(default_factory=dict)
    has_corpus: bool = False


@dataclass(frozen=True)
class QuestionSet:
    """One row of a table of results.

    Args:
        name: what the row is called, as `hotpotqa`.
        source: what `tasks.load_tasks` takes: a name that is known here, a file, an id on the Hub.
        split: the split of that source; files have none and ignore it.
        limit: how many questions are asked; `None` for all.
        seed: by which they are drawn uniformly; `None` for the first ones.
        corpus: what `LocalSearch` searches for these questions; `None` for what the user gives.
    """

    name: str
    source: str
    split: str
    limit: int | None = None
    seed: int | None = None
    corpus: str | None = None


@dataclass(frozen=True)
class AgentLimits:
    """What bounds agents that need no training on a suite, with a model on this machine and where
    the user does not say otherwise.

    Args:
        turns: how many turns of an episode may call tools; `None` for the agent's own number.
        turn_tokens: tokens of a reply; `None` for the usual ones.
        controls: how many questions of each set are asked again without their evidence, and in
            changed worlds; `None` for the usual number.
    """

    turns: int | None = None
    turn_tokens: int | None = None
    controls: int | None = None

    def __str__(self) -> str:
        parts = {
            "turns": self.turns,
            "tokens a reply": self.turn_tokens,
            "questions with controls": self.controls,
        }
        return ", ".join(f"{value} {name}" for name, value in parts.items() if value is not None)


@dataclass(frozen=True)
class Suite:
    """The question sets of one table of results.

    Args:
        name: as `suites.load_suite` knows it, or the stem of its file.
        about: whose table it is, and what is not known of how its questions were drawn.
        sets: in the order of the table's rows.
        left_out: a line for each set whose files are not there, which says where they were
            looked for. Who prints results prints these lines, too.
        agents: what bounds agents on it.
    """

    name: str
    about: str
    sets: tuple[QuestionSet, ...]
    left_out: tuple[str, ...] = ()
    agents: AgentLimits = AgentLimits()
