"""What the page shows, as HTML: one view of a trajectory for every tab, and the cards above it."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..measure import metrics
from ..measure.claims import claims_of, distinct
from ..measure.report.rollout import Marked, environment, page_file, rollout_html
from ..rewards import cited_evidence
from ..trajectory import Trajectory
from .agents import POLICIES, WITHOUT
from .auditing import Audited
from .breaking import FOLLOWED, INVENTED, MEMORY, NOTICED, Outcome

SCORED = (
    "info_think_faithfulness",
    "think_search_faithfulness",
    "think_answer_faithfulness",
    "citation_validity",
    "answer_support",
)
"""The metrics that a trajectory is shown with; words are compared, no model is asked."""


def trajectory_view(trajectory: Trajectory, opened: bool = True) -> str:
    """A trajectory step by step with its scores and their reasons."""
    rewards = {name: reward for metric in SCORED for name, reward in metrics.load(metric).items()}
    scores = {name: (reward, reward.score(trajectory)) for name, reward in rewards.items()}
    marked = {name: Marked(reward.measure(score), score.why, score.parts) for name, (reward, score) in scores.items()}
    return _framed(rollout_html(trajectory, marked, opened))


def answered_view(trajectory: Trajectory) -> str:
    """A whole trajectory of `Agent.ask`: the answer, what states it, what it would be without evidence, the steps."""
    cited = {item.id for item in cited_evidence(trajectory)}
    sources = [item for item in distinct(trajectory) if item.id in cited]
    without = trajectory.meta.get(WITHOUT)
    return _framed(_cards().answer(trajectory, without, claims_of(trajectory), sources)) + trajectory_view(trajectory)


def outcome_view(outcomes: list[Outcome]) -> str:
    """What each agent made of the changed evidence, side by side."""
    told = {name: words for words, name in POLICIES.items()}
    levels = {FOLLOWED: "good", NOTICED: "good", MEMORY: "bad", INVENTED: "bad"}
    cards = [
        f"<div>{_cards().outcome(one, told[one.policy], levels.get(one.verdict, ''))}"
        f"{trajectory_view(one.after, opened=False)}</div>"
        for one in outcomes
    ]
    return _framed(f'<div class="cards">{"".join(cards)}</div>')


def audit_view(found: Audited) -> str:
    """An audit in words and as a table."""
    return _framed(_cards().summary(found))


def head() -> str:
    """The styles of all of this, for the page's head."""
    own = (files(__package__) / "style.css").read_text("utf-8")
    return f"<style>{own}\n{page_file('rollout.css')}</style>"


@lru_cache
def _cards() -> Any:
    return environment().from_string((files(__package__) / "cards.html").read_text("utf-8")).module


def _framed(html: str) -> str:
    return f'<div class="explorer">{html}</div>'
