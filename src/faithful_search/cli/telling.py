"""What `faithful-search ask` shows: steps as they come, then the answer with its sources.

Styled where rich is installed and a terminal reads it, else plain lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..text import printable, shortened
from .options import echo

if TYPE_CHECKING:
    from ..measure.claims import Claim
    from ..rollout.threads import Research
    from ..trajectory import Evidence, Step

_LONGEST = 300
_STYLES = {"call": "cyan", "dim": "dim", "note": "yellow", "answer": "bold green", "unsupported": "bold yellow"}


class Teller:
    """Prints lines in a style. `quiet` prints nothing; with `several` threads each line names its thread."""

    def __init__(self, quiet: bool = False, several: bool = False) -> None:
        self.quiet, self.several = quiet, several
        self._console = None if quiet else _console()

    def say(self, text: str, style: str = "") -> None:
        """One or more lines; what files and servers wrote in them steers no terminal."""
        if self.quiet:
            return
        if self._console is None:
            echo(text)
        else:
            from rich.text import Text

            self._console.print(Text(printable(text), _STYLES.get(style, "")))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A sign on the terminal that something is being done."""
        if self._console is None:
            yield
        else:
            with self._console.status(f"{what} …"):
                yield

    def step(self, thread: int, number: int, step: Step) -> None:
        """One turn: what was thought, called and found."""
        label = f"[{thread}.{number}]" if self.several else f"[{number}]"
        thought = step.think or ""
        if step.verified is not None:
            thought = f"checks: {thought} -> {'CORRECT' if step.verified else 'INCORRECT'}"
        if step.helpful is not None:
            verdict = f"uses {', '.join(step.refs)}" if step.helpful else "nothing there helps"
            thought = f"({verdict}) {thought}"
        self.say(f"{label} {_line(thought)}")
        if step.call is not None:
            given = ", ".join(f"{name}={value!r}" for name, value in step.call.arguments.items())
            self.say(f"    {step.call.name}({_line(given)})", "call")
        for item in step.evidence:
            self.say(f"      {_source(item)}", "dim")
        if step.note:
            self.say(f"      {_line(step.note)}", "note")

    def answer(self, found: Research, claims: Sequence[Claim]) -> None:
        """The answer, how it was chosen, which evidence supports each of its claims, and that evidence."""
        from ..measure.claims import distinct
        from ..rewards import cited_evidence

        trajectory = found.trajectory
        self.say("")
        if found.by != "thread":
            given = "; ".join(_line(one.answer or f"none ({one.stop_reason})") for one in found.threads)
            self.say(f"threads: {given}", "dim")
        if trajectory.answer is None:
            return
        if found.by != "thread":
            self.say(f"by {found.by}: {_line(trajectory.meta['research']['analysis'])}", "dim")
        self.say(f"answer: {trajectory.answer}", "answer")
        for claim in claims:
            self.say(f"  {_support(claim)}", "" if claim.supported else "unsupported")
        if not claims:
            self.say("  nothing was retrieved: it comes from memory", "unsupported")
        cited = {item.id for item in cited_evidence(trajectory)}
        shown = cited | {source for claim in claims for source in claim.sources}
        sources = [item for item in distinct(trajectory) if item.id in shown]
        if sources:
            self.say("sources:")
        for item in sources:
            self.say(f"  {_source(item)}{' (cited)' if item.id in cited else ''}")


def cost_line(cost: Mapping[str, float]) -> str:
    """What it took, in a line."""
    requests, calls = (
        f"{cost[name]:,} {what}{'s' if cost[name] != 1 else ''}"
        for name, what in (("requests", "request"), ("tool_calls", "tool call"))
    )
    tokens = f"{cost['tokens_read']:,} tokens read, {cost['tokens_written']:,} written"
    return f"{requests}, {calls}, {tokens}, {cost['seconds']:.1f} s"


def _support(claim: Claim) -> str:
    if claim.supported is None:
        return f'"{claim.text}": the judge gave no verdict'
    if claim.sources:
        return f'"{claim.text}" is supported by {", ".join(claim.sources)}'
    if claim.supported:
        return f'"{claim.text}" is supported by the evidence together'
    return f'"{claim.text}" is supported by nothing that was found'


def _source(item: Evidence) -> str:
    return f"{item.id} {' '.join(filter(None, (item.title, item.url)))}: {_line(item.text)}"


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST)


def _console() -> Any:
    """Rich's console; `None` where it is not installed or nobody watches."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, soft_wrap=True)
