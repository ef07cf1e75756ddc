"""The agents of the demo: a question answered with their evidence, without it, and with changed
evidence.
"""

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Literal, Self

import msgspec

from .. import dialects
from ..bundled import BUNDLED, bundled_json, bundled_policy
from ..errors import ConfigError, DataError, JudgeError, UnreachableError, needs
from ..hub.models import BOUNDS, CONTEXT_SETTINGS, settings_to_run
from ..inference.base import Sampling, Scorer
from ..inference.chat import ChatFormat
from ..measure.controls import Closed
from ..rewards.answer_likelihood_gap import find_mention
from ..rewards.contexts import Transcript, context_of, turn_ids
from ..rewards.declined import names_nothing
from ..rewards.turns import holds_answer
from ..rollout import Engine
from ..rollout.arguments import EnvironmentArguments
from ..rollout.served import FAILED, ServedAgent
from ..tasks import Task, load_tasks
from ..text import normalize
from ..tools import Toolbox
from ..trajectory import Evidence, Step, Trajectory
from ..world import SPLITS, Asked, Statement, bundled_world

Kind = Literal["change its fact", "put a lure there", "exchange it", "delete it"]
KINDS: dict[Kind, str] = {
    "change its fact": "The same sentence with another name. An agent that reads answers with it.",
    "put a lure there": "A text that repeats what was asked and names something else, but does not "
    "state the fact. An agent that reads is not taken in.",
    "exchange it": "A text about something else. An agent that reads says it does not know.",
    "delete it": "The search does not return it. An agent that reads says it does not know.",
}
"""What can happen to a piece of evidence, and what to expect then."""
Pair = tuple[float, float]

FOLLOWED = "The answer followed the evidence."
MEMORY = "It came from memory: nothing that it read says so."
NOTICED = "It noticed that nothing supports an answer."
ELSEWHERE = "The same answer, and other evidence still says so."
INVENTED = "The answer changed, but nothing that it read says so."

WITHOUT = "without_evidence"
"""In `Trajectory.meta`: the answer of the same policy when no search returns anything."""
_log = logging.getLogger(__name__)
_TEXTS = bundled_json("replacements.json")  # for this page alone: rewards have no built-in texts
_QUESTION = 384  # tokens that a question may add to a prompt
_TOP_K = EnvironmentArguments().search_top_k
_TURNS = 8  # of an episode, where nothing says how the policy was trained
_TOTAL = 16_384  # tokens of an episode, where the model takes more
_OPENING = Lock()  # a cache alone would let two visitors open the same agent


class Local(msgspec.Struct, frozen=True):
    """A policy that answers on this machine.

    Attributes:
        name: what a visitor chooses it by.
        title: how the page speaks of it.
        policy: a directory, a Hub id, or a bundled policy, adapters included.
        dialect: how it writes; `None`: as it was trained.
        trust_remote_code: whether Python code beside the model may be run.
    """

    name: str
    title: str
    policy: str
    dialect: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def of(cls, policy: str, dialect: str | None = None, trust_remote_code: bool = False) -> Self:
        """The policy that whoever starts the page names. Visitors are not told where it lies."""
        name, folder = policy, Path(policy).resolve()
        if policy not in BUNDLED and folder.is_dir():
            name = folder.name
            if name.startswith("checkpoint-"):
                name = f"{folder.parent.name}/{name}"
        return cls(name, f"The policy {name}", policy, dialect, trust_remote_code)


READS = Local("reads its evidence", "The agent that reads its evidence (tiny)", "tiny")
FOOLED = Local("can be fooled", "The agent that can be fooled (tiny_memory)", "tiny_memory")


class LocalAgent:
    """A policy with its tools, for one visitor at a time. It decodes greedily, so that the same
    question is answered the same way.

    Raises:
        ConfigError: where PyTorch is not installed, or the policy cannot be opened.
    """

    def __init__(self, local: Local) -> None:
        with needs("an agent here", "train"):
            from ..inference.loading import max_tokens, open_generator, seed_sampling
        source = bundled_policy(local.policy, local.dialect or "pou")
        settings: dict[str, Any] = {"turns": _TURNS, "total_tokens": _TOTAL}
        settings |= settings_to_run(source, local.dialect, (*CONTEXT_SETTINGS, *BOUNDS))
        total = settings.pop("total_tokens")
        environment = EnvironmentArguments(
            corpus="world", triples=_triples(settings["dialect"]), **settings
        )
        seed_sampling(0)  # without the bars of loading
        generator = open_generator(source, trust_remote_code=local.trust_remote_code)
        toolbox, closed = _toolboxes(environment.dialect, environment.search_top_k)
        chat = ChatFormat.of(generator.tokenizer, dialects.load(environment.dialect))
        self._longest = len(chat.prompt_ids("", toolbox.schemas)) + _QUESTION
        fits = max_tokens(generator.model, generator.tokenizer) or _TOTAL
        if fits <= self._longest:
            raise ConfigError(
                f"{local.policy} takes {fits} tokens: a question and the tools' descriptions "
                f"take {self._longest}"
            )
        limits = environment.limits(min(total, fits - self._longest))
        self.engine, self._closed = (
            Engine(generator, tools, environment.dialect, limits, Sampling(temperature=0))
            for tools in (toolbox, closed)
        )

    def ask(self, question: str) -> Iterator[Trajectory]:
        """The trajectory as it grows; the last one is complete, with the answer `WITHOUT` evidence
        in its `meta`.

        Raises:
            DataError: for a question that is empty or too long.
        """
        task = task_of(question)
        prompt = self.engine.chat.prompt_ids(task.question, self.engine.toolbox.schemas)
        if len(prompt) > self._longest:
            raise DataError("the question is too long")
        return _growing(self.engine.run, self._closed.run, task)


