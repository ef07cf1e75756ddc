"""Rewards: each reads a `Trajectory` and says how faithful it is, and why. One file each, found by
its name.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from .. import registry
from ..errors import ConfigError
from ..judges import GroundingJudge, Judge
from .answer_likelihood_gap import AnswerLikelihoodGap as AnswerLikelihoodGap
from .answer_support import AnswerSupport as AnswerSupport
from .base import (
    Column as Column,
    JudgedReward as JudgedReward,
    Result as Result,
    Reward as Reward,
    Score as Score,
)
from .citation import (
    Citation as Citation,
    cited_evidence as cited_evidence,
    step_validity as step_validity,
)
from .citation_coverage import CitationCoverage as CitationCoverage
from .citation_returned import CitationReturned as CitationReturned
from .citation_states_fact import CitationStatesFact as CitationStatesFact
from .citation_support import CitationSupport as CitationSupport
from .correctness import Correctness as Correctness
from .declined import Declined as Declined
from .evidence_sensitivity import EvidenceSensitivity as EvidenceSensitivity
from .format import Format as Format
from .info_think import InfoThink as InfoThink
from .mix import Adaptive as Adaptive, Mix as Mix, MixState as MixState, Warmup as Warmup
from .perturbation import Foils as Foils, corpus_snippets as corpus_snippets
from .self_correctness import SelfCorrectness as SelfCorrectness
from .self_rubric import SelfRubric as SelfRubric
from .shuffled import Shuffled as Shuffled
from .source_gated import SourceGated as SourceGated
from .step_format import StepFormat as StepFormat
from .think_answer import ThinkAnswer as ThinkAnswer
from .think_search import ThinkSearch as ThinkSearch
from .tool_use import ToolUse as ToolUse
from .world_rubric import WorldRubric as WorldRubric

FAITHFULNESS = (
    "info_think",
    "think_search",
    "think_answer",
)  # what the curriculum of `veritas_mix` holds back


def load(name: str) -> type[Reward]:
    """The reward class of that file name, `load("citation")`; of a file elsewhere, by its path; or
    of an entry point of the group `faithful_search.rewards`.

    Raises `ConfigError` naming those that exist.
    """
    return registry.find(sys.modules[__name__], name, Reward, names())


def names() -> list[str]:
    """The names that `load` knows."""
    return registry.names(sys.modules[__name__], Reward)


@cache
def results() -> dict[str, Result]:
    """What readers are told of each reward's results, by what these are called."""
    by_name: dict[str, Result] = {}
    for kind in map(load, names()):
        by_name |= kind.results
    return by_name


@cache
def titles() -> dict[str, str]:
    """The titles of rewards' rows in a model card, by the rows' names."""
    by_row: dict[str, str] = {}
    for kind in map(load, names()):
        by_row |= kind.titles
    return by_row


@cache
def columns() -> dict[str, Column]:
    """The columns of rewards in a step's line, by the names of a mix's parts."""
    by_part: dict[str, Column] = {}
    for kind in map(load, names()):
        by_part |= kind.columns
    return by_part


@cache
def labels() -> dict[str, str]:
    """The label of each reward in a figure, by the reward's name."""
    kinds = map(load, names())
    return {kind.name: kind.label for kind in kinds if kind.label}


