"""Rewards: each reads a `Trajectory` and says how faithful it is, and why. One file each, found by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .. import registry
from ..errors import ConfigError
from ..judges import GroundingJudge, Judge, Writer
from .adaptive import Adaptive, MixState
from .answer_likelihood_gap import AnswerLikelihoodGap
from .answer_support import AnswerSupport
from .base import Reward, Score
from .citation import Citation, cited_evidence, step_validity
from .citation_states_fact import CitationStatesFact
from .correctness import Correctness
from .evidence_sensitivity import EvidenceSensitivity
from .format import Format
from .info_think import InfoThink
from .judged import JudgedReward
from .mix import Mix
from .perturbation import Foils, Passage, corpus_snippets
from .self_correctness import SelfCorrectness
from .self_rubric import SelfRubric
from .shuffled import Shuffled
from .source_gated import SourceGated
from .step_format import StepFormat
from .think_answer import ThinkAnswer
from .think_search import ThinkSearch
from .tool_use import ToolUse
from .warmup import Warmup
from .world_rubric import WorldRubric

__all__ = [
    "FAITHFULNESS",
    "Adaptive",
    "AnswerLikelihoodGap",
    "AnswerSupport",
    "Citation",
    "CitationStatesFact",
    "Correctness",
    "EvidenceSensitivity",
    "Foils",
    "Format",
    "InfoThink",
    "JudgedReward",
    "Mix",
    "MixState",
    "Reward",
    "Score",
    "SelfCorrectness",
    "SelfRubric",
    "Shuffled",
    "SourceGated",
    "StepFormat",
    "ThinkAnswer",
    "ThinkSearch",
    "ToolUse",
    "Warmup",
    "WorldRubric",
    "answer_only_mix",
    "cited_evidence",
    "corpus_snippets",
    "load",
    "names",
    "pokee_mix",
    "pou_mix",
    "self_eval_mix",
    "step_validity",
    "veritas_mix",
]

FAITHFULNESS = ("info_think", "think_search", "think_answer")
"""The parts of `veritas_mix` that its curriculum holds back."""


def load(name: str) -> type[Reward]:
    """The reward class of that file name, `load("citation")`. Raises `ConfigError` naming those that exist."""
    return registry.load(sys.modules[__name__], name, Reward)


def names() -> list[str]:
    """The names that `load` knows."""
    return registry.names(sys.modules[__name__], Reward)


def pou_mix(
    budget: int | None = 1,
    *,
    support: Reward | None = None,
    correctness: Reward | None = None,
    sensitivity: bool = True,
    snippets: Sequence[str | Passage] = (),
    writer: Writer | None = None,
    draws: Literal["question", "rollout"] = "rollout",
    centre: bool = False,
    foils: Foils | None = None,
    hard: float = 1.0,
    beta: float = 0.9,
    tau: float = 0.5,
    kappa: float = 10.0,
    alpha: float | None = None,
    alpha_start: float | None = None,
    process_on_right: bool = False,
) -> Mix:
    """Proof-of-Use's objective, (R_cite + R_pt + R_a)/3 behind the format gate (equation 10), and its ablations.

    Args:
        budget: B_max, the perturbed steps of a rollout; 2 is the paper's ablation, `None` is all.
        support: R_ans, by default `AnswerSupport()`.
        correctness: R_anc, by default `Correctness()`; with `SourceGated()` only what evidence holds counts.
        sensitivity: `False` leaves R_pt out and averages over the two others.
        snippets: what R_pt draws unrelated passages from, by default the batch's own evidence; see `corpus_snippets`.
        writer: invents the lures of R_pt, by default a template does.
        draws, centre, foils, hard: of R_pt, see `EvidenceSensitivity`; the defaults are the paper's.
        beta, tau, kappa: of the adaptive mix.
        alpha: a constant alpha: 0.5 is the static mix, 0.0 leaves R_ans out.
        alpha_start: the outcome's running mean before the first batch, by default that batch's mean; 0.0 starts with
            an alpha near 1.
        process_on_right: count R_cite, R_pt and R_ans on right answers only, see `Mix.only_right`.

    Example:
        >>> pou_mix(budget=2).parts["evidence_sensitivity"].budget
        2
    """
    parts: dict[str, Reward | Adaptive] = {"citation": Citation()}
    if sensitivity:
        parts["evidence_sensitivity"] = EvidenceSensitivity(
            budget, snippets=tuple(snippets), writer=writer, draws=draws, centre=centre, foils=foils, hard=hard
        )
    parts["answer"] = Adaptive(support or AnswerSupport(), correctness or Correctness(), beta, tau, kappa, alpha)
    return Mix(parts, only_right=tuple(parts) if process_on_right else (), state0=MixState(alpha_start))


def answer_only_mix(correctness: Reward | None = None) -> Mix:
    """Format and answer rewards only, on the same tools: the baseline of Proof-of-Use's ablations (DeepResearcher+).

    Example:
        >>> list(answer_only_mix().parts), list(answer_only_mix(SourceGated()).parts)
        (['correctness'], ['source_gated'])
    """
    outcome = correctness or Correctness()
    return Mix(parts={outcome.name: outcome})


def self_eval_mix(
    trajectory: bool = True,
    *,
    correctness: Reward | None = None,
    temperature: float = 0.1,
    rubric_tokens: int = 256,
    watched_by: Reward | None = None,
) -> Mix:
    """The two rewards of trajectory-level self-evaluation (section 3, equations 2 and 3), without a gate.

    ```
    R = R_a + R_f                 final answer and format alone: the baseline
    R = 0.5·R_a + R_t + R_f       with the trajectory's rubric score
    ```

    A row whose verdict could not be read has no value: neither its reward nor its advantage is made up.

    Args:
        trajectory: whether R_t counts.
        correctness: R_a, by default the policy's own verdict, `SelfCorrectness`.
        temperature: of the policy's verdicts.
        rubric_tokens: how long an explained score may be.
        watched_by: scored and logged beside R_t with a weight of 0: what the policy's own scores are compared with.

    Example:
        >>> self_eval_mix().weights
        {'self_correctness': 0.5, 'self_rubric': 1.0, 'step_format': 0.2}
        >>> self_eval_mix(trajectory=False).weights
        {'self_correctness': 1.0, 'step_format': 0.2}
    """
    answer, rubric = correctness or SelfCorrectness(temperature), SelfRubric(temperature, rubric_tokens)
    weighed: list[tuple[Reward, float]] = [(answer, 0.5), (rubric, 1.0)] if trajectory else [(answer, 1.0)]
    weighed.append((StepFormat(), 0.2))
    if watched_by is not None:
        weighed.append((watched_by, 0.0))
    parts, weights = {one.name: one for one, _ in weighed}, {one.name: weight for one, weight in weighed}
    return Mix(parts, weights, gate=None)


def pokee_mix(
    judge: Judge | None = None, *, metric: Literal["judge", "em", "f1"] = "judge", format_weight: float = 0.1
) -> Mix:
    """PokeeResearch's reward (sections 3.2 and 3.3): a right answer earns 1, a valid format a little, nothing else.

    ```
    R = R_correct + w_format · [the format is valid]
    ```

    Nothing is gated: a right answer in a broken form counts. The paper's R_correct is AI feedback: 1 for an exact
    match, else whether a judge says that the answer means the same. The paper gives no weight for the format; 0.1 is
    ours.

    Args:
        judge: of "judge"; an LLM, as a comparison of words is what AI feedback is to replace.
        metric: how the answer is compared, see `Correctness`.
        format_weight: what a valid format earns; 0 leaves it out.

    Raises:
        ConfigError: for "judge" without a judge, another metric with one, or a weight below 0.

    Example:
        >>> pokee_mix(metric="em").weights
        {'correctness': 1.0, 'format': 0.1}
    """
    if format_weight < 0:
        raise ConfigError(f"pokee_mix: format_weight must be at least 0, got {format_weight}")
    answer: dict[str, Reward] = {"correctness": Correctness(metric, "pokee", judge)}
    if not format_weight:
        return Mix(answer, {"correctness": 1.0}, gate=None)
    return Mix({**answer, "format": Format()}, {"correctness": 1.0, "format": format_weight}, gate=None)


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

    A trajectory without pairs (no search, no answer) counts 0.0 there (ours), so that neither not searching nor not
    answering earns anything. A row whose judge abstained has no value. The paper's two rows are 1.0 / 0.05 / 0 / 0 (the
    better EM) and 1.0 / 0.05 / 0 / 0.02, the default.

    Args:
        judge: of info_think, and of think_search unless it has its own; by default words are compared.
        exact_match, info_think, think_search, think_answer: the weights. A part of weight 0 is left out.
        warmup: the curriculum; its parts are of `FAITHFULNESS`, and those left out are passed over.
        soft: average the judge's p instead of its labels.
        search_judge: of think_search (the paper measures it with an NLI model).
        answer_judge: of think_answer, by default none: the answer must occur in the last thought, as in the paper.

    Raises:
        ConfigError: when every weight is 0, or the warm-up names no part that there could be.

    Example:
        >>> mix = veritas_mix(warmup=Warmup(FAITHFULNESS, 20, 30))
        >>> mix.weights_at(20)
        {'exact_match': 1.0, 'info_think': 0.0, 'think_answer': 0.0}
        >>> mix.weights_at(25)
        {'exact_match': 1.0, 'info_think': 0.025, 'think_answer': 0.01}
    """
    judge = judge or GroundingJudge()
    every: dict[str, tuple[Reward, float]] = {
        "exact_match": (Correctness(), exact_match),
        "info_think": (InfoThink(judge, soft), info_think),
        "think_search": (ThinkSearch(search_judge or judge, soft), think_search),
        "think_answer": (ThinkAnswer(answer_judge, soft), think_answer),
    }
    kept = {name: pair for name, pair in every.items() if pair[1]}
    if warmup is not None:  # names that no part could have stay in it, for `Mix` to refuse
        warmup = replace(warmup, parts=tuple(name for name in warmup.parts if name in kept or name not in every))
    parts, weights = {name: one for name, (one, _) in kept.items()}, {name: own for name, (_, own) in kept.items()}
    absent = {name: 0.0 for name in FAITHFULNESS if name in kept}
    return Mix(parts, weights, gate=None, warmup=warmup, absent=absent)
