"""What the page shows, as HTML: one view of a trajectory for every tab, and the cards above it."""

import re
from collections.abc import Mapping, Sequence
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
from .cheating import CheatAttempt
from .outside import outside

SCORED = (
    *("info_think_faithfulness", "think_search_faithfulness", "think_answer_faithfulness"),
    *("citation_validity", "answer_support"),
)
"""The metrics that a trajectory is shown with; words are compared, no model is asked."""
_WORDS = re.compile(r"(\w+)")
# Characters of a thought in which words are looked up; longer ones are shown as they are
_MOST_MARKED = 20_000
_LEVELS = {FOLLOWED: "good", NOTICED: "good", MEMORY: "bad", INVENTED: "bad"}
_NEEDS = {True: "good", False: "bad", None: ""}


def trajectory_view(trajectory: Trajectory, name: str) -> str:
    """A trajectory step by step with its scores and their reasons. `name` is that of the view,
    unique on the page.
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

    `who` answered. An answer that the bundled world cannot give is shown as such, and nothing about
    it in the colour of what is good: citations hold there as they do elsewhere.
    """
    doubt = outside(trajectory.question or "")
    needs = needs_evidence(trajectory)
    cited = {passage.id for passage in cited_evidence(trajectory)}
    sources = [passage for passage in distinct(trajectory) if passage.id in cited]
    above = _part("cards").answer(
        trajectory,
        who=who,
        without=trajectory.meta.get(WITHOUT),
        needs=needs,
        level="" if doubt else _NEEDS[needs],
        doubt=doubt,
        claims=claims_of(trajectory),
        sources=sources,
        cards=_cards(trajectory),
    )
    html = above + _trajectory(trajectory, name, link)
    return _framed(html, "doubted" if doubt else "")


def outcome_view(
    outcomes: Sequence[Outcome], passage: Evidence, text: str, running: bool = False
) -> str:
    """What each agent made of the changed evidence, side by side: `text` stands in the place of
    that of `item`. More agents may be `running`.
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
    """An audit in words, as a table whose bars choose rows, and the rows. `source` is what a
    visitor calls what was audited.
    """
    return _framed(_part("cards").summary(audited, source))


def attempt_view(attempt: CheatAttempt) -> str:
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
    """The view of a trajectory, without scores while the agent named by `running` is at it."""
    scores = {} if running else _scores(trajectory)
    page_fields = fields(None, trajectory, scores)
    cards = _cards(trajectory)
    marks = [step["marks"] for step in page_fields["steps"]]
    marks += [[]] * (len(trajectory.steps) - len(marks))  # those of the first steps alone are told

    def words(step: Step, text: str) -> list[tuple[str, list[int]]]:
        """A text in pieces, each with the numbers of the cited evidence that holds it."""
        cited_words: dict[int, set[str]] = {}
        for ref in step.refs:
            if ref in cards:
                cited_words[cards[ref]] = terms(trajectory.evidence[ref].text)
        return _pieces(text, cited_words)

    html: str = _part("trajectory").trajectory(
        trajectory, page_fields["chips"], marks, scores, cards, words, name, link, running
    )
    return html


def _scores(trajectory: Trajectory) -> dict[str, Score]:
    """What the metrics of `SCORED` say of the trajectory, by result."""
    scores: dict[str, Score] = {}
    for metric in SCORED:
        for result, reward in metrics.load(metric).items():
            score = reward.score(trajectory)
            why = metrics.reason(result, score)
            scores[result] = Score(reward.measure(score), why, score.parts)
    return scores


def _pieces(text: str, cited_words: Mapping[int, set[str]]) -> list[tuple[str, list[int]]]:
    """A text in pieces, each with the numbers of the evidence whose words it shares."""
    if not cited_words or len(text) > _MOST_MARKED:
        return [(text, [])]
    pieces = []
    for piece in _WORDS.split(text):
        piece_words = terms(piece)
        holders = [number for number, words in cited_words.items() if piece_words & words]
        pieces.append((piece, holders))
    return pieces


def _cards(trajectory: Trajectory) -> dict[str, int]:
    """A number for each piece of evidence: its id may be any text, which cannot name an element of
    a page.
    """
    return {id: number for number, id in enumerate(trajectory.evidence, 1)}


@lru_cache
def _part(name: str) -> Any:
    templates = environment(asks=asks, arguments=arguments_of, interval=interval)
    return templates.from_string(_file(f"{name}.html")).module


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _framed(html: str, state: str = "") -> str:
    return f'<div class="explorer {state}">{html}</div>'
