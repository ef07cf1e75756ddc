"""Expert episodes for the supervised start, made from annotated questions by running the real tools.

The expert knows what it is looking for, but sees only what the tools return: it calls, judges the response, cites what
states the fact, and otherwise says no and tries another tool or wording. Proof-of-Use (section 3.4) writes such
episodes with a strong language model; here annotation takes the model's place.
"""

import random
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace
from tqdm.auto import tqdm

from ..dialects.base import Dialect
from ..errors import ConfigError
from ..text import unqualified
from ..tools.base import NO_RESULTS, Observation
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, Step, ToolCall, Trajectory
from . import twins
from .filtering import as_written
from .plans import SEARCH, UNKNOWN, Hop, Plan, Query, contains

FIRST = ("I need {need}.", "First I need {need}.", "To answer this I need {need}.")
NEXT = ("{found} I need {need}.", "{found} Now I need {need}.")
DONE = ("{found} That is the answer.", "{found} This answers the question.")
CONCLUDE = ("{found} So the answer is {answer}.",)
UNSAID = ("I can answer now.",)
OTHER_TOOL = ("Nothing on {need}. I try {tool}.", "This does not give {need}. I try {tool}.")
REWORD = ("Nothing on {need}. I search again.", "This does not give {need}. I try other words.")
GIVE_UP = ("Nothing on {need}. I do not know the answer.",)
UPHELD = ("{found} The evidence says so.",)
NOT_FOUND = ("No tool gives {need}.",)
STOPPED_EARLY = ("{found} The question asks for more: {need}.",)
PHRASES = (
    *FIRST,
    *NEXT,
    *DONE,
    *CONCLUDE,
    *OTHER_TOOL,
    *REWORD,
    *GIVE_UP,
)  # what experts of every dialect say

DRILL = "drill"


class Played(NamedTuple):
    episode: Trajectory
    twins: list[Trajectory]


@dataclass(frozen=True)
class Habits:
    """How often things go wrong in an expert's episodes, so that the policy learns what to do then: rates in [0, 1]."""

    wrong_tool: float = 0.15  # per hop: a tool other than the preferred one is called first
    dropped: float = (
        0.08  # per response: what states the fact is replaced, see `twins.Response.without`
    )
    nothing: float = 0.02  # per response: it is empty
    # per episode: from some hop on no response holds the fact; after each tool has been tried the expert answers
    # "unknown". In half of these episodes responses are blanked, the paper's extreme case; in the others they only do
    # not state it
    blind: float = 0.05
    shuffled: float = (
        0.4  # per response: its evidence comes in random order; ids are given afterwards, in order
    )
    twins: float = 0.0  # per response with evidence: a twin of it, see `run_experts`
    foreign: float = 0.0  # per response that states the fact: a twin that states it too, among unrelated evidence
    drills: float = 0.0  # per response with evidence: a drill, see `twins.Response.drill`
    # per finding but the last, in dialects with verification: the expert answers with what it found, finds on checking
    # that the question asks for more, and goes on
    hasty: float = 0.0
    # per finding: the next thought does not state what was found. Such episodes are right, but not faithful in
    # VERITAS's sense: a policy that has both habits can be trained towards either
    unsaid: float = 0.0

    def __post_init__(self) -> None:
        wrong = {name: rate for name, rate in vars(self).items() if not 0 <= rate <= 1}
        if wrong:
            raise ConfigError(f"rates must lie in [0, 1], got {wrong}")


