"""What a turn costs besides the model, at the end of short and of long episodes: the engine's
`Episode`, TRL's tool loop, and the naive way.

An episode's turns are given; every one asks the bundled world's search for three passages. What is
timed for each turn: reading what was sampled (decoding and parsing), writing the tool response, its
tokenisation, and the ids that the policy sees next. The engine tokenises what is new. TRL's loop
(its own `_get_tool_suffix_ids` and `parse_response`) does too, around a dummy conversation that it
renders twice. The naive way renders and tokenises the whole conversation again each turn. The three
see the same text, and their ids are compared. Where the cost does not depend on how long the
episode is, the last turns cost what the first ones do.

    python benchmarks/bench_suffix.py [--turns 8 32 128] [--repeats 5]
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from bench_rollouts import RESPONSE, TEMPLATE
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.inference.base import Completion
from faithful_search.inference.chat import ChatFormat
from faithful_search.rollout import Episode, Limits
from faithful_search.rollout.environment import inner_text
from faithful_search.tasks import Task, load_tasks
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.tools.base import Observation
from faithful_search.trajectory import Step, ToolCall

LAST = 8
Turn = tuple[list[int], Observation]
"""What the policy samples, the end of its turn included, and what its call returns."""


class Ours:
    """The engine's way."""

    def __init__(self, chat: ChatFormat, question: str, tools: list[Any]) -> None:
        self.episode = Episode(
            Task("q", question), chat, Limits(turns=10**6, total_tokens=10**9), tools
        )

    def turn(self, ids: list[int], found: Observation) -> list[int]:
        """The ids that the policy sees after the turn."""
        assert isinstance(self.episode.take_turn(Completion(ids, "stop")), ToolCall)
        self.episode.take_observation(found)
        return self.episode.context


class Theirs:
    """TRL's way, with its own methods."""

    def __init__(self, chat: ChatFormat, question: str, tools: list[Any]) -> None:
        self.chat, self.ids = chat, chat.prompt_ids(question, tools)
        self.trainer = SimpleNamespace(
            **{"processing_class": chat.tokenizer, "_tokenizer": chat.tokenizer, "_is_vlm": False},
            **{"chat_template": TEMPLATE, "chat_template_kwargs": {}},
        )

    def turn(self, ids: list[int], found: Observation) -> list[int]:
        """The ids that the policy sees after the turn."""
        said = parse_response(self.chat.tokenizer, ids, prefix=self.ids)
        message = {
            "role": "tool",
            "name": said["tool_calls"][0]["function"]["name"],
            "content": self._text(found),
        }
        self.ids = self.ids + ids + GRPOTrainer._get_tool_suffix_ids(self.trainer, [message])
        return self.ids

    def _text(self, found: Observation) -> str:
        return inner_text(found, self.chat.dialect, self.chat.fence)


class Naive:
    """The whole conversation, rendered and tokenised again."""

    def __init__(self, chat: ChatFormat, question: str, tools: list[Any]) -> None:
        self.chat, self.messages = chat, [{"role": "user", "content": question}]
        self.tools = tools

    def turn(self, ids: list[int], found: Observation) -> list[int]:
        """The ids that the policy sees after the turn."""
        said = self.chat.tokenizer.decode(ids, skip_special_tokens=True)
        assert self.chat.dialect.parse_turn(said, first=len(self.messages) == 1).call
        self.messages.append({"role": "assistant", "content": said})
        self.messages.append(
            {"role": "tool", "content": inner_text(found, self.chat.dialect, self.chat.fence)}
        )
        return self.chat.tokenizer.apply_chat_template(
            self.messages,
            tools=self.tools,
            chat_template=TEMPLATE,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )


WAYS: dict[str, Callable[..., Any]] = {"engine": Ours, "TRL's loop": Theirs, "all again": Naive}


def script(chat: ChatFormat, toolbox: Toolbox, queries: Sequence[str]) -> list[Turn]:
    """One turn for each query."""
    session, made = toolbox.session(), []
    cites: tuple[str, ...] = ()
    for number, query in enumerate(queries):
        raw = json.dumps({"name": "local_search", "arguments": {"query": query}})
        call = ToolCall("local_search", {"query": query}, raw)
        step = Step(think="I need more.", call=call, helpful=True if number else None, refs=cites)
        [found] = toolbox.run_batch([call], [session])
        made.append((chat.encode(chat.dialect.render_turn(step)) + chat.end_ids, found))
        cites = (found.evidence[0].id,)
    return made


def seconds(state: Any, turns: Sequence[Turn]) -> tuple[list[float], list[int]]:
    """CPU seconds of each turn, and what the policy sees in the end."""
    context, took = [], []
    for ids, found in turns:
        start = time.process_time()
        context = state.turn(ids, found)
        took.append(time.process_time() - start)
    return took, context


def main() -> None:
    """Read the command line, run all ways in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy("pou"))
    tokenizer.response_template = RESPONSE
    chat = ChatFormat.of(tokenizer, dialects.load("pou"))
    queries = [task.question for task in load_tasks("world", "train", limit=max(given.turns))]
    with Toolbox([LocalSearch.from_corpus("world", top_k=3)]) as toolbox:
        turns, tools = script(chat, toolbox, queries), toolbox.schemas
    print(
        f"CPU microseconds a turn, mean of all (of the last {LAST}); each turn's best of {given.repeats} runs"
    )
    print(
        "\n| turns | tokens in the end | "
        + " | ".join(WAYS)
        + " | ours faster by |\n|"
        + "---|" * (len(WAYS) + 3)
    )
    for count in given.turns:
        print(line(chat, queries[0], tools, turns[:count], given.repeats))


def line(
    chat: ChatFormat, question: str, tools: list[Any], turns: Sequence[Turn], repeats: int
) -> str:
    """The table's line for an episode of these turns. Asserts that all ways end with the same
    ids.
    """
    runs: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    ends: dict[str, list[int]] = {}
    for _ in range(repeats):
        for name, way in WAYS.items():
            took, ends[name] = seconds(way(chat, question, tools), turns)
            runs[name].append(took)
    assert len({tuple(ids) for ids in ends.values()}) == 1, "the ways saw different text"
    best = [list(map(min, zip(*own, strict=True))) for own in runs.values()]
    cells = [
        f"{1e6 * statistics.fmean(each):.0f} ({1e6 * statistics.fmean(each[-LAST:]):.0f})"
        for each in best
    ]
    ours, *others = map(sum, best)
    ratios = " / ".join(f"{other / ours:.1f}" for other in others)
    return f"| {len(turns)} | {len(ends['engine']):,} | " + " | ".join(cells) + f" | {ratios} |"


if __name__ == "__main__":
    main()
