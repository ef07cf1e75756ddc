"""Rollouts of many questions that are kept as they end, so that a long evaluation goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ..rollout import Engine
from ..rollout.episode import copies
from ..tasks import Task
from ..trajectory import Trajectory
from .ledger import Ledger
from .workers import progress_bar


def run_episodes(
    engine: Engine, tasks: Sequence[Task], what: str = "evaluating", folder: Path | None = None
) -> list[Trajectory]:
    """The engine's rollouts of the tasks, with a progress bar on a terminal.

    With a folder each is in its `{what}.jsonl` as soon as it ends, and one that is there is not run again. Whoever
    names the folder sees to it that tasks and engine are those of the earlier run.

    Raises:
        DataError: when the folder cannot be written, or holds a line that is no trajectory.
    """
    names = [name for _, name, _ in copies(tasks)]
    done: dict[str, Trajectory] = {}
    with ExitStack() as opened:
        ledger = opened.enter_context(Ledger(folder / f"{what}.jsonl", "evaluation")) if folder else None
        if ledger is not None:
            done |= {item.id or "": item for item in (Trajectory.from_json(line) for _, line in ledger.read())}
        missing = {name: task for name, task in zip(names, tasks, strict=True) if name not in done}
        # The engine counts copies among the tasks that it is given, which may be only the later ones of a question
        own = dict(zip((name for _, name, _ in copies(missing.values())), missing, strict=True))
        bar = opened.enter_context(progress_bar(total=len(tasks), initial=len(done), desc=what, unit="rollout"))

        def keep(rollout: Trajectory) -> None:
            name = own[rollout.id or ""]
            done[name] = rollout = msgspec.structs.replace(rollout, id=name)
            if ledger is not None:
                ledger.append([f"{rollout.to_json()}\n".encode()])
            bar.update(1)

        engine.run(missing.values(), on_end=keep)
    return [done[name] for name in names]