def run_experts(
    plans: Sequence[Plan],
    toolbox: Toolbox,
    dialect: Dialect,
    habits: Habits | None = None,
    seed: int = 0,
    concurrency: int = 512,
    progress: bool = False,
) -> list[Played]:
    """Play every plan with the real tools, `concurrency` at once; the same plans and seed give the same episodes.

    `stop_reason` is "answered", or "not_found" / "not_named" if the expert gave up: nothing stated the fact, or a hop's
    subject was named neither by the question nor by evidence. `meta["blind"]` marks episodes that rightly end in
    "unknown".

    A twin is an episode up to one of its responses, that response with the opposite truth, and the expert's next turn,
    the only one to learn from; `meta["twin"]` says how the response was changed. A drill is a twin that begins with the
    response's own call.
    """
    functions = [schema["function"] for schema in toolbox.schemas]
    arguments = {own["name"]: next(iter(own["parameters"]["properties"])) for own in functions}
    desk = _Desk(dialect, habits or Habits(), seed, arguments)
    done: list[Played] = []
    with tqdm(
        total=len(plans), desc="expert episodes", unit="episode", disable=not progress
    ) as bar:
        for start in range(0, len(plans), concurrency):
            episodes = [_Episode(plan, desk) for plan in plans[start : start + concurrency]]
            games = [episode.play() for episode in episodes]
            calls = {number: call for number, game in enumerate(games) if (call := _next(game))}
            while calls:  # each round runs the next calls of all episodes in one batch
                observations = toolbox.run_batch(
                    list(calls.values()), [toolbox.session() for _ in calls]
                )
                answered = zip(calls, observations, strict=True)
                calls = {
                    number: call
                    for number, found in answered
                    if (call := _next(games[number], found))
                }
            done += [Played(episode.written(), episode.twins) for episode in episodes]
            bar.update(len(episodes))
    return done


Game = Generator[ToolCall, Observation | None, None]
"""An episode being played: it yields calls and is sent their observations."""


def _next(game: Game, observation: Observation | None = None) -> ToolCall | None:
    try:
        return game.send(observation)
    except StopIteration:
        return None


@dataclass
class _Desk:
    """What all episodes share: each tool's argument, the evidence so far, and how they are played."""

    dialect: Dialect
    habits: Habits
    seed: int
    arguments: Mapping[str, str]
    shelf: twins.Shelf = field(default_factory=twins.Shelf)


