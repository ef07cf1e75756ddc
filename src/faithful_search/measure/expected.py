"""What an evaluation would ask of endpoints, before any is asked.

A few questions are played through with a stand-in for the model, which is never satisfied: it
searches again until its turns are used up, in replies of full length. So its requests are the most
that an episode can have. The least is the first of them alone: a model that answers at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..rollout import Agent
from ..tasks import Task
from ..tools.base import Observation
from ..tools.lane import Lane
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, Step, ToolCall, Trajectory
from ..wire.llm import Messages, Stats

CHARACTERS_PER_TOKEN = 4
"""About, in English; where no tokenizer is here to count with."""
PASSAGE_CHARACTERS = 600
"""About what a passage of Wikipedia has, in the corpora that search agents are measured on."""
_ACTION = re.compile(r"^(\w+): ", re.MULTILINE)  # the first action that a ReAct prompt lists
_WORD = "searching "


def tokens_of(text: str) -> int:
    """About how many tokens a text has.

    Example:
        >>> tokens_of("Who wrote the novel?")
        5
    """
    return len(text) // CHARACTERS_PER_TOKEN


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What episodes would ask of their model.

    Attributes:
        episodes: their number.
        least_requests: where each of them answered at once.
        most_requests: where each of them used all its turns.
        least_prompt_tokens, most_prompt_tokens: of these requests.
        most_completion_tokens: where each reply were of full length.
    """

    episodes: int
    least_requests: int
    most_requests: int
    least_prompt_tokens: int
    most_prompt_tokens: int
    most_completion_tokens: int

    def cost(self, prices: tuple[float, float]) -> float:
        """The most that it may cost, at the prices of a million prompt and completion tokens."""
        prompt, completion = prices
        return (
            self.most_prompt_tokens * prompt + self.most_completion_tokens * completion
        ) / 1_000_000


def total(parts: Iterable[Expected]) -> Expected:
    """What all these would ask together."""
    sums = dict.fromkeys(Expected.__struct_fields__, 0)
    for part in parts:
        for name in sums:
            sums[name] += getattr(part, name)
    return Expected(**sums)


class AssumedPassages(Toolbox):
    """The tools of another toolbox, none of which is asked: each call returns passages of the usual
    length.
    """

    def __init__(self, inner: Toolbox, passages: int) -> None:
        # a cached result would be returned without `_run`
        super().__init__(list(inner.tools.values()), **{**inner.settings, "cache": None})
        self._passages = tuple(
            Evidence(text="x" * PASSAGE_CHARACTERS, source=str(number))
            for number in range(passages)
        )

    async def _run(self, lane: Lane, call: ToolCall, key: str) -> Observation:
        return Observation(evidence=self._passages)


