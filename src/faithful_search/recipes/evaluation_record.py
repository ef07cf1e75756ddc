"""How an evaluation was made: when, on what machine, by whom it was judged, what it asked, and what
the policy was tuned on before.
"""

import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..escape import printable
from ..flags import prices_of
from ..hub.models import tuned_on
from ..judges import Judge
from .evaluation_models import Models
from .evaluation_settings import EvaluationArguments


def record_of(script: EvaluationArguments, judge: Judge | None, models: Models) -> dict[str, Any]:
    """The entries of `metrics.json` beside its results.

    `tuned_on` has the questions that the policy was trained on and watched on, as far as the
    `metrics.json` beside it says so; an agent's model has none.
    """
    is_policy = script.agent_name is None
    return {
        "script": asdict(script),
        "judge": None if judge is None else judge.name,
        "tuned_on": tuned_on(script.model) if is_policy else {},
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "used": used(script, models),
    }


def hardware() -> str:
    """The machine in a few words.

    Example:
        ```python
        hardware()  # 'x86_64, 2 CPU cores, Linux'
        ```
    """
    parts = [platform.machine(), f"{os.cpu_count()} CPU cores", platform.system()]
    torch = sys.modules.get("torch")  # an evaluation of a served model does without
    if torch is not None and torch.cuda.is_available():
        parts.append(f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}")
    return ", ".join(parts)


def used(script: EvaluationArguments, models: Models) -> dict[str, Any]:
    """What the agent's model was asked in this run, without what an earlier one had asked; empty
    for a policy that is measured itself.
    """
    if models.chat is None:
        return {}
    stats = models.chat.stats
    counts: dict[str, Any] = {
        "requests": stats.calls,
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
    }
    if stats.notes:
        counts["notes"] = dict(stats.notes)
    if script.prices is None:
        return counts
    prompt, completion = prices_of(script.prices, "--prices")
    tokens = stats.prompt_tokens * prompt + stats.completion_tokens * completion
    return {**counts, "cost": tokens / 1_000_000}


def used_line(script: EvaluationArguments, models: Models) -> str:
    """The same in words, for an agent."""
    counts = used(script, models)
    line = (
        f"asked in this run: {counts['requests']:,} requests, {counts['prompt_tokens']:,} prompt "
        f"tokens and {counts['completion_tokens']:,} reply tokens"
    )
    if "cost" in counts:
        line = f"{line}, cost {counts['cost']:.4f}"
    notes = [
        f"{printable(note)} ({count:,} times)" for note, count in counts.get("notes", {}).items()
    ]
    return "\n".join([line, *notes])
