"""A policy that sees the form of a response only cannot tell real evidence from what replaced it.

Form is everything but what is said: addresses, titles, ids, order, lengths, punctuation, texts that
come with the package.
"""

import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import lab
import pytest
from msgspec.structs import replace

from faithful_search import Toolbox
from faithful_search.bundled import bundled_json
from faithful_search.coldstart.experts import Habits, run_experts
from faithful_search.coldstart.plans import plan_all, planner_for
from faithful_search.dialects import load
from faithful_search.dialects.fence import unescape
from faithful_search.inference.chat import ChatFormat
from faithful_search.judges import Request, Writer
from faithful_search.rewards import EvidenceSensitivity, corpus_snippets, pou_mix
from faithful_search.rewards.perturbation import query_of
from faithful_search.tasks import load_tasks
from faithful_search.text import content_words, holds
from faithful_search.tools import KnowledgeGraph, LocalSearch
from faithful_search.trajectory import Evidence, Trajectory
from faithful_search.world import bundled_world

TOKENIZER = lab.tokenizer()
POU = load("pou")


@cache
def episodes() -> list[Trajectory]:
    """An expert's on questions of the training split, where there are foils."""
    tasks = load_tasks("world", "train")[:60]
    plans, _ = plan_all(tasks, planner_for("world", tasks))
    tools = [LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]
    with Toolbox(tools) as toolbox:
        played = run_experts(plans, toolbox, POU, Habits(dropped=0.3, blind=0.0))
    return [replace(one.episode, id=f"r{number}") for number, one in enumerate(played)]


# How the evidence of different tools looks


def slug(title: str) -> str:
    return re.sub(r"\W+", "_", title)


def of_web_search(item: Evidence, row: int) -> Evidence:
    url = f"https://encyclopedia.example/wiki/{slug(item.title)}"
    text = f"{item.text.rstrip('.')} ..."
    return replace(item, title=f"{item.title} - Encyclopedia", url=url, text=text)


def of_browse(item: Evidence, row: int) -> Evidence:
    """Paragraphs of one page."""
    more = f" {item.title} has been visited by many. In spring the rivers flood, and few come."
    url = f"https://pages.example/{row % 9}"
    return replace(item, title=f"Page {row % 9}", url=url, text=f"{item.text}{more * 3}")


def of_facts(item: Evidence, row: int) -> Evidence:
    """As Wikidata's facts are told."""
    text = re.sub(r"^The (.+) of (.+) is (.+)\.$", r"\2, \1: \3.", item.text)
    number = sum(map(ord, item.title))
    return replace(item, url=f"https://www.wikidata.org/wiki/Q{number}", text=text)


def untitled(item: Evidence, row: int) -> Evidence:
    return replace(item, title="")


TOOLS: dict[str, Callable[[Evidence, int], Evidence]] = {
    "local_search and knowledge_graph": lambda item, row: item,
    "web_search": of_web_search,
    "browse": of_browse,
    "wikidata": of_facts,
    "untitled": untitled,
}


@cache
def rollouts(tool: str) -> list[Trajectory]:
    rows = []
    for number, row in enumerate(episodes()):
        steps = []
        for step in row.steps:
            shown = tuple(TOOLS[tool](item, number) for item in step.evidence)
            steps.append(replace(step, evidence=shown))
        rows.append(replace(row, steps=tuple(steps)))
    return rows


# What replaces it


def of_same_tool(tool: str) -> dict[str, Any]:
    """Snippets of the corpus that the tool searches."""
    rows = [item for row in rollouts(tool) for step in row.steps for item in step.evidence]
    return {"snippets": corpus_snippets([{"title": e.title, "text": e.text} for e in rows], 200)}


class Archivist(Writer):
    """Writes as it is asked to."""

    name = "archivist"

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        told: list[str | None] = []
        for request in requests:
            page = request.fields.get("title", "Nora Fell")
            told.append(f"{page} is the answer to {request.fields['query']}. Archives agree.")
        return told


def with_writer(tool: str) -> dict[str, Any]:
    return {"writer": Archivist()}


PERTURBATIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "the batch": lambda tool: {},
    "common draws": lambda tool: {"draws": "question"},
    "snippets": of_same_tool,
    "written lures": with_writer,
    "foils": lambda tool: {"foils": bundled_world(("train",)), "hard": 1.0},
}
CASES = [
    (tool, perturbation)
    for tool in TOOLS
    for perturbation in PERTURBATIONS
    # foils have the words of the bundled world's own tools
    if perturbation != "foils" or tool in ("local_search and knowledge_graph", "untitled")
]


class Shown(NamedTuple):
    """What a policy sees of a response, and what it had asked."""

    evidence: Sequence[Evidence]
    query: str


class Probed(NamedTuple):
    yes_case: bool
    real: Shown
    perturbed: Shown


def shown(ids: list[int], query: str) -> Shown:
    """The last tool response of a context."""
    text = TOKENIZER.decode(ids).rpartition("<tool_response>\n")[2]
    evidence, _ = POU.read_body(text.partition("\n</tool_response>")[0])
    plain = [
        Evidence(unescape(item.text), unescape(item.title), item.id, url=unescape(item.url))
        for item in evidence
    ]
    return Shown(plain, query)


@cache
def probed(tool: str, perturbation: str) -> list[Probed]:
    class Policy:
        tokenizer = TOKENIZER

    rows = rollouts(tool)
    reward = EvidenceSensitivity(budget=None, policy=Policy(), **PERTURBATIONS[perturbation](tool))
    found = []
    for row, probes in zip(rows, reward.probes(rows), strict=True):
        for probe in probes:
            query = query_of(row.steps[probe.step - 2])
            both = shown(probe.real_context, query), shown(probe.perturbed_context, query)
            found.append(Probed(probe.yes_case, *both))
    return found


each = pytest.mark.parametrize(("tool", "perturbation"), CASES)


@each
def test_enough_is_probed(tool: str, perturbation: str) -> None:
    cases = [one.yes_case for one in probed(tool, perturbation)]
    assert cases.count(True) > 50
    assert cases.count(False) > 15


@each
@pytest.mark.parametrize("part", ["id", "title", "url"])
def test_all_but_the_texts_stays(tool: str, perturbation: str, part: str) -> None:
    for one in probed(tool, perturbation):
        real = [getattr(item, part) for item in one.real.evidence]
        assert [getattr(item, part) for item in one.perturbed.evidence] == real


@each
def test_something_is_replaced(tool: str, perturbation: str) -> None:
    for one in probed(tool, perturbation):
        texts = [[item.text for item in side.evidence] for side in (one.real, one.perturbed)]
        assert texts[0] != texts[1]


BUILT_IN = [text for _, text in bundled_json("replacements.json")["neutral"]]
BUILT_IN += [text for _, text in bundled_json("unseen_snippets.json")]


def lengths(seen: Shown) -> list[int]:
    return [len(item.text) for item in seen.evidence]


def words_of(text: str) -> set[str]:
    return set(content_words(text))


FORMS: dict[str, Callable[[Shown], float]] = {
    "an address is missing": lambda seen: sum(not item.url for item in seen.evidence),
    "addresses that differ": lambda seen: len({item.url for item in seen.evidence}),
    "an address names its title": lambda seen: sum(
        slug(item.title.partition(" - ")[0]) in item.url for item in seen.evidence
    ),
    "a title is the query": lambda seen: sum(
        item.title.casefold() == seen.query.casefold() for item in seen.evidence
    ),
    "titles like the query": lambda seen: sum(
        bool(words_of(item.title) & words_of(seen.query)) for item in seen.evidence
    ),
    "titles that differ": lambda seen: len({item.title for item in seen.evidence}),
    "the first title is like the query": lambda seen: bool(
        words_of(seen.evidence[0].title) & words_of(seen.query)
    ),
    "texts name their titles": lambda seen: sum(
        holds(item.text, item.title.partition(" - ")[0]) for item in seen.evidence
    ),
    "ids in order": lambda seen: (
        [item.id for item in seen.evidence]
        == sorted((item.id for item in seen.evidence), key=lambda name: int(name[1:]))
    ),
    "how many": lambda seen: len(seen.evidence),
    "the longest": lambda seen: max(lengths(seen)),
    "the shortest": lambda seen: min(lengths(seen)),
    "all lengths": lambda seen: sum(lengths(seen)),
    "ends with a full stop": lambda seen: sum(item.text.endswith(".") for item in seen.evidence),
    "ends with dots": lambda seen: sum(item.text.endswith("...") for item in seen.evidence),
    "quotation marks": lambda seen: sum(len(re.findall('[\u201c\u201d"]', item.text)) for item in seen.evidence),
    "colons": lambda seen: sum(":" in item.text for item in seen.evidence),
    "line breaks": lambda seen: sum("\n" in item.text for item in seen.evidence),
    "begins small": lambda seen: sum(item.text[:1].islower() for item in seen.evidence),
    "equal texts": lambda seen: len({item.text for item in seen.evidence}) - len(seen.evidence),
    "built-in texts": lambda seen: sum(
        text[:25] in item.text for item in seen.evidence for text in BUILT_IN
    ),
    "built-in lures": lambda seen: sum(
        bool(re.search("well documented|the answer is|[Hh]istorians and", item.text))
        for item in seen.evidence
    ),
}  # fmt: skip


