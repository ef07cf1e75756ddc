"""Do verdicts follow the evidence in natural states? p(yes) where the fact is stated, and where it is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from .. import dialects
from ..errors import ConfigError
from ..inference.base import Generator
from ..inference.chat import ChatFormat
from ..judges import Judge, Pair
from ..judges.facts import FactsJudge
from ..rewards import Citation, Reward, Score
from ..rewards.citation_states_fact import check_reads
from ..rewards.contexts import choice_ids, locate_verdict, real_context, turn_ids
from ..rewards.judged import ask
from ..rewards.perturbation import query_of
from ..rewards.turns import passages
from ..trajectory import Trajectory
from ..world import Change, bundled_world
from .stats import Counts, Floats, Key, divided, tabulate

BINS = 64
"""Bins of p(yes) that the area under the curve is computed from: two values in one bin count as equal."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One verdict: which responses it is compared with, whether its own states what was asked for, and p(yes)."""

    stratum: str
    states: bool
    q: float


@dataclass(frozen=True)
class Verdicts(Reward):
    """p(yes) of every verdict on a response with evidence, and whether that response states what its call asked for.

    ```
    q           = p(yes | the real context up to the verdict's token), raw
    verdict_gap = Σ_s w_s (mean q with the fact - mean q without) / Σ_s w_s,     w_s = n1 n0 / (n1 + n0)
    verdict_auroc = share of pairs (with, without) of a stratum whose q is greater with the fact; equal ones count half
    ```

    Strata s are tool and relation where the bundled world's facts tell what is stated, else the tool: within one, the
    call's words say nothing about whether the fact was found. Only strata with both kinds count. Nothing is perturbed,
    so no foreign text gives anything away; that is what `EvidenceSensitivity` cannot exclude.

    This is a measure of all rollouts together: a rollout's score has no value, its `parts["verdicts"]` are what the
    rows `verdict_gap` and `verdict_auroc` are computed from. A rollout abstains where the judge does.

    Args:
        judge: says whether the evidence states what the query asks for (`Pair.task` "states").
        policy: the Generator to ask, usually given by `bind(policy=…)`; one call of `choice_probs` a batch.

    How to hack it: tell from a response's form whether its tool found the passage (its rank, how many there are).
    """

    judge: Judge = field(default_factory=FactsJudge)
    policy: Generator | None = field(default=None, repr=False)

    name: ClassVar[str] = "verdicts"
    needs_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_reads(self.judge, "Verdicts")

    def covers(self, dialect: str) -> bool:
        return Citation().covers(dialect)

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        if self.policy is None:
            raise ConfigError("Verdicts asks the policy itself: use .bind(policy=generator)")
        asked = [_asked(self.judge, trajectory) for trajectory in trajectories]
        dialect_of = {place: trajectories[place].dialect or "pou" for place, own in enumerate(asked) if own}
        tokenizer = self.policy.tokenizer
        chats = {name: ChatFormat.of(tokenizer, dialects.load(name)) for name in set(dialect_of.values())}
        questions: list[tuple[list[int], list[int]]] = []
        for place, dialect in dialect_of.items():
            questions += _questions(trajectories[place], asked[place], chats[dialect])
        # Asked even when there is nothing to ask: where weights are sharded, other processes need this one's passes
        answers = iter(self.policy.choice_probs([context for context, _ in questions], [[yes] for _, yes in questions]))
        labels = iter(ask(self.judge, [item.pair for own in asked for item in own]))
        return [_score([(item, next(answers)[0], next(labels).label) for item in own]) for own in asked]


class _Asked(NamedTuple):
    """What is asked of a verdict; `at` is its step's index."""

    at: int
    stratum: str
    pair: Pair


def _asked(judge: Judge, trajectory: Trajectory) -> list[_Asked]:
    """What is asked of each verdict on evidence whose call can be read."""
    found = []
    change = Change.of(trajectory.meta)
    for index, (previous, step) in enumerate(zip(trajectory.steps, trajectory.steps[1:], strict=False), start=1):
        query = query_of(previous)
        if step.helpful is None or not previous.evidence or previous.call is None or not query:
            continue
        stratum = previous.call.name
        if isinstance(judge, FactsJudge):
            wanted = bundled_world().asked(query)
            if wanted is None:
                continue
            stratum = f"{stratum} {wanted.relation}"
        pair = Pair(passages(previous.evidence), query, trajectory.question or "", "states", change)
        found.append(_Asked(index, stratum, pair))
    return found