class Served(msgspec.Struct, frozen=True):
    """A model behind an OpenAI-compatible endpoint. Whoever starts the page names it: visitors
    choose no addresses.
    """

    url: str
    model: str

    def ask(self, question: str, key: str) -> Iterator[Trajectory]:
        """As `LocalAgent.ask`, with a visitor's key; the server's own keys are not for its
        visitors, nor is its address.

        Raises:
            DataError: for an empty question, and when the endpoint gives no answer, or refuses the
                key or the model.
        """
        task = task_of(question)
        run, closed = (
            ServedAgent(self.model, self.url, tools, turns=_TURNS, timeout=60, key=key).run
            for tools in _toolboxes("openai", _TOP_K)
        )
        try:
            yield from _growing(run, closed, task)
        except UnreachableError as error:
            _log.warning("%s", error)
            raise DataError(
                f"the server of {self.model} cannot be reached; the log of this page says more"
            ) from error
        except JudgeError as error:  # in words for whoever started the page
            _log.warning("%s", error)
            raise DataError(
                f"the server of {self.model} cannot be asked: check the key; where it is right, "
                "the "
                "server does not know this model, and the log of this page says more"
            ) from error
        except DataError as error:
            raise DataError(str(error).replace(self.url, "its server")) from error


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
        trajectory = running.result()[0]
    if trajectory.stop_reason == FAILED:
        raise DataError(f"no answer came: {trajectory.meta['why']}")
    without = closed([task])[0]
    # Token ids are of use to nobody in a browser, and are most of what a visitor's state would hold
    yield msgspec.structs.replace(
        trajectory, tokens=None, meta={**trajectory.meta, WITHOUT: without.answer}
    )


_agent = lru_cache(LocalAgent)


def agent(local: Local) -> LocalAgent:
    """The agent with a policy, opened once. Raises as `LocalAgent`."""
    with _OPENING:
        return _agent(local)


def task_of(question: str) -> Task:
    """The question, with its gold answers where it is one of the bundled ones. Raises `DataError`
    where it is empty.
    """
    question = " ".join(question.split())
    if not question:
        raise DataError("the question is empty")
    return Task("demo", question, _golds().get(question, ()))


@lru_cache
def _golds() -> dict[str, tuple[str, ...]]:
    golds: dict[str, tuple[str, ...]] = {}
    for split in SPLITS:
        for task in load_tasks("world", split):
            golds[task.question] = task.answers
    return golds


def _triples(dialect: str) -> str:
    """The facts that agents look up: none where the dialect can only search."""
    return "none" if dialects.load(dialect).search_tool else "world"


@lru_cache
def _toolboxes(dialect: str, top_k: int) -> tuple[Toolbox, Toolbox]:
    """The tools over the bundled world, and the same tools returning nothing."""
    toolbox = EnvironmentArguments(
        corpus="world", triples=_triples(dialect), dialect=dialect, search_top_k=top_k
    ).toolbox()
    return toolbox, Closed(toolbox)


class Outcome(msgspec.Struct, frozen=True):
    """What one agent did with the evidence as it was, and with the changed evidence.

    `p_yes` is the probability of its verdict "this evidence helps" before and after the change,
    where it gave one on that evidence; `p_answer` that of its old answer where it first wrote it,
    the geometric mean over its tokens.
    """

    local: Local
    before: Trajectory
    after: Trajectory
    p_yes: Pair | None
    p_answer: Pair | None
    verdict: str


def replacement(passage: Evidence, kind: Kind) -> str:
    """The text that takes the place of a passage of the bundled world; empty: the passage is
    missing.

    `"change its fact"` states the same of another object of the same relation, for example another
    capital. A lure names such a one, too, but in words of its own: it only looks like an answer.
    """
    if kind == "delete it":
        return ""
    draw = random.Random(passage.text)  # the same proposal whenever the same passage is chosen
    if kind == "exchange it":
        return draw.choice(_TEXTS["neutral"])[1]
    statement = _stated(passage)
    alike = [
        candidate
        for candidate in bundled_world().by_relation[statement.relation]
        if candidate.split == statement.split
    ]
    objects = sorted(
        {
            candidate.object
            for candidate in alike
            if not holds_answer(passage.text, candidate.object)
        }
    )
    if not objects:
        return ""
    name = draw.choice(objects)
    if kind == "put a lure there":
        lure: str = draw.choice(_TEXTS["lures"])
        return lure.format(query=f"{statement.relation} of {statement.subject}", name=name)
    return statement.saying(name).text


