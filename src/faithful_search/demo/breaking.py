"""Change what an agent reads, let two agents answer again, and say in a sentence what became of the answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from ..errors import DataError
from ..measure.decoration import declines, holds
from ..rewards.evidence_sensitivity import choice_ids, locate_verdict, perturbed_context, real_context, turn_ids
from ..rewards.perturbation import NEUTRAL
from ..text import normalize
from ..tools.base import NO_RESULTS
from ..trajectory import Evidence, Trajectory
from ..world import Asked, Statement, bundled_world
from .agents import POLICIES, Agent, agent, task_of

Kind = Literal["change its fact", "exchange it", "delete it"]

FOLLOWED = "The answer followed the evidence."
MEMORY = "It came from memory: nothing that it read says so."
NOTICED = "It noticed that nothing supports an answer."
ELSEWHERE = "The same answer, and other evidence still says so."
INVENTED = "The answer changed, but nothing that it read says so."


class Outcome(msgspec.Struct, frozen=True):
    """What one agent did with the evidence as it was, and with the changed evidence.

    `p_yes` is the probability of its verdict "this evidence helps" before and after, where it gave one on that
    evidence.
    """

    policy: str
    before: Trajectory
    after: Trajectory
    p_yes: tuple[float, float] | None
    verdict: str


def replacement(item: Evidence, kind: Kind, seed: int = 0) -> str:
    """The text that takes the place of a passage of the bundled world; empty: the passage is missing.

    `"change its fact"` states the same of another object of the same relation, for example another capital.
    """
    if kind == "delete it":
        return ""
    draw = random.Random(f"{seed}:{item.text}")
    if kind == "exchange it":
        return draw.choice(NEUTRAL)[1]
    told = _stated(item)
    others = sorted(
        {
            other.object
            for other in bundled_world().by_relation[told.relation]
            if other.split == told.split and not holds(item.text, other.object)
        }
    )
    return told.saying(draw.choice(others)).text if others else ""


def run_on(question: str, item: Evidence, text: str) -> Iterator[Outcome]:
    """Both agents' answers where `text` stands in the place of a passage, one agent after the other.

    Every passage and triple that states the same fact is changed alike: otherwise an agent finds the old one with
    another tool. As the agents decode greedily, an episode is the same up to the first changed evidence.

    Raises:
        DataError: when the evidence is none of the bundled world's.
    """
    told = _stated(item)
    edits = {same.text: text.strip() or None for same in bundled_world().by_fact[Asked(told.subject, told.relation)]}
    task = task_of(question)
    changed = msgspec.structs.replace(task, id="changed", answers=(), edits=edits)
    for name in POLICIES.values():
        own = agent(name)
        before, after = own.run([task, changed])
        yield Outcome(name, before, after, _p_yes(own, before, edits), verdict(before, after))


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
        raise DataError("this evidence is none of the bundled world's passages and facts: it cannot be changed here")
    return told


def _p_yes(own: Agent, before: Trajectory, edits: Mapping[str, str | None]) -> tuple[float, float] | None:
    """p(yes) of the first verdict on evidence that is changed: after what was read, and after what is read now."""
    tokens, chat = before.tokens, own.engine.chat
    for index in range(1, len(before.steps)):
        shown = before.steps[index - 1].evidence
        if tokens is None or before.steps[index].helpful is None or not any(item.text in edits for item in shown):
            continue
        now = [(item, edits.get(item.text, item.text)) for item in shown]
        evidence = [msgspec.structs.replace(item, text=text) for item, text in now if text is not None]
        said = chat.render_observation(evidence, "" if evidence else NO_RESULTS.note)
        response = chat.observation_ids(said, chat.ended(turn_ids(tokens, index - 1)))
        turn = turn_ids(tokens, index)
        place = locate_verdict(chat.tokenizer, turn)
        contexts = [real_context(tokens, index, place.index), perturbed_context(tokens, index, place.index, response)]
        [[was], [now_yes]] = own.engine.generator.choice_probs(contexts, [[choice_ids(chat, place.lead, "yes")]] * 2)
        return was, now_yes
    return None
