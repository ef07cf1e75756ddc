"""What the page shows, as HTML: one view of a trajectory for every tab, and the cards above it."""

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..judges.grounding import terms
from ..measure import metrics
from ..measure.claims import claims_of, distinct
from ..measure.metrics import asks
from ..measure.report import interval
from ..measure.report.page import arguments_of, environment, fields
from ..rewards import Score, cited_evidence
from ..trajectory import Step, Trajectory
from .agents import FOLLOWED, INVENTED, MEMORY, NOTICED, POLICIES, WITHOUT, Outcome
from .auditing import Audited

SCORED = (
    *("info_think_faithfulness", "think_search_faithfulness", "think_answer_faithfulness"),
    *("citation_validity", "answer_support"),
)
"""The metrics that a trajectory is shown with; words are compared, no model is asked."""
_WORDS = re.compile(r"(\w+)")
_MOST_MARKED = 20_000  # characters of a thought in which words are looked up; longer ones are shown as they are
_LEVELS = {FOLLOWED: "good", NOTICED: "good", MEMORY: "bad", INVENTED: "bad"}


def trajectory_view(trajectory: Trajectory, name: str, link: str = "") -> str:
    """A trajectory step by step with its scores and their reasons.

    Args:
        trajectory: what is shown.
        name: of the view, unique on the page.
        link: the query of an address that shows this trajectory again; empty where there is none.
    """
    return _framed(_trajectory(trajectory, name, link))


def answered_view(trajectory: Trajectory, name: str, link: str = "") -> str:
    """A whole trajectory of `Agent.ask`: the answer, what states it, what it would be without evidence, the steps."""
    cited = {item.id for item in cited_evidence(trajectory)}
    sources = [item for item in distinct(trajectory) if item.id in cited]
    without = trajectory.meta.get(WITHOUT)
    above = _part("cards").answer(
        trajectory, without, claims_of(trajectory), sources, _cards(trajectory)
    )
    return _framed(above + _trajectory(trajectory, name, link))


def outcome_view(outcomes: list[Outcome]) -> str:
    """What each agent made of the changed evidence, side by side."""
    told = {name: words for words, name in POLICIES.items()}
    cards = ""
    for one in outcomes:
        card = _part("cards").outcome(one, told[one.policy], _LEVELS.get(one.verdict, ""))
        summary = "<summary>Its steps with the changed evidence</summary>"
        cards += _framed(f"{card}<details>{summary}{_trajectory(one.after, one.policy)}</details>")
    return _framed(f'<div class="cards">{cards}</div>')


def audit_view(found: Audited) -> str:
    """An audit in words, as a table whose bars choose rows, and the rows."""
    return _framed(_part("cards").summary(found))


def head() -> str:
    """The styles and the script of all of this, for the page's head."""
    return f"<style>{_file('style.css')}</style><script>{_file('explorer.js')}</script>"


def _trajectory(trajectory: Trajectory, name: str, link: str = "") -> str:
    marked = {}
    for metric in SCORED:
        for result, reward in metrics.load(metric).items():
            score = reward.score(trajectory)
            marked[result] = Score(reward.measure(score), score.why, score.parts)
    shown, cards = fields(None, trajectory, marked), _cards(trajectory)
    marks = [step["marks"] for step in shown["steps"]]
    marks += [[]] * (len(trajectory.steps) - len(marks))  # those of the first steps alone are told

    def words(step: Step, text: str) -> list[tuple[str, list[int]]]:
        """A text in pieces, each with the numbers of the cited evidence that holds it."""
        held = {
            cards[ref]: terms(trajectory.evidence[ref].text) for ref in step.refs if ref in cards
        }
        if not held or len(text) > _MOST_MARKED:
            return [(text, [])]
        pieces = ((piece, terms(piece)) for piece in _WORDS.split(text))
        return [
            (piece, [number for number, known in held.items() if own & known])
            for piece, own in pieces
        ]

    html: str = _part("trajectory").trajectory(
        trajectory, shown["chips"], marks, marked, cards, words, name, link
    )
    return html


def _cards(trajectory: Trajectory) -> dict[str, int]:
    """A number for each piece of evidence: its id may be any text, which cannot name an element of a page."""
    return {id: number for number, id in enumerate(trajectory.evidence, 1)}


@lru_cache
def _part(name: str) -> Any:
    return (
        environment(asks=asks, arguments=arguments_of, interval=interval)
        .from_string(_file(f"{name}.html"))
        .module
    )


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _framed(html: str) -> str:
    return f'<div class="explorer">{html}</div>'
