"""Do the verdicts of a policy follow the evidence? Compares p(yes) after responses that state what
was asked for with p(yes) after responses that do not, as they occur in rollouts.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..evidence import supporting
from ..judges import Judge, Pair
from ..rewards import Citation, Score
from ..rewards.base import PolicyReward, ask
from ..rewards.citation_states_fact import check_reads
from ..rewards.contexts import Transcripts, context_of
from ..rewards.perturbation import query_of
from ..rewards.turns import passages
from ..tasks import world_context
from ..trajectory import Trajectory
from ..world import bundled_world
from ..world.facts import FactsJudge
from .stats import Columns, Estimate, Floats, Pooled, divided, left_out, pooled_estimate

GAP, AUROC = "verdict_gap", "verdict_auroc"
BINS = 64
"""The number of bins of p(yes) that the area under the curve is computed from. Values in one bin
count as equal.
"""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A verdict of the policy on a response.

    `stratum` names the verdicts that it is compared with, `states` says whether the response states
    what was asked for, and `q` is p(yes).
    """

    stratum: str
    states: bool
    q: float


@dataclass(frozen=True)
class Verdicts(PolicyReward):
    """p(yes) of the verdicts on responses with evidence, and whether each response states what its
    call asked for.

    ```
    q           = p(yes | the real context up to the verdict's token), raw
    verdict_gap = Σ_s w_s (mean q with the fact - mean q without) / Σ_s w_s,     w_s = n1 n0 / (n1 + n0)
    verdict_auroc = share of pairs (with, without) of a stratum whose q is greater with the fact; equal ones count half
    ```

    A stratum s is a tool and a relation if the bundled world's facts say what is stated, else a
    tool. Within a stratum the words of the call do not tell whether the fact was found. Only strata
    with both kinds of responses count. Nothing is perturbed, so that no foreign text can give
    anything away, which `EvidenceSensitivity` cannot exclude.

    This is a measure of all rollouts together. The score of a single rollout has no value; the
    results are computed from its `parts["verdicts"]`. A rollout abstains if the judge does.

    Args:
        judge: says whether the evidence states what the query asks for (`Pair.task` "states").
        policy: the Generator to ask, usually given by `bind(policy=…)`; one call of `choice_probs`
            a batch.

    How to hack it: tell from a response's form whether its tool found the passage (its rank, how
    many there are).
    """

    judge: Judge = field(default_factory=FactsJudge)

    name: ClassVar[str] = "verdicts"

    def __post_init__(self) -> None:
        check_reads(self.judge, "Verdicts")

    def covers(self, dialect: str) -> bool:
        return Citation().covers(dialect)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        transcripts = Transcripts(self.bound_policy.tokenizer)
        verdicts_of_rollouts = [list(_verdicts(self.judge, rollout)) for rollout in trajectories]
        contexts: list[list[int]] = []
        choices: list[list[list[int]]] = []
        pairs: list[Pair] = []
        for trajectory, verdicts in zip(trajectories, verdicts_of_rollouts, strict=True):
            if not verdicts:
                continue
            transcript = transcripts.of(trajectory)
            for verdict in verdicts:
                place, yes = transcript.yes_at(verdict.step)
                contexts.append(context_of(transcript.tokens, verdict.step, place))
                choices.append([yes])
                pairs.append(verdict.pair)
        # Called without contexts, too: if weights are sharded, other processes need this one's
        # passes
        answers = iter(self.bound_policy.choice_probs(contexts, choices))
        labels = iter(ask(self.judge, pairs))
        scores = []
        for verdicts in verdicts_of_rollouts:
            seen: list[Seen] = []
            abstained = False
            for verdict in verdicts:
                label = next(labels).label
                q = next(answers)[0]
                abstained = abstained or label is None
                # Rounded as in the JSON of an evaluation, which must give the same results
                seen.append(Seen(verdict.stratum, bool(label), round(q, 6)))
            if abstained:
                why = "no verdict of the judge"
                scores.append(Score(None, why, {"abstained": True, "verdicts": []}))
            else:
                why = "aggregate metric; no value for one rollout"
                scores.append(Score(None, why, {"verdicts": seen}))
        return scores


class VerdictOnEvidence(NamedTuple):
    """A verdict of the policy: the index of its step, its stratum, and what the judge is asked
    about the response that it is on.
    """

    step: int
    stratum: str
    pair: Pair


def _verdicts(judge: Judge, trajectory: Trajectory) -> Iterator[VerdictOnEvidence]:
    """The verdicts on responses with evidence whose call can be read."""
    for number, (previous, step) in enumerate(pairwise(trajectory.steps), start=1):
        query = query_of(previous)
        if step.helpful is None or not previous.evidence or previous.call is None or not query:
            continue
        stratum = previous.call.name
        if isinstance(judge, FactsJudge):
            fact = bundled_world().asked(query)
            if fact is None:
                continue
            stratum = f"{stratum} {fact.relation}"
        pair = Pair(
            premise=passages(supporting(previous)),
            hypothesis=query,
            question=trajectory.question or "",
            task="states",
            context=world_context(trajectory.meta),
        )
        yield VerdictOnEvidence(number, stratum, pair)


