"""Rewards: each reads a `Trajectory` and says how faithful it is, and why. One file each, found by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import registry
from ..judges import Writer
from .answer_support import AnswerSupport
from .base import Reward, Score
from .citation import Citation, cited_evidence, step_validity
from .correctness import Correctness
from .evidence_sensitivity import EvidenceSensitivity
from .format import Format
from .info_think import InfoThink
from .judged import JudgedReward
from .mix import Adaptive, Mix, MixState, Warmup
from .perturbation import Passage, corpus_snippets
from .think_answer import ThinkAnswer
from .think_search import ThinkSearch
from .tool_use import ToolUse

__all__ = [
    "Adaptive",
    "AnswerSupport",
    "Citation",
    "Correctness",
    "EvidenceSensitivity",
    "Format",
    "InfoThink",
    "JudgedReward",
    "Mix",
    "MixState",
    "Reward",
    "Score",
    "ThinkAnswer",
    "ThinkSearch",
    "ToolUse",
    "Warmup",
    "answer_only_mix",
    "cited_evidence",
    "corpus_snippets",
    "load",
    "names",
    "pou_mix",
    "step_validity",
]


def load(name: str) -> type[Reward]:
    """The reward class of that file name, `load("citation")`. Raises `ConfigError` naming those that exist."""
    return registry.load(sys.modules[__name__], name, Reward)


def names() -> list[str]:
    """The names that `load` knows."""
    return registry.names(sys.modules[__name__], Reward)


def pou_mix(
    budget: int = 1,
    *,
    support: Reward | None = None,
    correctness: Reward | None = None,
    sensitivity: bool = True,
    snippets: Sequence[str | Passage] = (),
    writer: Writer | None = None,
    beta: float = 0.9,
    tau: float = 0.5,
    kappa: float = 10.0,
    alpha: float | None = None,
) -> Mix:
    """Proof-of-Use's objective, (R_cite + R_pt + R_a)/3 behind the format gate (equation 10), and its ablations.

    Args:
        budget: B_max, the perturbed steps of a rollout; 2 is the paper's ablation.
        support: R_ans, by default `AnswerSupport()`.
        correctness: R_anc, by default `Correctness()`.
        sensitivity: `False` leaves R_pt out and averages over the two others.
        snippets: what R_pt draws unrelated passages from, by default the batch's own evidence; see `corpus_snippets`.
        writer: invents the lures of R_pt, by default a template does.
        beta, tau, kappa: of the adaptive mix.
        alpha: a constant alpha: 0.5 is the static mix, 0.0 leaves R_ans out.

    Example:
        >>> pou_mix(budget=2).parts["evidence_sensitivity"].budget
        2
    """
    answer = Adaptive(support or AnswerSupport(), correctness or Correctness(), beta, tau, kappa, alpha)
    probe: dict[str, Reward] = {}
    if sensitivity:
        probe["evidence_sensitivity"] = EvidenceSensitivity(budget=budget, snippets=tuple(snippets), writer=writer)
    return Mix(parts={"citation": Citation(), **probe, "answer": answer})


def answer_only_mix(correctness: Reward | None = None) -> Mix:
    """Format and answer rewards only, on the same tools: the baseline of Proof-of-Use's ablations (DeepResearcher+).

    Example:
        >>> list(answer_only_mix().parts)
        ['correctness']
    """
    return Mix(parts={"correctness": correctness or Correctness()})
