"""Episodes of the gold answer alone: the supervised baseline that neither searches nor thinks."""

from collections.abc import Sequence

from .. import dialects
from ..dialects.base import Dialect
from ..errors import ConfigError, DataError
from ..tasks import Task
from ..trajectory import Step, Trajectory
from .filtering import as_written

ANSWERS = "answers"
"""The kind of questions (`--source_kind`) of which these episodes are made."""


def check_dialect(dialect: Dialect) -> None:
    """Raise `ConfigError` for a dialect whose prompt asks for a search."""
    if dialect.needs_tools:
        others = [name for name in dialects.names() if not dialects.load(name).needs_tools]
        raise ConfigError(
            f"--source_kind {ANSWERS} trains on answers without a search, and the prompt of the "
            f"dialect {dialect.name!r} asks for one: give --dialect {' or '.join(others)}"
        )


def bare_answers(tasks: Sequence[Task], number: int, dialect: Dialect) -> list[Trajectory]:
    """An episode for each task in turn, `number` in all, with the first gold answer.

    Raises `DataError` where no task has a gold answer; those without one are left out.
    """
    answered = [task for task in tasks if task.answers]
    if not answered:
        raise DataError(f"none of {len(tasks)} questions has a gold answer to train on")
    episodes = []
    for place in range(number):
        copy, task_number = divmod(place, len(answered))
        task = answered[task_number]
        episode = Trajectory(
            steps=(Step(think="", answer=task.answers[0]),),
            question=task.question,
            answer=task.answers[0],
            stop_reason="answered",
            id=f"{task.id}#{copy}" if copy else task.id,
            answers=task.answers,
        )
        episodes.append(as_written(episode, dialect))
    return episodes
