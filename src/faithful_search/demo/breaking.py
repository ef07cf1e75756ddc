"""Change what an agent reads, let two agents answer again, and say in a sentence what became of the answer."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from ..errors import DataError
from ..inference.base import Scorer
from ..measure.origins import declines, holds
from ..rewards.answer_likelihood_gap import find_mention
from ..rewards.contexts import choice_ids, context_of, locate_verdict, turn_ids
from ..rewards.perturbation import LURES, NEUTRAL
from ..text import normalize
from ..tools.base import NO_RESULTS
from ..trajectory import Evidence, Trajectory
from ..world import Asked, Statement, bundled_world
from .agents import POLICIES, Agent, agent, task_of

Kind = Literal["change its fact", "put a lure there", "exchange it", "delete it"]
Pair = tuple[float, float]

FOLLOWED = "The answer followed the evidence."
MEMORY = "It came from memory: nothing that it read says so."
NOTICED = "It noticed that nothing supports an answer."
ELSEWHERE = "The same answer, and other evidence still says so."
INVENTED = "The answer changed, but nothing that it read says so."


class Outcome(msgspec.Struct, frozen=True):
    """What one agent did with the evidence as it was, and with the changed evidence.

    `p_yes` is the probability of its verdict "this evidence helps" before and after the change, where it gave one on
    that evidence; `p_answer` that of its old answer where it first wrote it, the geometric mean over its tokens. An
    answer written before that evidence was read has the same probability twice.
    """

    policy: str
    before: Trajectory
    after: Trajectory
    p_yes: Pair | None
    p_answer: Pair | None
    verdict: str


def replacement(item: Evidence, kind: Kind, seed: int = 0) -> str:
    """The text that takes the place of a passage of the bundled world; empty: the passage is missing.

    `"change its fact"` states the same of another object of the same relation, for example another capital. A lure
    names such a one, too, but in words of its own: it only looks like an answer.
    """
    if kind == "delete it":
        return ""
    draw = random.Random(f"{seed}:{item.text}")  # the same proposal whenever the same passage is chosen
    if kind == "exchange it":
        return draw.choice(NEUTRAL)[1]
    told = _stated(item)
    alike = [other for other in bundled_world().by_relation[told.relation] if other.split == told.split]
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
    edits = {same.text: text.strip() or None for same in bundled_world().by_fact[Asked(told.subject, told.relation)]}
    task = task_of(question)
    changed = msgspec.structs.replace(task, id="changed", answers=(), edits=edits)
    for name in POLICIES.values():
        before, after = agent(name).run([task, changed])
        yield Outcome(name, before, after, *_probed(agent(name), before, edits), verdict(before, after))


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


def _probed(own: Agent, before: Trajectory, edits: Mapping[str, str | None]) -> tuple[Pair | None, Pair | None]:
    """`Outcome.p_yes` of the first verdict on evidence that is changed, and `Outcome.p_answer`."""
    tokens, chat, generator = before.tokens, own.engine.chat, own.engine.generator
    assert tokens is not None and isinstance(generator, Scorer)  # it is the engine's own episode
    responses = {}  # what is read now, by its step's index
    for index, step in enumerate(before.steps):
        if any(item.text in edits for item in step.evidence):
            shown = [(item, edits.get(item.text, item.text)) for item in step.evidence]
            evidence = [msgspec.structs.replace(item, text=text) for item, text in shown if text is not None]
            said = chat.render_observation(evidence, "" if evidence else NO_RESULTS.note)
            responses[index] = chat.observation_ids(said, chat.ended(turn_ids(tokens, index)))

    def both(step: int, place: int) -> list[list[int]]:
        return [context_of(tokens, step, place, known) for known in ({}, responses)]

    p_yes = p_answer = None
    judged = [at + 1 for at in responses if at + 1 < len(before.steps) and before.steps[at + 1].helpful is not None]
    if judged:
        # The verdict after the first changed response; later ones follow from what the agent did with it
        place, lead = locate_verdict(chat.tokenizer, turn_ids(tokens, judged[0]))
        yes = choice_ids(chat, lead, "yes")
        [[was], [now]] = generator.choice_probs(both(judged[0], place), [[yes]] * 2)
        p_yes = was, now
    first = find_mention(chat.tokenizer, tokens, before.answer) if before.answer else None
    if first is not None:
        turn, start, end = first
        answer = turn_ids(tokens, turn)[start:end]
        [[was], [now]] = generator.choice_logprobs(both(turn, start), [[answer]] * 2)
        p_answer = math.exp(was / len(answer)), math.exp(now / len(answer))
    return p_yes, p_answer
