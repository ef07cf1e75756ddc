"""Expert episodes for the supervised start, made from annotated questions by running the real
tools.

The expert knows what it is looking for, but sees only what the tools return: it calls, judges the
response, cites what states the fact, and otherwise says no and tries another tool or wording.
Proof-of-Use (section 3.4) writes such episodes with a strong language model; here annotation takes
the model's place.
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
PHRASES = (*FIRST, *NEXT, *DONE, *CONCLUDE, *OTHER_TOOL, *REWORD, *GIVE_UP)
"""What experts of every dialect say."""

DRILL = "drill"
"""The kind of a twin that begins with the response's own call, in `meta["twin"]`."""


class Played(NamedTuple):
    """An expert's episode, and the twins of its responses."""

    episode: Trajectory
    twins: list[Trajectory]


@dataclass(frozen=True)
class Habits:
    """How often things go wrong in an expert's episodes, so that the policy learns what to do then.

    Each is a rate in [0, 1].

    Args:
        wrong_tool: of a hop, that a tool other than the preferred one is called first.
        dropped: of a response, that what states the fact is replaced, see
            `twins.Response.without`.
        nothing: of a response, that it is empty.
        blind: of an episode, that from some hop on no response holds the fact; after each tool has
            been tried the expert answers "unknown". In half of these episodes responses are
            blanked, the paper's extreme case; in the others they only do not state it.
        shuffled: of a response, that its evidence comes in random order; ids are given afterwards,
            in order.
        twins: of a response with evidence, that it gets a twin, see `run_experts`.
        foreign: of a response that states the fact, that it gets a twin that states it, too, among
            unrelated evidence.
        drills: of a response with evidence, that it gets a drill, see `twins.Response.drill`.
        hasty: of a finding but the last, in dialects with verification, that the expert answers
            with what it found, sees on checking that the question asks for more, and goes on.
        unsaid: of a finding, that the next thought does not state it. Such episodes are right, but
            not faithful in VERITAS's sense: a policy that has both habits can be trained towards
            either.
    """

    wrong_tool: float = 0.15
    dropped: float = 0.08
    nothing: float = 0.02
    blind: float = 0.05
    shuffled: float = 0.4
    twins: float = 0.0
    foreign: float = 0.0
    drills: float = 0.0
    hasty: float = 0.0
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
    """Play every plan with the real tools, `concurrency` episodes at once, in the plans' order. The
    same plans and seed give the same episodes.

    `stop_reason` is "answered", or "not_found" / "not_named" if the expert gave up: nothing stated
    the fact, or a hop's subject was named neither by the question nor by evidence. `meta["blind"]`
    marks episodes that rightly end in "unknown".

    A twin is an episode up to one of its responses, that response with the opposite truth, and the
    expert's next turn, the only one to learn from; `meta["twin"]` says how the response was
    changed. A drill is a twin that begins with the response's own call.
    """
    desk = _Desk(dialect, habits or Habits(), seed, toolbox.first_arguments)
    played: list[Played] = []
    bar = tqdm(total=len(plans), desc="expert episodes", unit="episode", disable=not progress)
    with bar:
        for start in range(0, len(plans), concurrency):
            episodes = [_Episode(plan, desk) for plan in plans[start : start + concurrency]]
            _play_all(episodes, toolbox)
            played += [Played(episode.written(), episode.twins) for episode in episodes]
            bar.update(len(episodes))
    return played


Game = Generator[ToolCall, Observation | None, None]
"""An episode being played: it yields calls and is sent their observations."""


def _play_all(episodes: "Sequence[_Episode]", toolbox: Toolbox) -> None:
    """Play the episodes to their ends; each round runs the next calls of all in one batch."""
    waiting: list[tuple[Game, ToolCall]] = []
    for episode in episodes:
        game = episode.play()
        call = _next_call(game, None)
        if call is not None:
            waiting.append((game, call))
    while waiting:
        sessions = [toolbox.session() for _ in waiting]
        observations = toolbox.run_batch([call for _, call in waiting], sessions)
        still_waiting = []
        for (game, _), observation in zip(waiting, observations, strict=True):
            call = _next_call(game, observation)
            if call is not None:
                still_waiting.append((game, call))
        waiting = still_waiting


def _next_call(game: Game, observation: Observation | None) -> ToolCall | None:
    """The call that an episode makes after this observation; `None` when it has ended."""
    try:
        return game.send(observation)
    except StopIteration:
        return None


@dataclass
class _Desk:
    """What all episodes share: how they are played, the name of each tool's argument, and the
    evidence that was returned so far.
    """

    dialect: Dialect
    habits: Habits
    seed: int
    arguments: Mapping[str, str]
    shelf: twins.Shelf = field(default_factory=twins.Shelf)