class StandIn:
    """A model that is not asked: an `agents.ChatModel` that wants to search again, in the ways of
    all agents at once, until its reply is full.

    Args:
        count: how many tokens a text has.
        reply: makes the agents' `ModelReply` of a text.

    Attributes:
        prompts: the tokens of the requests of the last session.
    """

    name = "stand-in"
    tokenizer: Any = None

    def __init__(self, count: Callable[[str], int], reply: Callable[[str], Any]) -> None:
        self.stats = Stats()
        self.prompts: list[int] = []
        self._count = count
        self._reply = reply

    @contextmanager
    def session(self) -> Iterator[None]:
        self.prompts = []
        yield

    async def reply(
        self,
        messages: Messages,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Any:
        texts = [str(message["content"]) for message in messages]
        self.prompts.append(sum(map(self._count, texts)))
        actions = _ACTION.search(texts[0])
        action = "search" if actions is None else actions[1]
        thought = _thought_of_length(max_tokens)
        query = "<|begin_search_query|>words<|end_search_query|>"
        return self._reply(f"Thought: {thought}{query}\nAction: {action}\nAction Input: words")


def expected_of_played(
    agent: Agent,
    model: StandIn,
    tasks: Sequence[Task],
    played: Sequence[Task],
    max_tokens: int,
    total_tokens: int,
) -> Expected:
    """What an agent would ask its model for all these tasks, measured on a few of them.

    Args:
        agent: the agent, which asks `model`.
        tasks: all tasks.
        played: the few that are played.
        max_tokens: tokens of a reply at most.
        total_tokens: tokens of all replies of an episode at most.
    """
    first_prompt_tokens = []
    requests = []
    prompt_tokens = []
    for task in played:
        agent.run([task])  # it calls `model.begin`, so that `prompts` are of this episode alone
        first_prompt_tokens.append(sum(model.prompts[:1]))  # 0 for an agent that asked nothing
        requests.append(len(model.prompts))
        prompt_tokens.append(sum(model.prompts))
    most_requests = _scaled(requests, tasks)
    return Expected(
        episodes=len(tasks),
        least_requests=len(tasks),
        most_requests=most_requests,
        least_prompt_tokens=_scaled(first_prompt_tokens, tasks),
        most_prompt_tokens=_scaled(prompt_tokens, tasks),
        most_completion_tokens=min(most_requests * max_tokens, len(tasks) * total_tokens),
    )


def expected_of_turns(
    prompts: Sequence[int], response: int, tasks: Sequence[Task], turns: int, max_tokens: int
) -> Expected:
    """What an agent would ask for all these tasks if each request repeats all that came before it.

    ```
    most prompt tokens of an episode = T·p + (r + m)·T·(T − 1) / 2
    ```

    Args:
        prompts: the tokens p of the first prompts of a few tasks.
        response: the tokens r of a tool response.
        tasks: all tasks.
        turns: the number of turns of an episode, T.
        max_tokens: the tokens m of a reply at most.
    """
    repeated = (response + max_tokens) * turns * (turns - 1) // 2
    return Expected(
        episodes=len(tasks),
        least_requests=len(tasks),
        most_requests=len(tasks) * turns,
        least_prompt_tokens=_scaled(prompts, tasks),
        most_prompt_tokens=turns * _scaled(prompts, tasks) + len(tasks) * repeated,
        most_completion_tokens=len(tasks) * turns * max_tokens,
    )


def _thought_of_length(tokens: int) -> str:
    """A text without meaning of about so many tokens."""
    return _WORD * (tokens * CHARACTERS_PER_TOKEN // len(_WORD))


def _scaled(measured: Sequence[int], tasks: Sequence[Task]) -> int:
    """The sum over all tasks, from the values that were measured on a few."""
    return round(sum(measured) / len(measured) * len(tasks))


def stand_in_episode(
    task: Task, passages: int, turns: int, max_tokens: int, dialect: str
) -> Trajectory:
    """An episode that searches in each of its turns, thinks at full length, cites what it reads and
    answers wrongly: what a judge would be asked about most.
    """
    thought = _thought_of_length(max_tokens)
    steps = []
    refs: tuple[str, ...] = ()  # the ids of the last search's passages, which the next step cites
    for turn in range(turns):
        evidence = tuple(
            Evidence(text="x" * PASSAGE_CHARACTERS, id=f"E{turn * passages + number + 1}")
            for number in range(passages)
        )
        call = ToolCall("local_search", {"query": f"{task.question} {turn}"})
        helpful = True if refs else None  # the first step has nothing yet to give a verdict on
        steps.append(Step(think=thought, helpful=helpful, refs=refs, call=call, evidence=evidence))
        refs = tuple(passage.id for passage in evidence)
    answer = f"not {' nor '.join(task.answers)}"
    helpful = True if refs else None
    steps.append(Step(think=thought, helpful=helpful, refs=refs, answer=answer))
    return Trajectory(
        steps=tuple(steps),
        question=task.question,
        answer=answer,
        stop_reason="answered",
        dialect=dialect,
        id=task.id,
        answers=task.answers,
    )