def run_on(
    question: str, passage: Evidence, text: str, policies: Sequence[Local] = (READS, FOOLED)
) -> Iterator[Outcome]:
    """The agents' answers where `text` stands in the place of a passage, one agent after the other.

    Every passage and triple that states the same fact is changed alike: otherwise an agent finds
    the old one with another tool. As the agents decode greedily, an episode is the same up to the
    first changed evidence.

    Raises:
        DataError: when the evidence is not from the bundled world.
    """
    statement = _stated(passage)
    edits = {
        same.text: text.strip() or None
        for same in bundled_world().by_fact[Asked(statement.subject, statement.relation)]
    }
    task = task_of(question)
    changed = msgspec.structs.replace(task, id="changed", answers=(), edits=edits)
    for local in policies:
        before, after = agent(local).engine.run([task, changed])
        p_yes, p_answer = _probed(agent(local), before, edits)
        yield Outcome(
            local=local,
            before=msgspec.structs.replace(before, tokens=None),
            after=msgspec.structs.replace(after, tokens=None),
            p_yes=p_yes,
            p_answer=p_answer,
            verdict=verdict(before, after),
        )


def needs_evidence(trajectory: Trajectory) -> bool | None:
    """Whether the answer of `ask` is another one `WITHOUT` evidence; `None` where there is none."""
    if WITHOUT not in trajectory.meta or names_nothing(trajectory):
        return None
    without = trajectory.meta[WITHOUT]
    return normalize(trajectory.answer or "") != normalize(without or "")


def verdict(before: Trajectory, after: Trajectory) -> str:
    """What became of the answer, in a sentence."""
    if names_nothing(after):
        return NOTICED
    answer = after.answer or ""
    is_read = any(
        holds_answer(f"{passage.title}\n{passage.text}", answer) for passage in after.passages
    )
    if normalize(before.answer or "") == normalize(answer):
        return ELSEWHERE if is_read else MEMORY
    return FOLLOWED if is_read else INVENTED


def _stated(passage: Evidence) -> Statement:
    statement = bundled_world().stated(passage.text)
    if statement is None:
        raise DataError("this evidence is not from the bundled world: it cannot be changed here")
    return statement


def _probed(
    asker: LocalAgent, before: Trajectory, edits: Mapping[str, str | None]
) -> tuple[Pair | None, Pair | None]:
    """`Outcome.p_yes` of the first verdict on evidence that is changed, and `Outcome.p_answer`."""
    tokens = before.tokens
    chat = asker.engine.chat
    generator = asker.engine.generator
    assert tokens is not None and isinstance(generator, Scorer)  # it is the engine's own episode
    transcript = Transcript(before, tokens, chat)
    responses = {}  # what is read now, by its step's index
    for index, step in enumerate(before.steps):
        if any(passage.text in edits for passage in step.evidence):
            responses[index] = transcript.response(index, _edited(step.evidence, edits))

    def both(step: int, place: int) -> list[list[int]]:
        """What is read before a place of a step, without the change and with it."""
        unchanged = context_of(tokens, step, place, {})
        changed = context_of(tokens, step, place, responses)
        return [unchanged, changed]

    p_yes = p_answer = None
    # The verdict after the first changed response; later ones follow from what the agent did with
    # it
    judged = _first_verdict(before.steps, after=responses)
    if judged is not None:
        place, yes = transcript.yes_at(judged)
        [[was], [now]] = generator.choice_probs(both(judged, place), [[yes]] * 2)
        p_yes = was, now
    mention = find_mention(chat.tokenizer, tokens, before.answer) if before.answer else None
    if mention is not None:
        turn, start, end = mention
        answer = turn_ids(tokens, turn)[start:end]
        [[was], [now]] = generator.choice_logprobs(both(turn, start), [[answer]] * 2)
        p_answer = math.exp(was / len(answer)), math.exp(now / len(answer))
    return p_yes, p_answer


def _edited(evidence: Sequence[Evidence], edits: Mapping[str, str | None]) -> list[Evidence]:
    """The evidence as it is now: `edits` has the new text for an old one, `None` where the passage
    is left out.
    """
    edited: list[Evidence] = []
    for passage in evidence:
        text = edits.get(passage.text, passage.text)
        if text is not None:
            edited.append(msgspec.structs.replace(passage, text=text))
    return edited


def _first_verdict(steps: Sequence[Step], after: Iterable[int]) -> int | None:
    """The first step with a verdict on the response of the step before it, one of `after`."""
    for index in after:
        following = index + 1
        if following < len(steps) and steps[following].helpful is not None:
            return following
    return None