class _Episode:
    """An episode in the making: `play` makes steps and twins, `written` its trajectory."""

    def __init__(self, plan: Plan, desk: _Desk) -> None:
        self.plan = plan
        self.desk = desk
        self.habits = desk.habits
        self.checks = desk.dialect.can_verify
        self.rng = random.Random(f"{desk.seed}:{plan.id}")
        # a generator of its own, so that twins do not change the episode
        self.twin_rng = random.Random(f"{desk.seed}:{plan.id}:twins")
        blind = self.rng.random() < self.habits.blind
        self.blind_from = self.rng.randrange(len(plan.hops)) if blind else len(plan.hops)
        self.all_blank = blind and self.rng.random() < 0.5
        self.evidence_count = 0  # pieces of evidence, which are numbered
        self.steps: list[Step] = []
        self.twins: list[Trajectory] = []
        self.stop_reason = "answered"

    def play(self) -> Game:
        """Query hop by hop until something states the fact, then go on from it."""
        finding = ""  # what the last hop found, as a sentence
        verdict: bool | None = None
        refs: tuple[str, ...] = ()
        for number, hop in enumerate(self.plan.hops):
            # An expert that asks for what it cannot know yet would teach to answer from memory.
            if not self._is_named(hop.subject):
                self.stop_reason = "not_named"
                return
            blind = number >= self.blind_from
            think = self._onward(finding, hop.need)
            finding = ""
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
                verdict, refs = bool(gold), tuple(passage.id for passage in gold)
                if gold:
                    finding = self._finding(hop, gold)
                    break
            if not finding:
                self.stop_reason = "answered" if blind else "not_found"
                last = Step(self._say(GIVE_UP, need=hop.need), answer=UNKNOWN, helpful=False)
                return self._end(last, NOT_FOUND, need=hop.need)
            is_last = number + 1 == len(self.plan.hops)
            may_be_hasty = self.checks and not is_last and bool(hop.object)
            if may_be_hasty and self.rng.random() < self.habits.hasty:
                self._answer_early(hop, finding, self.plan.hops[number + 1])
        answer = self.plan.answers[0]
        last = Step(self._conclusion(finding, answer), answer=answer, helpful=verdict, refs=refs)
        self._end(last, UPHELD, found=finding)

    def _is_named(self, subject: str) -> bool:
        """Whether the question or the evidence so far names a subject; an empty one always is."""
        texts = [self.plan.question]
        for step in self.steps:
            for passage in step.evidence:
                texts += [passage.title, passage.text]
        name = unqualified(subject)
        return any(contains(text, name) for text in texts)

    def _answer_early(self, hop: Hop, finding: str, next_hop: Hop) -> None:
        """Answer with what a hop found, and see on checking that the question asks for more."""
        self.steps.append(Step(self._say(DONE, found=finding), answer=hop.object))
        check = self._say(STOPPED_EARLY, found=finding, need=next_hop.need)
        self.steps.append(Step(check, verified=False))

    def written(self) -> Trajectory:
        """The episode as the dialect writes it."""
        blind = {"blind": True} if self.blind_from < len(self.plan.hops) else {}
        draft = self._trajectory(self.steps, self.plan.id, **blind)
        return as_written(replace(draft, stop_reason=self.stop_reason), self.desk.dialect)

    def _trajectory(self, steps: Sequence[Step], id: str, **meta: Any) -> Trajectory:
        plan, dialect = self.plan, self.desk.dialect.name
        return Trajectory(
            tuple(steps), plan.question, dialect=dialect, id=id, answers=plan.answers, meta=meta
        )

    def _end(self, last: Step, check: Sequence[str], **parts: str) -> None:
        """End with this step and, in dialects with verification, a check of the answer."""
        self.steps.append(last)
        if self.checks:
            self.steps.append(Step(self._say(check, **parts), verified=True))

    def _say(self, templates: Sequence[str], **parts: str) -> str:
        return self.rng.choice(templates).format(**parts)

    def _onward(self, finding: str, need: str) -> str:
        """The thought before the first call of a hop."""
        if finding and not self._leaves_unsaid():
            return self._say(NEXT, found=finding, need=need)
        return self._say(FIRST, need=need)

    def _again(self, hop: Hop, queries: Sequence[Query]) -> str:
        """The thought before the second of these queries, the first of which found nothing."""
        tool, next_tool = queries[0][0], queries[1][0]
        phrases = OTHER_TOOL if next_tool != tool else REWORD
        return self._say(phrases, need=hop.need, tool=next_tool)

    def _conclusion(self, finding: str, answer: str) -> str:
        if self._leaves_unsaid():
            return self._say(UNSAID)
        phrases = DONE if contains(finding, answer) else CONCLUDE
        return self._say(phrases, found=finding, answer=answer)

    def _leaves_unsaid(self) -> bool:
        # no draw at 0, so that other episodes stay the same
        return self.habits.unsaid > 0 and self.rng.random() < self.habits.unsaid

    def _call(self, tool: str, query: str) -> ToolCall:
        return ToolCall(tool, {self.desk.arguments[tool]: query})

    def _finding(self, hop: Hop, gold: Sequence[Evidence]) -> str:
        """The hop's statement; without one, the sentence of the evidence that holds the answer,
        else its first.
        """
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z\"“])", gold[0].text.strip())
        holding = (sentence for sentence in sentences if contains(sentence, self.plan.answers[0]))
        return hop.statement or next(holding, sentences[0])

    def _queries(self, hop: Hop, blind: bool) -> list[Query]:
        """The hop's queries to the tools at hand, sometimes another tool's first; in a blind
        episode each tool once.
        """
        # what a dialect that can only search calls it
        search = self.desk.dialect.search_tool or SEARCH
        queries: list[Query] = []
        for tool, text in hop.queries:
            query = (search if tool == SEARCH else tool, text)
            if query[0] in self.desk.arguments and query not in queries:
                queries.append(query)
        of_other_tools = [query for query in queries if query[0] != queries[0][0]]
        if of_other_tools and self.rng.random() < self.habits.wrong_tool:
            queries.remove(of_other_tools[0])
            queries.insert(0, of_other_tools[0])
        if not blind:
            return queries
        first_of_tool: dict[str, Query] = {}
        for query in queries:
            first_of_tool.setdefault(query[0], query)
        return list(first_of_tool.values())

    def _bent(self, hop: Hop, tool: str, observation: Observation, blind: bool) -> Observation:
        """The response as the expert gets it: it may be empty, blanked, without its gold, or in
        another order.
        """
        rng = self.rng
        evidence = list(observation.evidence)
        if not evidence:
            return observation
        is_empty = rng.random() < self.habits.nothing
        is_dropped = rng.random() < self.habits.dropped
        is_shuffled = rng.random() < self.habits.shuffled
        if is_empty and not blind:
            return NO_RESULTS
        # kept before it is bent: foils are made of what tools really return
        self.desk.shelf.put(hop, tool, evidence)
        if is_dropped or blind:
            kind = "blank" if blind and self.all_blank else twins.drawn_kind(rng)
            evidence = twins.Response(hop, tool, evidence, self.desk.shelf, rng).without(kind)
        if is_shuffled:
            rng.shuffle(evidence)
        first = self.evidence_count + 1
        self.evidence_count += len(evidence)
        return Observation(_numbered(evidence, first)) if evidence else NO_RESULTS

    def _add_twins(
        self, number: int, step: Step, evidence: Sequence[Evidence], queries: Sequence[Query]
    ) -> None:
        """Add twins of a response (its evidence is numbered) to the call of `step`, the first of
        `queries`.
        """
        hop, rng = self.plan.hops[number], self.twin_rng
        response = twins.Response(hop, queries[0][0], evidence, self.desk.shelf, rng)
        gold = hop.gold(evidence)
        responses: list[tuple[str, list[Evidence]]] = []  # the kind, and the evidence
        if evidence and rng.random() < self.habits.twins:
            if gold:
                kind = twins.drawn_kind(rng)
                responses.append((kind, response.without(kind)))
            else:
                responses.append(("planted", response.planted()))
        if gold and rng.random() < self.habits.foreign:
            responses.append(("foreign", response.among_foreign()))
        if evidence and rng.random() < self.habits.drills:
            responses.append((DRILL, response.drill()))
        # the episode's own draws stay the same with and without twins
        episode_rng, self.rng = self.rng, rng
        first = self.evidence_count - len(evidence) + 1
        for kind, pieces in responses:
            if not pieces:  # the shelf may hold nothing of the kind yet
                continue
            changed = replace(step, evidence=_numbered(pieces, first))
            steps = self._twin(kind, number, changed, queries)
            twin_id = f"{self.plan.id}@{len(self.twins)}"
            self.twins.append(self._trajectory(steps, twin_id, twin=kind))
        self.rng = episode_rng

    def _twin(self, kind: str, number: int, step: Step, queries: Sequence[Query]) -> list[Step]:
        """The steps so far, the changed response, and the next turn as the expert would write it
        then.
        """
        hop = self.plan.hops[number]
        gold, answer = hop.gold(step.evidence), self.plan.answers[0]
        steps = [*self.steps, step]
        if kind == DRILL:
            steps = [Step(self._onward("", hop.need), step.call, evidence=step.evidence)]
        if gold and number + 1 < len(self.plan.hops):
            next_hop = self.plan.hops[number + 1]
            call = self._call(*self._queries(next_hop, blind=False)[0])
            last = Step(self._onward(self._finding(hop, gold), next_hop.need), call)
        elif gold:
            last = Step(self._conclusion(self._finding(hop, gold), answer), answer=answer)
        elif len(queries) > 1:
            last = Step(self._again(hop, queries), self._call(*queries[1]))
        else:
            last = Step(self._say(GIVE_UP, need=hop.need), answer=UNKNOWN)
        last = replace(last, helpful=bool(gold), refs=tuple(passage.id for passage in gold))
        return [*steps, last]


def _numbered(evidence: Sequence[Evidence], first: int) -> tuple[Evidence, ...]:
    return tuple(replace(passage, id=f"E{n}") for n, passage in enumerate(evidence, start=first))
