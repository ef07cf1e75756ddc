"""What the page shows, as HTML: one view of a trajectory for every tab, and the cards above it."""

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..judges.lexical import terms
from ..measure import metrics
from ..measure.claims import claims_of, distinct
from ..measure.metrics import asks
from ..measure.report import interval
from ..measure.report.page import arguments_of, environment, fields
from ..rewards import Score, cited_evidence
from ..trajectory import Evidence, Step, Trajectory
from .agents import (
    FOLLOWED,
    INVENTED,
    KINDS,
    MEMORY,
    NOTICED,
    WITHOUT,
    Outcome,
    needs_evidence,
)
from .auditing import Audited
from .cheating import Attempt
from .outside import outside

SCORED = (
    "info_think_faithfulness",
    "think_search_faithfulness",
    "think_answer_faithfulness",
    "citation_validity",
    "answer_support",
)
"""The metrics that a trajectory is shown with; words are compared, no model is asked."""
_WORDS = re.compile(r"(\w+)")
# Characters of a thought in which words are looked up; longer ones are shown as they are.
_MOST_MARKED = 20_000
# Classes of the style sheet: for what became of an answer, and for whether it needs its evidence
_LEVELS = {FOLLOWED: "good", NOTICED: "good", MEMORY: "bad", INVENTED: "bad"}
_NEEDS = {True: "good", False: "bad", None: ""}


def trajectory_view(trajectory: Trajectory, name: str) -> str:
    """A trajectory step by step with its scores and their reasons.

    Args:
        name: that of the view, unique on the page.
    """
    return _framed(_trajectory(trajectory, name, link=""))


def growing_view(trajectory: Trajectory, name: str, who: str, link: str = "") -> str:
    """What an agent has done so far. There is nothing to score yet, and no answer that could be
    missing.
    """
    return _framed(_trajectory(trajectory, name, link, running=who))


def answered_view(trajectory: Trajectory, name: str, who: str, link: str = "") -> str:
    """A whole trajectory of `LocalAgent.ask`: the answer, what states it, what it would be without
    evidence, the steps.

    An answer that the bundled world cannot give is shown as such, and nothing about it in the
    colour of what is good: its citations may hold all the same.

    Args:
        who: the agent that answered, as the page calls it.
    """
    cited = {passage.id for passage in cited_evidence(trajectory)}
    doubt = outside(trajectory.question or "")
    needs = needs_evidence(trajectory)
    above = _part("cards").answer(
        trajectory,
        who=who,
        without=trajectory.meta.get(WITHOUT),
        needs=needs,
        level="" if doubt else _NEEDS[needs],
        doubt=doubt,
        claims=claims_of(trajectory),
        sources=[passage for passage in distinct(trajectory) if passage.id in cited],
        cards=_cards(trajectory),
    )
    html = above + _trajectory(trajectory, name, link)
    return _framed(html, "doubted" if doubt else "")


def outcome_view(
    outcomes: Sequence[Outcome], passage: Evidence, text: str, running: bool = False
) -> str:
    """What each agent made of the changed evidence, side by side.

    Args:
        passage, text: the evidence, and what stands in the place of its text.
        running: whether there are agents that have not answered yet.
    """
    cards = ""
    for number, outcome in enumerate(outcomes, start=1):
        card = _part("cards").outcome(outcome, _LEVELS.get(outcome.verdict, ""))
        steps = _trajectory(outcome.after, f"after-{number}")
        summary = "<summary>Its steps with the changed evidence</summary>"
        cards += _framed(f"{card}<details>{summary}{steps}</details>")
    if running:
        cards += _part("cards").running()
    change = _part("cards").change(passage, text.strip())
    return _framed(f'{change}<div class="cards">{cards}</div>')


def audit_view(audited: Audited, source: str) -> str:
    """An audit in words, as a table whose bars choose rows, and the rows.

    Args:
        source: what was audited, such as the name of the visitor's file.
    """
    return _framed(_part("cards").summary(audited, source))


def attempt_view(attempt: Attempt) -> str:
    """What a reward paid a cheat and why, and what the cheat did, step by step."""
    card = _part("cards").attempt(attempt)
    return _framed(card + _trajectory(attempt.rollout, "cheat"))


def kinds_view() -> str:
    """What can happen to a piece of evidence, each with what it means."""
    return _framed(_part("cards").kinds(KINDS))


def refused_view(why: str) -> str:
    """Why there is no result, in its place."""
    return _framed(_part("cards").refused(why))


def head() -> str:
    """The styles and the script of all of this, for the page's head."""
    return f"<style>{_file('style.css')}</style><script>{_file('explorer.js')}</script>"


def _trajectory(trajectory: Trajectory, name: str, link: str = "", running: str = "") -> str:
    """The view of a trajectory.

    Args:
        running: the agent that has not finished it, as the page calls it: there are no scores then;
            empty for a whole trajectory.
    """
    scores: dict[str, Score] = {}
    for metric in () if running else SCORED:
        for result, reward in metrics.load(metric).items():
            score = reward.score(trajectory)
            why = metrics.reason(result, score)
            scores[result] = Score(reward.measure(score), why, score.parts)
    page_fields = fields(None, trajectory, scores)
    cards = _cards(trajectory)
    marks = [step["marks"] for step in page_fields["steps"]]
    # A page has the marks of the first steps only.
    marks += [[]] * (len(trajectory.steps) - len(marks))

    def words(step: Step, text: str) -> list[tuple[str, list[int]]]:
        """A text in pieces, each with the numbers of the cited evidence that has its word."""
        cited_words: dict[int, set[str]] = {}
        for ref in step.refs:
            if ref in cards:
                cited_words[cards[ref]] = terms(trajectory.evidence[ref].text)
        if not cited_words or len(text) > _MOST_MARKED:
            return [(text, [])]
        pieces = []
        for piece in _WORDS.split(text):
            piece_words = terms(piece)
            numbers = [number for number, held in cited_words.items() if piece_words & held]
            pieces.append((piece, numbers))
        return pieces

    html: str = _part("trajectory").trajectory(
        trajectory, page_fields["chips"], marks, scores, cards, words, name, link, running
    )
    return html


def _cards(trajectory: Trajectory) -> dict[str, int]:
    """A number for each piece of evidence, which names its element of the page: an id may be any
    text.
    """
    return {id: number for number, id in enumerate(trajectory.evidence, 1)}


@lru_cache
def _part(name: str) -> Any:
    """The macros of a template beside this file."""
    templates = environment(asks=asks, arguments=arguments_of, interval=interval)
    return templates.from_string(_file(f"{name}.html")).module


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _framed(html: str, state: str = "") -> str:
    """The element that the styles are for; `state` is another class of it."""
    return f'<div class="explorer {state}">{html}</div>'