def pou_mix(
    *,
    paper: bool = False,
    sensitivity: Reward | bool = True,
    answer: Adaptive | None = None,
    support: Reward | None = None,
    correctness: Reward | None = None,
    alpha: float | None = None,
    alpha_start: float | None = None,
    process_on_right: bool | None = None,
) -> Mix:
    """Proof-of-Use's objective, (R_cite + R_pt + R_a)/3 behind the format gate (equation 10), in a
    form that cannot be earned without evidence, and its ablations.

    The paper's own form can: whoever answers from memory and cites everything, or is never right
    but copies what it cites, comes near to what honesty earns, or passes it (docs/security.md has
    the figures). So, unless `paper`, a right answer counts only where the cited evidence holds it,
    and not where a call looked it up; the three other rewards count on such answers only, and
    R_pt's moves are centred. A policy that is never right then learns nothing but the format: give
    it a cold start, or begin with `paper`.

    Args:
        paper: the paper's own form, whose defaults for the settings below are
            `EvidenceSensitivity()`, `Correctness()` and `process_on_right=False`.
        sensitivity: R_pt, by default `EvidenceSensitivity(centre=True)`. `False` leaves it out and
            averages over the two others.
        answer: R_a, in place of the three settings below.
        support: R_ans, by default `AnswerSupport()`.
        correctness: R_anc, by default `SourceGated(looked_up=False)`.
        alpha: a constant weight of R_ans in place of the adaptive one, see `Adaptive.fixed`.
        alpha_start: the running mean of correctness before the first batch; by default it begins
            with that batch's mean.
        process_on_right: count R_cite, R_pt and R_ans on right answers only; elsewhere they are 0.

    Raises:
        ConfigError: for `answer` beside what it replaces.

    Example:
        >>> mix = pou_mix(sensitivity=EvidenceSensitivity(budget=2, centre=True), alpha=0.5)
        >>> list(mix.parts)
        ['citation', 'evidence_sensitivity', 'answer']
    """
    if answer is None:
        if correctness is None:
            correctness = Correctness() if paper else SourceGated(looked_up=False)
        answer = Adaptive(support or AnswerSupport(), correctness, fixed=alpha)
    elif support is not None or correctness is not None or alpha is not None:
        raise ConfigError(
            "pou_mix: answer is all of R_a; set its process, outcome and fixed instead of support, "
            "correctness and alpha"
        )
    parts: dict[str, Reward | Adaptive] = {"citation": Citation()}
    if sensitivity:
        if sensitivity is True:
            sensitivity = EvidenceSensitivity(centre=not paper)
        parts["evidence_sensitivity"] = sensitivity
    parts["answer"] = answer
    if process_on_right is None:
        process_on_right = not paper
    only_right = tuple(parts) if process_on_right else ()
    return Mix(parts, only_right=only_right, state0=MixState(alpha_start))


def answer_only_mix(correctness: Reward | None = None) -> Mix:
    """Format and answer rewards only, on the same tools: the baseline of Proof-of-Use's ablations
    (DeepResearcher+).
    """
    outcome = correctness or Correctness()
    return Mix(parts={outcome.name: outcome})


def self_eval_mix(
    trajectory: bool = True,
    *,
    correctness: Reward | None = None,
    rubric: SelfRubric | None = None,
    watched_by: Reward | None = None,
) -> Mix:
    """The two rewards of trajectory-level self-evaluation (section 3, equations 2 and 3), without a
    gate.

    ```
    R = R_a + R_f                 final answer and format alone: the baseline
    R = 0.5·R_a + R_t + R_f       with the trajectory's rubric score
    ```

    A row whose verdict could not be read has no value: neither its reward nor its advantage is made
    up.

    Args:
        trajectory: whether R_t counts.
        correctness: R_a, by default the policy's own verdict, `SelfCorrectness()`.
        rubric: R_t, by default `SelfRubric()`.
        watched_by: scored and logged beside R_t with a weight of 0: what the policy's own scores
            are compared with.
    """
    answer = correctness or SelfCorrectness()
    weighted: list[tuple[Reward, float]] = [(answer, 1.0)]
    if trajectory:
        weighted = [(answer, 0.5), (rubric or SelfRubric(), 1.0)]
    weighted.append((StepFormat(), 0.2))
    if watched_by:
        weighted.append((watched_by, 0.0))
    return _weighed({reward.name: (reward, weight) for reward, weight in weighted})


