"""A line on standard error that says what a model is doing, since a turn may take minutes.

The line is overwritten as it changes, and hidden while anything else is printed. There is none
where standard error is not a terminal.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

import click

from ..escape import as_line

if TYPE_CHECKING:
    from ..rollout import Agent
    from ..wire.llm import Stats

_UPDATE_SECONDS = 0.2
_TICK_SECONDS = 1.0
_TAIL_TOKENS = 24
"""The last tokens of a turn that are shown while it is written."""


class StatusLine:
    """One line of a terminal that can be replaced, hidden and closed."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._width = 0

    def show(self, text: str) -> None:
        """Replace the line by a text, cut to the width of the terminal."""
        with self._lock:
            self._erase()
            text = text[: max(0, _columns() - 1)]
            click.secho(text, nl=False, err=True, dim=True)
            self._width = len(text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Within the block there is no line, so that others may print."""
        with self._lock:
            self._erase()
            yield

    def close(self) -> None:
        """Take the line away for good."""
        with self._lock:
            self._erase()

    def _erase(self) -> None:
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", nl=False, err=True)
            self._width = 0


class Writing(StatusLine):
    """Says how many tokens of its turn a local model has written, and how the text ends so far."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._updated = 0.0

    def __call__(self, rows: Sequence[list[int]]) -> None:
        """Show the tokens sampled so far, a row for each sequence; the generator calls this."""
        now = time.monotonic()
        if now - self._updated < _UPDATE_SECONDS:
            return
        self._updated = now
        tokens = sum(map(len, rows))
        threads = f" in {len(rows)} threads" if len(rows) > 1 else ""
        head = f"writing, {tokens:,} tokens{threads}: … "
        text = self._tokenizer.decode(rows[0][-_TAIL_TOKENS:], skip_special_tokens=False)
        tail = as_line(" ".join(text.split()))
        room = max(0, _columns() - 1 - len(head))
        self.show(head + tail[max(0, len(tail) - room) :])


class Waiting(StatusLine):
    """Says how long a served model has been taking for its turn, and what it has done so far.

    A thread updates the line, since the program itself waits for the server.
    """

    def __init__(self, stats: "Stats") -> None:
        super().__init__()
        self._stats = stats
        self._turn_began = time.monotonic()
        self._closed = Event()
        self._thread = Thread(target=self._tick, daemon=True)
        self._thread.start()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        with super().hidden():
            yield
            self._turn_began = time.monotonic()  # what was printed ended a turn

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        super().close()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_SECONDS):
            seconds = time.monotonic() - self._turn_began
            tokens = f"{self._stats.completion_tokens:,} tokens written so far"
            self.show(f"waiting for request {self._stats.calls:,}, {seconds:.0f} s; {tokens}")


def status_line(agent: "Agent") -> StatusLine | None:
    """The line for an agent that is about to run; `None` where nobody would see it."""
    if not sys.stderr.isatty():
        return None
    from ..agents import PolicyModel, ServedModel
    from ..rollout import ServedAgent
    from ..rollout.threads import Metered

    asked: Any = agent  # what is asked: the agent itself, or its model
    model = getattr(agent, "model", None)
    if isinstance(model, PolicyModel | ServedModel):
        asked = model
    if isinstance(asked, ServedAgent | ServedModel):
        return Waiting(asked.stats)
    generator: Any = getattr(asked, "generator", None)
    if isinstance(generator, Metered):
        generator = generator.generator
    if not hasattr(generator, "on_tokens"):  # a policy here, on Transformers
        return None
    line = Writing(generator.tokenizer)
    generator.on_tokens = line
    return line


def _columns() -> int:
    return shutil.get_terminal_size().columns