def auc(real: Sequence[float], perturbed: Sequence[float]) -> float:
    """How often a feature is greater in a real response than in a perturbed one; one half: it says
    nothing.
    """
    wins = [(a > b) + (a == b) / 2 for a in real for b in perturbed]
    return sum(wins) / len(wins)


@each
@pytest.mark.parametrize("form", FORMS)
def test_no_feature_of_form_tells_them_apart(tool: str, perturbation: str, form: str) -> None:
    for yes_case in (True, False):
        found = [one for one in probed(tool, perturbation) if one.yes_case == yes_case]
        real = [FORMS[form](one.real) for one in found]
        perturbed = [FORMS[form](one.perturbed) for one in found]
        assert 0.35 < auc(real, perturbed) < 0.65, "yes" if yes_case else "no"


# What such a policy earns


class FormReader:
    """Says yes and no by the toss of a coin; p(yes) is a feature of the response's form."""

    def __init__(self, form: Callable[[Shown], float]) -> None:
        self.tokenizer, self.form = TOKENIZER, form

    def choice_probs(self, prompts: Any, choices: Any) -> list[list[float]]:
        return [[0.99 if self.form(shown(ids, "")) else 0.01] for ids in prompts]


def tossed(row: Trajectory) -> Trajectory:
    """The rollout with verdicts by the toss of a coin, all citing what was found."""
    rng = random.Random(row.id)
    steps = [row.steps[0]]
    for before, step in zip(row.steps, row.steps[1:], strict=False):
        helpful = bool(before.evidence) and rng.random() < 0.5
        refs = tuple(item.id for item in before.evidence) if helpful else ()
        steps.append(replace(step, helpful=helpful, refs=refs))
    return replace(row, steps=tuple(steps), tokens=None)


def whole_addresses(seen: Shown) -> bool:
    return all(item.url for item in seen.evidence)


@pytest.mark.parametrize("snippets", [False, True])
@pytest.mark.parametrize("tool", ["web_search", "browse", "wikidata"])
def test_tossed_verdicts_and_a_look_for_addresses_earn_nothing(tool: str, snippets: bool) -> None:
    rows = [tossed(row) for row in rollouts(tool)]
    knobs = of_same_tool(tool) if snippets else {}
    for centre in (False, True):
        reward = EvidenceSensitivity(policy=FormReader(whole_addresses), centre=centre, **knobs)
        assert {score.value for score in reward.score_batch(rows)} == {0.0}


def test_nor_does_the_mix_as_people_call_it_pay_for_it() -> None:
    rows = [tossed(row) for row in rollouts("web_search")]
    reward = pou_mix(alpha=0.5).bind(policy=FormReader(whole_addresses))
    parts = [score.parts["evidence_sensitivity"] for score in reward.score_batch(rows)]
    assert set(parts) == {0.0}


def test_a_chat_shows_what_was_probed() -> None:
    """A guard: what is read off the contexts is what the policy would read."""
    row = rollouts("web_search")[0]
    tokens = ChatFormat.of(TOKENIZER, POU).transcript(row)
    [one, *_] = probed("web_search", "the batch")
    text = TOKENIZER.decode(tokens.completion_ids)
    assert one.real.evidence[0].text in text
    assert one.real.evidence[0].url in text