def pokee_mix(
    judge: Judge | None = None,
    *,
    metric: Literal["judge", "em", "f1"] = "judge",
    format_weight: float = 0.1,
) -> Mix:
    """PokeeResearch's reward (sections 3.2 and 3.3): a right answer earns 1, a valid format a
    little, nothing else.

    ```
    R = R_correct + w_format · [the format is valid]
    ```

    Nothing is gated: a right answer in a broken form counts. The paper's R_correct is AI feedback:
    1 for an exact match, else whether a judge says that the answer means the same.

    Args:
        judge: of "judge", an LLM.
        metric: how the answer is compared: "judge" (AI feedback where exact match fails), "em" or
            "f1".
        format_weight: what a valid format earns, where a right answer earns 1; 0 leaves it out. The
            paper gives none, 0.1 is ours.
    """
    if format_weight < 0:
        raise ConfigError(f"pokee_mix: format_weight must be at least 0, got {format_weight}")
    weighted: dict[str, tuple[Reward, float]] = {
        "correctness": (Correctness(metric, "pokee", judge), 1.0)
    }
    if format_weight:
        weighted["format"] = (Format(), format_weight)
    return _weighed(weighted)


def veritas_mix(
    judge: Judge | None = None,
    *,
    exact_match: float = 1.0,
    info_think: float = 0.05,
    think_search: float = 0.0,
    think_answer: float = 0.02,
    warmup: Warmup | None = None,
    soft: bool = False,
    search_judge: Judge | None = None,
    answer_judge: Judge | None = None,
) -> Mix:
    """VERITAS's reward (section 4, equation 1), without a gate.

    ```
    R = w_em·EM + w_it·info_think + w_ts·think_search + w_ta·think_answer
    ```

    A trajectory without pairs (no search, no answer) counts 0.0 there (ours), so that neither not
    searching nor not answering earns anything. The paper's two rows are 1.0 / 0.05 / 0 / 0 (the
    better EM) and the default.

    Args:
        judge: of info_think, and of think_search unless it has its own; by default words are
            compared.
        exact_match: the weight of the answer's exact match; a part of weight 0 is left out.
        info_think: the weight of information-think faithfulness, `InfoThink`.
        think_search: the weight of think-search faithfulness, `ThinkSearch`.
        think_answer: the weight of think-answer faithfulness, `ThinkAnswer`.
        warmup: the curriculum; its parts are of `FAITHFULNESS`, and those left out are passed over.
        soft: average the judge's probabilities instead of its labels.
        search_judge: of think_search (the paper measures it with an NLI model).
        answer_judge: of think_answer, by default none: the answer must occur in the last thought,
            as in the paper.

    Raises:
        ConfigError: for weights below 0, or none above it, and for a curriculum of unknown parts.

    Example:
        >>> veritas_mix(warmup=Warmup(FAITHFULNESS, 20, 30)).weights_at(25)
        {'exact_match': 1.0, 'info_think': 0.025, 'think_answer': 0.01}
    """
    judge = judge or GroundingJudge()
    every: dict[str, tuple[Reward, float]] = {
        "exact_match": (Correctness(), exact_match),
        "info_think": (InfoThink(judge, soft), info_think),
        "think_search": (ThinkSearch(search_judge or judge, soft), think_search),
        "think_answer": (ThinkAnswer(answer_judge, soft), think_answer),
    }
    weights = [weight for _, weight in every.values()]
    if not all(0 <= weight < math.inf for weight in weights) or max(weights) == 0:
        raise ConfigError(
            "veritas_mix: weights are 0 (the part is left out) or more, and one must be more, not "
            f"{', '.join(f'{weight:g}' for weight in weights)}"
        )
    weighted = {name: pair for name, pair in every.items() if pair[1]}
    if warmup is not None:
        parts_left_out = every.keys() - weighted.keys()
        # names that no part could have stay in it, for `Mix` to refuse
        kept_parts = [name for name in warmup.parts if name not in parts_left_out]
        warmup = replace(warmup, parts=tuple(kept_parts))
    absent = {name: 0.0 for name in FAITHFULNESS if name in weighted}
    return _weighed(weighted, warmup, absent)


def _weighed(
    weighted: Mapping[str, tuple[Reward, float]],
    warmup: Warmup | None = None,
    absent: Mapping[str, float] | None = None,
) -> Mix:
    """A sum of rewards with weights, without a gate."""
    parts: dict[str, Reward] = {}
    weights: dict[str, float] = {}
    for name, (reward, weight) in weighted.items():
        parts[name] = reward
        weights[name] = weight
    return Mix(parts, weights, gate=None, warmup=warmup, absent=absent or {})
