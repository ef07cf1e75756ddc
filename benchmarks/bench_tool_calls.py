"""The tool calls of one turn: `Toolbox.run_batch` against TRL's tool loop, the same tool waiting 50
ms in both.

TRL's own `GRPOTrainer._tool_call_loop` runs here, unchanged, on an object that holds just what it
reads. Generation after the calls and the templating of their results cost nothing in it: what is
timed is the calls and the bookkeeping around them. The toolbox runs as many calls at once as there
are rollouts (its default is 64).

    python benchmarks/bench_tool_calls.py [--rollouts 16 64 256] [--wait 0.05] [--repeats 3]
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from faithful_search.tools import Tool, Toolbox
from faithful_search.trajectory import Evidence, ToolCall


@dataclass(frozen=True)
class Slow(Tool):
    """A search that waits as a network would."""

    wait: float = 0.05
    name: str = "slow"

    async def slow(self, query: str) -> list[Evidence]:
        """Search slowly.

        Args:
            query: The words to search for.
        """
        await asyncio.sleep(self.wait)
        return [Evidence(text=query)]


def time_toolbox(rollouts: int, wait: float) -> float:
    """Seconds that one batch of calls takes; the toolbox, as in training, is already up."""
    calls = [ToolCall("slow", {"query": f"query {n}"}) for n in range(rollouts)]
    with Toolbox([Slow(wait)], concurrency=rollouts) as toolbox:
        toolbox.run_batch(calls[:1], [toolbox.session()])
        sessions = [toolbox.session() for _ in calls]
        return _timed(
            lambda: toolbox.run_batch(calls, sessions),
            check=lambda found: len(found[-1].evidence) == 1,
        )


def time_trl(rollouts: int, wait: float) -> float:
    """Seconds that TRL's loop takes for the same calls."""
    from trl import GRPOTrainer
    from trl.trainer.utils import shutdown_event_loop_in_daemon, start_event_loop_in_daemon

    thread, loop, ready = start_event_loop_in_daemon(name="trl-tools")
    ready.wait()
    call = GRPOTrainer._tool_call_loop
    prompts: list[Any] = [[{"role": "user", "content": "question"}] for _ in range(rollouts)]
    completions = [[_assistant(n)] for n in range(rollouts)]
    ids = [[1] for _ in range(rollouts)]
    trainer = _trainer(rollouts, wait, loop)
    try:
        return _timed(
            lambda: call(trainer, prompts, ids, [[2] for _ in ids], completions, None, None, {}),
            check=lambda _: all(len(messages) == 2 for messages in completions),
        )
    finally:
        shutdown_event_loop_in_daemon(thread, loop)


def _assistant(number: int) -> dict[str, Any]:
    function = {"name": "slow", "arguments": {"query": f"query {number}"}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function}],
    }


def _trainer(rollouts: int, wait: float, loop: asyncio.AbstractEventLoop) -> SimpleNamespace:
    tool = Slow(wait).slow
    return SimpleNamespace(
        max_tool_calling_iterations=1,
        max_completion_length=64,
        environment_factories=None,
        tools=[tool],
        async_loop=loop,
        use_vllm=False,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=1024)),
        _is_vlm=False,
        _tokenizer=None,
        _sync_tool_dicts=[{}] * rollouts,
        _async_tool_dicts=[{"slow": tool}] * rollouts,
        _get_tool_suffix_ids=lambda messages: [3],
        _generate_single_turn=lambda ids, *_, **__: ([[] for _ in ids], None),
    )


def _timed(work: Callable[[], Any], check: Callable[[Any], bool]) -> float:
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    if not check(result):
        raise RuntimeError("the calls did not return what they should")
    return seconds


def main() -> None:
    """Print the median seconds of each and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--wait", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(f"one turn, one call of {given.wait * 1000:g} ms per rollout, median of {given.repeats}")
    print(f"{'rollouts':>8} {'toolbox':>10} {'TRL loop':>10} {'ratio':>7}")
    for rollouts in given.rollouts:
        ours, theirs = (
            statistics.median(run(rollouts, given.wait) for _ in range(given.repeats))
            for run in (time_toolbox, time_trl)
        )
        print(f"{rollouts:>8} {ours:>8.3f} s {theirs:>8.3f} s {theirs / ours:>6.1f}x")


if __name__ == "__main__":
    main()