def verdict_columns(verdicts: Sequence[Sequence[Seen]]) -> Columns:
    """The columns that `gap` and `auroc` sum up, with an entry for each rollout.

    The key of a column is a stratum, whether the response states the fact, and what is counted:
    verdicts ("n"), the sum of their p(yes) ("q"), or verdicts in a bin of p(yes) (its number).
    Strata without both kinds of responses are left out.
    """
    kinds: defaultdict[str, set[bool]] = defaultdict(set)
    for seen in chain.from_iterable(verdicts):
        kinds[seen.stratum].add(seen.states)
    columns: defaultdict[Any, Floats] = defaultdict(lambda: np.zeros(len(verdicts)))
    for rollout, verdicts_of_rollout in enumerate(verdicts):
        for seen in verdicts_of_rollout:
            if len(kinds[seen.stratum]) < 2:
                continue
            bin_number = min(int(seen.q * BINS), BINS - 1)
            columns[seen.stratum, seen.states, "n"][rollout] += 1
            columns[seen.stratum, seen.states, "q"][rollout] += seen.q
            columns[seen.stratum, seen.states, bin_number][rollout] += 1
    # The bins of the made-up questions of `_all_right_and_all_wrong`
    for stratum, states, _ in list(columns):
        for bin_number in (0, BINS - 1):
            columns[stratum, states, bin_number] += 0
    return dict(columns)


def verdict_rows(scores: Sequence[Score], questions: Sequence[Hashable]) -> dict[str, Estimate]:
    """The results `verdict_gap` and `verdict_auroc` of rollouts with these scores."""
    columns = verdict_columns([score.parts["verdicts"] for score in scores])
    abstained = sum(bool(score.parts.get("abstained")) for score in scores)
    rows = {}
    for name, pooled in POOLED_VERDICTS.items():
        estimate = pooled_estimate(columns, pooled, questions)
        without_verdict = estimate.not_applicable
        rows[name] = left_out(
            estimate,
            rows=len(scores) - without_verdict,
            not_applicable=without_verdict - abstained,
            abstained=abstained,
        )
    return rows


def gap(sums: Mapping[Any, Floats]) -> Floats:
    """The mean p(yes) with the fact minus that without it, in each draw. NaN where no stratum has
    both kinds of responses.
    """
    strata = dict.fromkeys(stratum for stratum, _, _ in sums)

    def in_each_stratum(states: bool, counted: str) -> Floats:
        """A row for each stratum, with a column for each draw."""
        return np.array([sums[stratum, states, counted] for stratum in strata])

    verdicts_with = in_each_stratum(True, "n")
    verdicts_without = in_each_stratum(False, "n")
    mean_with = divided(in_each_stratum(True, "q"), verdicts_with)
    mean_without = divided(in_each_stratum(False, "q"), verdicts_without)
    pairs = verdicts_with * verdicts_without
    # A draw may lack a stratum, or one kind of its responses: that stratum has no weight there
    weights = np.nan_to_num(divided(pairs, verdicts_with + verdicts_without))
    gaps = np.nan_to_num(mean_with - mean_without)
    weighted_gaps = weights * gaps
    return divided(weighted_gaps.sum(axis=0), weights.sum(axis=0))


def auroc(sums: Mapping[Any, Floats]) -> Floats:
    """The share of the pairs within strata that p(yes) puts in the right order, in each draw. NaN
    where there is no such pair.
    """
    zero = np.zeros(1)
    bins_of_strata: defaultdict[str, set[int]] = defaultdict(set)
    for stratum, _, counted in sums:
        if isinstance(counted, int):
            bins_of_strata[stratum].add(counted)
    won = pairs = zero
    for stratum, bins in bins_of_strata.items():
        # The verdicts with and without the fact in the bins so far, by rising p(yes)
        with_fact = without_fact = zero
        for bin_number in sorted(bins):
            with_in_bin = sums.get((stratum, True, bin_number), zero)
            without_in_bin = sums.get((stratum, False, bin_number), zero)
            # Won: those of lower bins. Half won: those of this one, which count as equal
            won = won + with_in_bin * (without_fact + without_in_bin / 2)
            with_fact = with_fact + with_in_bin
            without_fact = without_fact + without_in_bin
        pairs = pairs + with_fact * without_fact
    return divided(won, pairs)


def _all_right_and_all_wrong(means: Mapping[Any, float]) -> list[dict[Any, float]]:
    """Questions with as many verdicts as the mean one, which follow the evidence in all of them,
    and in none.
    """
    rows = []
    for is_right in (True, False):
        row: dict[Any, float] = {}
        for (stratum, states, column), count in means.items():
            if column == "n":
                p_yes = float(states == is_right)
                bin_number = BINS - 1 if p_yes else 0
                row[stratum, states, "n"] = count
                row[stratum, states, "q"] = count * p_yes
                row[stratum, states, bin_number] = count
        rows.append(row)
    return rows


POOLED_VERDICTS = {
    GAP: Pooled(gap, _all_right_and_all_wrong, (-1.0, 1.0)),
    AUROC: Pooled(auroc, _all_right_and_all_wrong, (0.0, 1.0)),
}