class _Episode:
    def __init__(self, plan: Plan, desk: _Desk) -> None:
        self.plan, self.desk, self.habits, self.checks = (
            plan,
            desk,
            desk.habits,
            desk.dialect.verifies,
        )
        self.rng = random.Random(f"{desk.seed}:{plan.id}")
        self.twin_rng = random.Random(
            f"{desk.seed}:{plan.id}:twins"
        )  # so that twins do not change the episode
        blind = self.rng.random() < self.habits.blind
        self.blind_from = self.rng.randrange(len(plan.hops)) if blind else len(plan.hops)
        self.all_blank = blind and self.rng.random() < 0.5
        self.given = 0  # pieces of evidence, which are numbered
        self.steps: list[Step] = []
        self.twins: list[Trajectory] = []
        self.stop_reason = "answered"

    def play(self) -> Game:
        """Hop by hop: query until something states the fact, then go on from it."""
        found = ""
        verdict: bool | None = None
        refs: tuple[str, ...] = ()
        for number, hop in enumerate(self.plan.hops):
            # An expert that asks for what it cannot know yet would teach to answer from memory.
            shown = [
                text
                for step in self.steps
                for item in step.evidence
                for text in (item.title, item.text)
            ]
            named = unqualified(hop.subject)  # none always is
            if not any(contains(text, named) for text in (self.plan.question, *shown)):
                self.stop_reason = "not_named"
                return
            blind, think, found = number >= self.blind_from, self._onward(found, hop.need), ""
            queries = self._queries(hop, blind)
            for turn, (tool, query) in enumerate(queries):
                if turn:
                    think = self._again(hop, queries[turn - 1 :])
                call = self._call(tool, query)
                step = Step(think, call, helpful=verdict, refs=refs)
                returned = yield call
                observation = self._bent(hop, tool, returned or NO_RESULTS, blind)
                self._add_twins(number, step, observation.evidence, queries[turn:])
                self.steps.append(
                    replace(step, evidence=observation.evidence, note=observation.note)
                )
                gold = hop.gold(observation.evidence)
                verdict, refs = bool(gold), tuple(item.id for item in gold)
                if gold:
                    found = self._finding(hop, gold)
                    break
            if not found:
                self.stop_reason = "answered" if blind else "not_found"
                last = Step(self._say(GIVE_UP, need=hop.need), answer=UNKNOWN, helpful=False)
                return self._end(last, NOT_FOUND, need=hop.need)
            following = self.plan.hops[number + 1 : number + 2]
            if self.checks and following and hop.object and self.rng.random() < self.habits.hasty:
                self.steps.append(Step(self._say(DONE, found=found), answer=hop.object))
                early = self._say(STOPPED_EARLY, found=found, need=following[0].need)
                self.steps.append(Step(early, verified=False))
        answer = self.plan.answers[0]
        last = Step(self._conclusion(found, answer), answer=answer, helpful=verdict, refs=refs)
        self._end(last, UPHELD, found=found)

    def written(self) -> Trajectory:
        blind = {"blind": True} if self.blind_from < len(self.plan.hops) else {}
        draft = self._trajectory(self.steps, self.plan.id, **blind)
        return as_written(replace(draft, stop_reason=self.stop_reason), self.desk.dialect)

    def _trajectory(self, steps: Sequence[Step], id: str, **meta: Any) -> Trajectory:
        plan, dialect = self.plan, self.desk.dialect.name
        return Trajectory(
            tuple(steps), plan.question, dialect=dialect, id=id, answers=plan.answers, meta=meta
        )

    def _end(self, last: Step, checked: Sequence[str], **parts: str) -> None:
        self.steps.append(last)
        if self.checks:
            self.steps.append(Step(self._say(checked, **parts), verified=True))

    def _say(self, templates: Sequence[str], **parts: str) -> str:
        return self.rng.choice(templates).format(**parts)

    def _onward(self, found: str, need: str) -> str:
        if found and not self._leaves_unsaid():
            return self._say(NEXT, found=found, need=need)
        return self._say(FIRST, need=need)

    def _again(self, hop: Hop, queries: Sequence[Query]) -> str:
        (tool, _), (following, _) = queries[:2]
        return self._say(OTHER_TOOL if following != tool else REWORD, need=hop.need, tool=following)

    def _conclusion(self, found: str, answer: str) -> str:
        if self._leaves_unsaid():
            return self._say(UNSAID)
        return self._say(DONE if contains(found, answer) else CONCLUDE, found=found, answer=answer)

    def _leaves_unsaid(self) -> bool:
        rate = self.habits.unsaid
        return (
            rate > 0 and self.rng.random() < rate
        )  # no draw at 0, so that other episodes stay the same

    def _call(self, tool: str, query: str) -> ToolCall:
        return ToolCall(tool, {self.desk.arguments[tool]: query})

    def _finding(self, hop: Hop, gold: Sequence[Evidence]) -> str:
        """The hop's statement; without one, the sentence of the evidence that holds the answer, else its first."""
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z\"“])", gold[0].text.strip())
        holding = (sentence for sentence in sentences if contains(sentence, self.plan.answers[0]))
        return hop.statement or next(holding, sentences[0])

    def _queries(self, hop: Hop, blind: bool) -> list[Query]:
        """The hop's queries to the tools at hand, sometimes another tool's first; in a blind episode each tool once."""
        own = {
            SEARCH: self.desk.dialect.search_tool or SEARCH
        }  # what a dialect that can only search calls it
        named = dict.fromkeys((own.get(tool, tool), query) for tool, query in hop.queries)
        queries = [query for query in named if query[0] in self.desk.arguments]
        others = [query for query in queries if query[0] != queries[0][0]]
        if others and self.rng.random() < self.habits.wrong_tool:
            queries.remove(others[0])
            queries.insert(0, others[0])
        if blind:
            first = dict(reversed(queries))  # reversed, so that each tool's first query wins
            return [query for query in queries if first[query[0]] == query[1]]
        return queries

    def _bent(self, hop: Hop, tool: str, observation: Observation, blind: bool) -> Observation:
        """The response as the expert gets it: it may be empty, blanked, without its gold, or in another order."""
        habits, rng = self.habits, self.rng
        evidence = list(observation.evidence)
        if not evidence:
            return observation
        nothing, dropped, shuffled = (
            rng.random() < rate for rate in (habits.nothing, habits.dropped, habits.shuffled)
        )
        if nothing and not blind:
            return NO_RESULTS
        self.desk.shelf.put(
            hop, tool, evidence
        )  # before it is bent: foils are of what tools really return
        if dropped or blind:
            kind = "blank" if blind and self.all_blank else twins.drawn_kind(rng)
            evidence = twins.Response(hop, tool, evidence, self.desk.shelf, rng).without(kind)
        if shuffled:
            rng.shuffle(evidence)
        first, self.given = self.given + 1, self.given + len(evidence)
        return Observation(_numbered(evidence, first)) if evidence else NO_RESULTS

    def _add_twins(
        self, number: int, step: Step, evidence: Sequence[Evidence], queries: Sequence[Query]
    ) -> None:
        """Add twins of a response (its evidence is numbered) to the call of `step`, the first of `queries`."""
        hop, rng = self.plan.hops[number], self.twin_rng
        response = twins.Response(hop, queries[0][0], evidence, self.desk.shelf, rng)
        gold = hop.gold(evidence)
        made: list[tuple[str, list[Evidence]]] = []
        if evidence and rng.random() < self.habits.twins:
            kind = twins.drawn_kind(rng) if gold else "planted"
            made.append((kind, response.without(kind) if gold else response.planted()))
        if gold and rng.random() < self.habits.foreign:
            made.append(("foreign", response.among_foreign()))
        if evidence and rng.random() < self.habits.drills:
            made.append((DRILL, response.drill()))
        own, self.rng = (
            self.rng,
            rng,
        )  # the episode's own draws stay the same with and without twins
        for kind, pieces in made:
            if pieces:  # the shelf may hold nothing of the kind yet
                given = replace(step, evidence=_numbered(pieces, self.given - len(evidence) + 1))
                steps = self._twin(kind, number, given, queries)
                self.twins.append(
                    self._trajectory(steps, f"{self.plan.id}@{len(self.twins)}", twin=kind)
                )
        self.rng = own

    def _twin(self, kind: str, number: int, step: Step, queries: Sequence[Query]) -> list[Step]:
        """The steps so far, the changed response, and the next turn as the expert would write it then."""
        hop, before = self.plan.hops[number], self.steps
        gold, answer = hop.gold(step.evidence), self.plan.answers[0]
        if kind == DRILL:
            before, step = [], Step(self._onward("", hop.need), step.call, evidence=step.evidence)
        if gold and number + 1 < len(self.plan.hops):
            following = self.plan.hops[number + 1]
            call = self._call(*self._queries(following, blind=False)[0])
            last = Step(self._onward(self._finding(hop, gold), following.need), call)
        elif gold:
            last = Step(self._conclusion(self._finding(hop, gold), answer), answer=answer)
        elif len(queries) > 1:
            last = Step(self._again(hop, queries), self._call(*queries[1]))
        else:
            last = Step(self._say(GIVE_UP, need=hop.need), answer=UNKNOWN)
        last = replace(last, helpful=bool(gold), refs=tuple(item.id for item in gold))
        return [*before, step, last]


def _numbered(evidence: Sequence[Evidence], first: int) -> tuple[Evidence, ...]:
    return tuple(replace(item, id=f"E{n}") for n, item in enumerate(evidence, start=first))
