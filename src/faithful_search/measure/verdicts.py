"""Do verdicts follow the evidence in natural states? p(yes) where the fact is stated, and where it is not."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..judges import Judge, Pair
from ..judges.facts import FactsJudge
from ..rewards import Citation, Score
from ..rewards.base import PolicyReward, ask
from ..rewards.citation_states_fact import check_reads
from ..rewards.contexts import Transcripts, context_of
from ..rewards.perturbation import query_of
from ..rewards.turns import passages
from ..trajectory import Trajectory
from ..world import Change, bundled_world
from .stats import Columns, Estimate, Floats, divided, left_out, pooled_estimate

GAP, AUROC = "verdict_gap", "verdict_auroc"
BINS = 64  # of p(yes), that the area under the curve is computed from: two values in one bin count as equal


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One verdict: which responses it is compared with, whether its own states what was asked for, and p(yes)."""

    stratum: str
    states: bool
    q: float


@dataclass(frozen=True)
class Verdicts(PolicyReward):
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
    rows are computed from. A rollout abstains where the judge does.

    Args:
        judge: says whether the evidence states what the query asks for (`Pair.task` "states").
        policy: the Generator to ask, usually given by `bind(policy=…)`; one call of `choice_probs` a batch.

    How to hack it: tell from a response's form whether its tool found the passage (its rank, how many there are).
    """

    judge: Judge = field(default_factory=FactsJudge)

    name: ClassVar[str] = "verdicts"

    def __post_init__(self) -> None:
        check_reads(self.judge, "Verdicts")

    def covers(self, dialect: str) -> bool:
        return Citation().covers(dialect)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        transcripts = Transcripts(self.bound_policy.tokenizer)
        asked = [list(_asked(self.judge, trajectory)) for trajectory in trajectories]
        contexts: list[list[int]] = []
        choices: list[list[list[int]]] = []
        for trajectory, own in zip(trajectories, asked, strict=True):
            if not own:
                continue
            transcript = transcripts.of(trajectory)
            for at, _, _ in own:
                place, yes = transcript.yes_at(at)
                contexts.append(context_of(transcript.tokens, at, place))
                choices.append([yes])
        # Asked even when there is nothing to ask: where weights are sharded, other processes need this one's passes
        answers = iter(self.bound_policy.choice_probs(contexts, choices))
        labels = iter(ask(self.judge, [pair for own in asked for _, _, pair in own]))
        scores = []
        for own in asked:
            found = [(stratum, next(labels).label, next(answers)[0]) for _, stratum, _ in own]
            if any(label is None for _, label, _ in found):
                scores.append(
                    Score(None, "the judge abstained", {"abstained": True, "verdicts": []})
                )
                continue
            # rounded, as an evaluation keeps them in JSON: read back, it must give the same rows
            verdicts = [Seen(stratum, bool(label), round(q, 6)) for stratum, label, q in found]
            scores.append(Score(None, "counts among all rollouts", {"verdicts": verdicts}))
        return scores


def _asked(judge: Judge, trajectory: Trajectory) -> Iterator[tuple[int, str, Pair]]:
    """The index, the stratum and what the judge is asked of each verdict on evidence whose call can be read."""
    for at, (previous, step) in enumerate(pairwise(trajectory.steps), start=1):
        query = query_of(previous)
        if step.helpful is None or not previous.evidence or previous.call is None or not query:
            continue
        stratum = previous.call.name
        if isinstance(judge, FactsJudge):
            wanted = bundled_world().asked(query)
            if wanted is None:
                continue
            stratum = f"{stratum} {wanted.relation}"
        change = Change.of(trajectory.meta)
        yield (
            at,
            stratum,
            Pair(passages(previous.evidence), query, trajectory.question or "", "states", change),
        )


def verdict_columns(verdicts: Sequence[Sequence[Seen]]) -> Columns:
    """What each rollout has by stratum and kind: how many verdicts ("n"), the sum of their p(yes) ("q"), and how many
    by its bin. Strata without both kinds are left out.
    """
    kinds: defaultdict[str, set[bool]] = defaultdict(set)
    for seen in (seen for own in verdicts for seen in own):
        kinds[seen.stratum].add(seen.states)
    columns: defaultdict[Any, Floats] = defaultdict(lambda: np.zeros(len(verdicts)))
    for place, own in enumerate(verdicts):
        for seen in own:
            if len(kinds[seen.stratum]) == 2:
                columns[seen.stratum, seen.states, "n"][place] += 1
                columns[seen.stratum, seen.states, "q"][place] += seen.q
                columns[seen.stratum, seen.states, min(int(seen.q * BINS), BINS - 1)][place] += 1
    return dict(columns)


def verdict_rows(scores: Sequence[Score], questions: Sequence[Hashable]) -> dict[str, Estimate]:
    columns = verdict_columns([score.parts["verdicts"] for score in scores])
    abstained = sum(bool(score.parts.get("abstained")) for score in scores)
    rows = {}
    for name, function in ((GAP, gap), (AUROC, auroc)):
        found = pooled_estimate(columns, function, questions)
        silent = found.not_applicable
        rows[name] = left_out(found, len(scores) - silent, silent - abstained, abstained)
    return rows


def gap(sums: Mapping[Any, Floats]) -> Floats:
    """Mean p(yes) with the fact minus without it, in each draw; NaN where no stratum has both kinds."""
    strata = dict.fromkeys(key[0] for key in sums)
    n1, n0 = (
        np.array([sums[stratum, states, "n"] for stratum in strata]) for states in (True, False)
    )
    q1, q0 = (
        np.array([sums[stratum, states, "q"] for stratum in strata]) for states in (True, False)
    )
    weights = np.nan_to_num(divided(n1 * n0, n1 + n0))  # 0 where a resample has drawn one kind only
    gaps = np.nan_to_num(divided(q1, n1) - divided(q0, n0))
    return divided((weights * gaps).sum(axis=0), weights.sum(axis=0))


def auroc(sums: Mapping[Any, Floats]) -> Floats:
    """Share of the pairs within strata that p(yes) puts in the right order; NaN where there is no such pair."""
    won, pairs = np.zeros(1), np.zeros(1)
    for stratum in dict.fromkeys(key[0] for key in sums):
        below, stating = np.zeros(1), np.zeros(1)
        for place in sorted(
            {key[2] for key in sums if key[0] == stratum and isinstance(key[2], int)}
        ):
            n1, n0 = (sums.get((stratum, states, place), np.zeros(1)) for states in (True, False))
            won = won + n1 * (below + n0 / 2)
            below, stating = below + n0, stating + n1
        pairs = pairs + stating * below
    return divided(won, pairs)