def _questions(
    trajectory: Trajectory, asked: Sequence[_Asked], chat: ChatFormat
) -> Iterator[tuple[list[int], list[int]]]:
    """The context of each verdict, and the tokens that begin a yes there."""
    tokens = trajectory.tokens or chat.transcript(trajectory, trajectory.meta.get("tools", []))
    for item in asked:
        turn = turn_ids(tokens, item.at)
        verdict = locate_verdict(chat.tokenizer, turn, f"trajectory {trajectory.id!r}, step {item.at + 1}")
        # Where it said yes, the very token that was sampled: a word may be tokenised in several ways
        said_yes = trajectory.steps[item.at].helpful
        yes = [turn[verdict.index]] if said_yes else choice_ids(chat, verdict.lead, "yes")
        yield real_context(tokens, item.at, verdict.index), yes


def _score(answered: Sequence[tuple[_Asked, float, bool | None]]) -> Score:
    if any(label is None for _, _, label in answered):
        return Score(None, "the judge abstained", {"abstained": True, "verdicts": []})
    # rounded, as an evaluation keeps them in JSON: read back, it must give the same rows
    verdicts = [Seen(item.stratum, bool(label), round(q, 6)) for item, q, label in answered]
    return Score(None, "counts among all rollouts", {"verdicts": verdicts})


def verdict_counts(verdicts: Sequence[Sequence[Seen]]) -> Counts:
    """What each rollout has by stratum and kind: how many verdicts, the sum of their p(yes), and how many by its bin.

    Strata without both kinds are left out.
    """
    kinds: defaultdict[str, set[bool]] = defaultdict(set)
    for seen in (seen for own in verdicts for seen in own):
        kinds[seen.stratum].add(seen.states)
    features = []
    for own in verdicts:
        counted: defaultdict[Key, float] = defaultdict(float)
        for seen in own:
            if len(kinds[seen.stratum]) == 2:
                counted[seen.stratum, seen.states, "n"] += 1
                counted[seen.stratum, seen.states, "q"] += seen.q
                counted[seen.stratum, seen.states, min(int(seen.q * BINS), BINS - 1)] += 1
        features.append(counted)
    return tabulate(features)


def gap(keys: Sequence[Any], sums: Floats) -> Floats:
    """Mean p(yes) with the fact minus without it, in each row of sums; NaN where no stratum has both kinds."""
    columns = dict(zip(keys, sums.T, strict=True))
    total, weight = np.zeros(len(sums)), np.zeros(len(sums))
    for stratum in dict.fromkeys(key[0] for key in keys):
        n1, n0 = columns[stratum, True, "n"], columns[stratum, False, "n"]
        both = (n1 > 0) & (n0 > 0)  # a resample may have drawn one kind only
        n1, n0 = np.where(both, n1, 1.0), np.where(both, n0, 1.0)
        own = both * n1 * n0 / (n1 + n0)
        total += own * (columns[stratum, True, "q"] / n1 - columns[stratum, False, "q"] / n0)
        weight += own
    return divided(total, weight)


def auroc(keys: Sequence[Any], sums: Floats) -> Floats:
    """Share of the pairs within strata that p(yes) puts in the right order; NaN where there is no such pair."""
    columns = dict(zip(keys, sums.T, strict=True))
    nothing = np.zeros(len(sums))
    won, pairs = nothing.copy(), nothing.copy()
    for stratum in dict.fromkeys(key[0] for key in keys):
        below, stating = nothing, nothing
        for place in sorted({key[2] for key in keys if key[0] == stratum and isinstance(key[2], int)}):
            n1, n0 = (columns.get((stratum, states, place), nothing) for states in (True, False))
            won += n1 * (below + n0 / 2)
            below, stating = below + n0, stating + n1
        pairs += stating * below
    return divided(won, pairs)
