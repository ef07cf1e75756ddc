"""The agents of the demo: a question answered with their evidence, without it, and with changed evidence."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from queue import SimpleQueue
from threading import Lock
from typing import Literal

import msgspec

from ..bundled import bundled_policy
from ..errors import DataError
from ..inference.base import Sampling, Scorer
from ..measure.controls import Closed
from ..measure.origins import declines, holds
from ..measure.scores import open_policy
from ..rewards.answer_likelihood_gap import find_mention
from ..rewards.contexts import Transcript, context_of, turn_ids
from ..rewards.perturbation import LURES, NEUTRAL
from ..rollout import Engine
from ..rollout.arguments import EnvironmentArguments
from ..rollout.served import FAILED, ServedAgent
from ..tasks import Task, load_tasks
from ..text import normalize
from ..tools import Toolbox
from ..trajectory import Evidence, Step, Trajectory
from ..world import SPLITS, Asked, Statement, bundled_world

Kind = Literal["change its fact", "put a lure there", "exchange it", "delete it"]
Pair = tuple[float, float]

FOLLOWED = "The answer followed the evidence."
MEMORY = "It came from memory: nothing that it read says so."
NOTICED = "It noticed that nothing supports an answer."
ELSEWHERE = "The same answer, and other evidence still says so."
INVENTED = "The answer changed, but nothing that it read says so."

POLICIES = {
    "reads its evidence": "tiny",
    "can be fooled": "tiny_memory",
}  # by what a visitor is told of them
WITHOUT = "without_evidence"
"""In `Trajectory.meta`: the answer of the same policy when no search returns anything."""
_LONGEST = 448  # tokens of a question; with those of an episode what the bundled policies take
_ENVIRONMENT = EnvironmentArguments(corpus="world", triples="world", dialect="pou", turns=8)
_OPENING = Lock()  # a cache alone would let two visitors open the same agent


class Agent:
    """A bundled policy with its tools, for one visitor at a time. It decodes greedily, so that the same question is
    answered the same way.
    """

    def __init__(self, name: str) -> None:
        generator = open_policy(bundled_policy(name, "pou"), "an agent here")
        limits, sampling = _ENVIRONMENT.limits(1600), Sampling(temperature=0)
        self.engine, self._closed = (
            Engine(generator, tools, "pou", limits, sampling) for tools in _toolboxes()
        )

    def ask(self, question: str) -> Iterator[Trajectory]:
        """The trajectory as it grows; the last one is complete, with the answer `WITHOUT` evidence in its `meta`.

        Raises:
            DataError: for a question that is empty or too long.
        """
        task = task_of(question)
        if len(self.engine.chat.prompt_ids(task.question, [])) > _LONGEST:
            raise DataError("the question is too long")
        return _growing(self.engine.run, self._closed.run, task)


class Served(msgspec.Struct, frozen=True):
    """A model behind an OpenAI-compatible endpoint. Whoever starts the page names it: visitors choose no addresses."""

    url: str
    model: str

    def ask(self, question: str, key: str) -> Iterator[Trajectory]:
        """As `Agent.ask`, with a visitor's key; the server's own keys are not for its visitors.

        Raises:
            DataError: for an empty question, and when the endpoint gives no answer.
            JudgeError: when it refuses the key or the model.
        """
        task = task_of(question)
        run, closed = (
            ServedAgent(self.model, self.url, tools, turns=8, timeout=60, key=key).run
            for tools in _toolboxes()
        )
        return _growing(run, closed, task)


def _growing(
    run: Callable[..., list[Trajectory]], closed: Callable[..., list[Trajectory]], task: Task
) -> Iterator[Trajectory]:
    steps: SimpleQueue[Step | None] = SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, [task], on_step=lambda _, step: steps.put(step))
        running.add_done_callback(lambda _: steps.put(None))
        grown: tuple[Step, ...] = ()
        while (step := steps.get()) is not None:
            grown += (step,)
            yield Trajectory(grown, task.question, answers=task.answers)
        found = running.result()[0]
    if found.stop_reason == FAILED:
        raise DataError(f"no answer came: {found.meta['why']}")
    without = closed([task])[0]
    # Token ids are of use to nobody in a browser, and are most of what a visitor's state would hold
    yield msgspec.structs.replace(found, tokens=None, meta={**found.meta, WITHOUT: without.answer})


_agent = lru_cache(Agent)


def agent(name: str) -> Agent:
    """The agent of one of `POLICIES`, opened once. Raises `ConfigError` where PyTorch is not installed."""
    with _OPENING:
        return _agent(name)


def task_of(question: str) -> Task:
    """The question, with its gold answers where it is one of the bundled ones. Raises `DataError` where it is empty."""
    if not (question := " ".join(question.split())):
        raise DataError("the question is empty")
    return Task("demo", question, _golds().get(question, ()))


@lru_cache
def _golds() -> dict[str, tuple[str, ...]]:
    return {task.question: task.answers for split in SPLITS for task in load_tasks("world", split)}


@lru_cache
def _toolboxes() -> tuple[Toolbox, Toolbox]:
    toolbox = _ENVIRONMENT.toolbox()
    return toolbox, Closed(toolbox)


class Outcome(msgspec.Struct, frozen=True):
    """What one agent did with the evidence as it was, and with the changed evidence.

    `p_yes` is the probability of its verdict "this evidence helps" before and after the change, where it gave one on
    that evidence; `p_answer` that of its old answer where it first wrote it, the geometric mean over its tokens.
    """

    policy: str
    before: Trajectory
    after: Trajectory
    p_yes: Pair | None
    p_answer: Pair | None
    verdict: str


def replacement(item: Evidence, kind: Kind) -> str:
    """The text that takes the place of a passage of the bundled world; empty: the passage is missing.

    `"change its fact"` states the same of another object of the same relation, for example another capital. A lure
    names such a one, too, but in words of its own: it only looks like an answer.
    """
    if kind == "delete it":
        return ""
    draw = random.Random(item.text)  # the same proposal whenever the same passage is chosen
    if kind == "exchange it":
        return draw.choice(NEUTRAL)[1]
    told = _stated(item)
    alike = [
        other for other in bundled_world().by_relation[told.relation] if other.split == told.split
    ]
    others = sorted({other.object for other in alike if not holds(item.text, other.object)})
    if not others:
        return ""
    other = draw.choice(others)
    if kind == "put a lure there":
        return draw.choice(LURES).format(query=f"{told.relation} of {told.subject}", name=other)
    return told.saying(other).text


def run_on(question: str, item: Evidence, text: str) -> Iterator[Outcome]:
    """Both agents' answers where `text` stands in the place of a passage, one agent after the other.

    Every passage and triple that states the same fact is changed alike: otherwise an agent finds the old one with
    another tool. As the agents decode greedily, an episode is the same up to the first changed evidence.

    Raises:
        DataError: when the evidence is not from the bundled world.
    """
    told = _stated(item)
    edits = {
        same.text: text.strip() or None
        for same in bundled_world().by_fact[Asked(told.subject, told.relation)]
    }
    task = task_of(question)
    changed = msgspec.structs.replace(task, id="changed", answers=(), edits=edits)
    for name in POLICIES.values():
        before, after = agent(name).engine.run([task, changed])
        yield Outcome(
            name, before, after, *_probed(agent(name), before, edits), verdict(before, after)
        )


def verdict(before: Trajectory, after: Trajectory) -> str:
    """What became of the answer, in a sentence."""
    if declines(after.answer):
        return NOTICED
    answer = after.answer or ""
    read = any(holds(f"{item.title}\n{item.text}", answer) for item in after.evidence.values())
    if normalize(before.answer or "") == normalize(answer):
        return ELSEWHERE if read else MEMORY
    return FOLLOWED if read else INVENTED


def _stated(item: Evidence) -> Statement:
    told = bundled_world().stated(item.text)
    if told is None:
        raise DataError("this evidence is not from the bundled world: it cannot be changed here")
    return told


def _probed(
    own: Agent, before: Trajectory, edits: Mapping[str, str | None]
) -> tuple[Pair | None, Pair | None]:
    """`Outcome.p_yes` of the first verdict on evidence that is changed, and `Outcome.p_answer`."""
    tokens, chat, generator = before.tokens, own.engine.chat, own.engine.generator
    assert tokens is not None and isinstance(generator, Scorer)  # it is the engine's own episode
    transcript = Transcript(before, tokens, chat)
    responses = {}  # what is read now, by its step's index
    for index, step in enumerate(before.steps):
        if any(item.text in edits for item in step.evidence):
            shown = [(item, edits.get(item.text, item.text)) for item in step.evidence]
            evidence = [
                msgspec.structs.replace(item, text=text) for item, text in shown if text is not None
            ]
            responses[index] = transcript.response(index, evidence)

    def both(step: int, place: int) -> list[list[int]]:
        return [context_of(tokens, step, place, known) for known in ({}, responses)]

    p_yes = p_answer = None
    judged = [
        at + 1
        for at in responses
        if at + 1 < len(before.steps) and before.steps[at + 1].helpful is not None
    ]
    if judged:
        # The verdict after the first changed response; later ones follow from what the agent did with it
        place, yes = transcript.yes_at(judged[0])
        [[was], [now]] = generator.choice_probs(both(judged[0], place), [[yes]] * 2)
        p_yes = was, now
    if before.answer and (first := find_mention(chat.tokenizer, tokens, before.answer)):
        turn, start, end = first
        answer = turn_ids(tokens, turn)[start:end]
        [[was], [now]] = generator.choice_logprobs(both(turn, start), [[answer]] * 2)
        p_answer = math.exp(was / len(answer)), math.exp(now / len(answer))
    return p_yes, p_answer
