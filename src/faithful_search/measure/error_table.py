"""Why episodes fail: wrong answers, wrong formatting, or limits (trajectory-level self-evaluation, table 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..rewards import Correctness
from ..trajectory import Trajectory

KINDS = ("wrong answer", "wrong formatting", "limits")


def error_of(trajectory: Trajectory) -> str | None:
    """One of `KINDS`, or `None` where the answer is an exact match.

    An episode that ran into a limit of turns or tokens counts there, whatever else is wrong with it; one that ended
    otherwise without an answer had no valid action.
    """
    if Correctness().score(trajectory).value == 1.0:
        return None
    if (trajectory.stop_reason or "").endswith("_limit"):  # turn_limit, token_limit, turn_token_limit
        return "limits"
    return "wrong answer" if (trajectory.answer or "").strip() else "wrong formatting"


def error_counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many episodes failed for each reason, and `total` of them; `episodes` is how many there are."""
    found = Counter(filter(None, map(error_of, trajectories)))
    return {**{kind: found[kind] for kind in KINDS}, "total": found.total(), "episodes": len(trajectories)}


def error_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """A Markdown table of several agents' `error_counts`, with each reason's share of the errors."""
    lines = [f"| | {' | '.join(KINDS)} | total | of episodes |", f"|{'---|' * (len(KINDS) + 3)}"]
    for agent, found in counts.items():
        total = found["total"]
        shares = [f"{found[kind]} ({found[kind] / total:.0%})" if total else "0" for kind in KINDS]
        lines.append(f"| {agent} | {' | '.join(shares)} | {total} | {found['episodes']} |")
    return "\n".join(lines)
