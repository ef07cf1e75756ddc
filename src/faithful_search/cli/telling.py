"""What `faithful-search ask` shows: steps as they come, then the answer with its sources; coloured in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..text import printable, shortened

if TYPE_CHECKING:
    from ..measure.claims import Claim
    from ..rollout.threads import Research
    from ..trajectory import Evidence, Step

_LONGEST = 300
_STYLES: dict[str, dict[str, Any]] = {
    "": {},
    "call": {"fg": "cyan"},
    "dim": {"dim": True},
    "note": {"fg": "yellow"},
    "answer": {"fg": "green", "bold": True},
    "unsupported": {"fg": "yellow", "bold": True},
}


@dataclass(frozen=True)
class Teller:
    """Prints lines in a style. `quiet` prints nothing; with `several` threads each line names its thread."""

    quiet: bool = False
    several: bool = False

    def say(self, text: str, style: str = "") -> None:
        """Print one or more lines; control characters of files and servers are spelled out."""
        if not self.quiet:
            click.secho(printable(text), **_STYLES[style])

    def wait(self, what: str) -> None:
        """Say on a terminal what takes long."""
        if sys.stdout.isatty():  # not into a file
            self.say(f"{what} …", "dim")

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

    def answer(self, found: Research, claims: Sequence[Claim], cost: Mapping[str, float]) -> None:
        """The answer, how it was chosen, which evidence supports each of its claims, that evidence, and the cost."""
        trajectory = found.trajectory
        self.say("")
        if found.by != "thread":
            given = "; ".join(_line(one.answer or f"none ({one.stop_reason})") for one in found.threads)
            self.say(f"threads: {given}", "dim")
            if trajectory.answer is not None:
                self.say(f"by {found.by}: {_line(trajectory.meta['research']['analysis'])}", "dim")
        if trajectory.answer is not None:
            self._supported(trajectory.answer, found, claims)
        requests, calls = (
            f"{cost[name]:,} {what}{'s' if cost[name] != 1 else ''}"
            for name, what in (("requests", "request"), ("tool_calls", "tool call"))
        )
        tokens = f"{cost['tokens_read']:,} tokens read, {cost['tokens_written']:,} written"
        self.say(f"{requests}, {calls}, {tokens}, {cost['seconds']:.1f} s", "dim")

    def _supported(self, answer: str, found: Research, claims: Sequence[Claim]) -> None:
        self.say(f"answer: {answer}", "answer")
        for claim in claims:
            self.say(f'  "{claim.text}"{_support(claim)}', "" if claim.supported else "unsupported")
        if not claims:
            self.say("  nothing was retrieved: it comes from memory", "unsupported")
        sources = sources_of(found, claims)
        if sources:
            self.say("sources:")
        for item, cited in sources:
            self.say(f"  {_source(item)}{' (cited)' if cited else ''}")


def sources_of(found: Research, claims: Sequence[Claim]) -> list[tuple[Evidence, bool]]:
    """The evidence that was cited or supports a claim, each passage once, and whether it was cited."""
    from ..measure.claims import distinct
    from ..rewards import cited_evidence

    cited = {item.id for item in cited_evidence(found.trajectory)}
    used = cited | {source for claim in claims for source in claim.sources}
    return [(item, item.id in cited) for item in distinct(found.trajectory) if item.id in used]


def _support(claim: Claim) -> str:
    if claim.supported is None:
        return ": the judge gave no verdict"
    if claim.sources:
        return f" is supported by {', '.join(claim.sources)}"
    return f" is supported by {'the evidence together' if claim.supported else 'nothing that was found'}"


def _source(item: Evidence) -> str:
    return f"{item.id} {' '.join(filter(None, (item.title, item.url)))}: {_line(item.text)}"


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST)
