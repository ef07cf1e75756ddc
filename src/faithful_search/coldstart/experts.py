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

# What the expert says, by what it has come to; one phrase of each is drawn. `found` is a finding as a
# sentence, `need` what a hop needs, as it reads after "I need".
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
"""What experts of every dialect say. The others are of verification and of the habit `unsaid`."""

DRILL = "drill"
"""In `meta["twin"]`: a twin that begins with the response's own call."""


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
    the fact, as when no tool at hand takes a hop's queries, or a hop's subject was named neither by
    the question nor by evidence. `meta["blind"]` marks episodes that rightly end in "unknown".

    A twin is an episode up to one of its responses, that response with the opposite truth, and the
    expert's next turn, the only one to learn from; `meta["twin"]` says how the response was
    changed. A drill is a twin that begins with the response's own call.
    """
    shared = _Shared(dialect, habits or Habits(), seed, toolbox.first_arguments)
    played: list[Played] = []
    with tqdm(
        total=len(plans), desc="expert episodes", unit="episode", disable=not progress
    ) as bar:
        for start in range(0, len(plans), concurrency):
            episodes = [_Episode(plan, shared) for plan in plans[start : start + concurrency]]
            _play_all(episodes, toolbox)
            played += [Played(episode.written(), episode.twins) for episode in episodes]
            bar.update(len(episodes))
    return played


Game = Generator[ToolCall, Observation | None, None]
"""An episode being played: it yields calls and is sent their observations."""


def _play_all(episodes: "Sequence[_Episode]", toolbox: Toolbox) -> None:
    """Play the episodes to their ends; each round runs the next calls of all in one batch."""
    games = [episode.play() for episode in episodes]
    observations: Sequence[Observation | None] = [None] * len(games)
    while games:
        waiting: list[tuple[Game, ToolCall]] = []
        for game, observation in zip(games, observations, strict=True):
            call = _next_call(game, observation)
            if call is not None:
                waiting.append((game, call))
        games = [game for game, _ in waiting]
        sessions = [toolbox.session() for _ in waiting]
        observations = toolbox.run_batch([call for _, call in waiting], sessions)


def _next_call(game: Game, observation: Observation | None) -> ToolCall | None:
    """The call that an episode makes after this observation; `None` when it has ended."""
    try:
        return game.send(observation)
    except StopIteration:
        return None


@dataclass
class _Shared:
    """What all episodes of a run share.

    Attributes:
        arguments: by tool, the name of the argument that takes the query.
        shelf: the evidence that was returned so far, of which twins are made.
    """

    dialect: Dialect
    habits: Habits
    seed: int
    arguments: Mapping[str, str]
    shelf: twins.Shelf = field(default_factory=twins.Shelf)


@dataclass
class _Speech:
    """The expert's thoughts in words, which are drawn.

    Attributes:
        answer: the answer to the question.
        unsaid: how often a thought does not state what was found, see `Habits`.
    """

    rng: random.Random
    answer: str
    unsaid: float

    def say(self, templates: Sequence[str], **parts: str) -> str:
        return self.rng.choice(templates).format(**parts)

    def onward(self, finding: str, need: str) -> str:
        """The thought before the first call of a hop."""
        if finding and not self._leaves_unsaid():
            return self.say(NEXT, found=finding, need=need)
        return self.say(FIRST, need=need)

    def again(self, need: str, tool: str, next_tool: str) -> str:
        """The thought before a further query of a hop, after one that found nothing."""
        phrases = OTHER_TOOL if next_tool != tool else REWORD
        return self.say(phrases, need=need, tool=next_tool)

    def conclusion(self, finding: str) -> str:
        """The thought before the answer."""
        if self._leaves_unsaid():
            return self.say(UNSAID)
        phrases = DONE if contains(finding, self.answer) else CONCLUDE
        return self.say(phrases, found=finding, answer=self.answer)

    def _leaves_unsaid(self) -> bool:
        # no draw at 0, so that other episodes stay the same
        return self.unsaid > 0 and self.rng.random() < self.unsaid


class _Episode:
    """An episode in the making: `play` makes steps and twins, `written` its trajectory."""

    def __init__(self, plan: Plan, shared: _Shared) -> None:
        self.plan = plan
        self.shared = shared
        self.habits = shared.habits
        self.checks = shared.dialect.can_verify
        self.rng = random.Random(f"{shared.seed}:{plan.id}")
        self.speech = _Speech(self.rng, plan.answers[0], self.habits.unsaid)
        # draws of their own, so that twins do not change the episode
        self.twin_rng = random.Random(f"{shared.seed}:{plan.id}:twins")
        self.twin_speech = _Speech(self.twin_rng, plan.answers[0], self.habits.unsaid)
        is_blind = self.rng.random() < self.habits.blind
        # the first hop whose fact no response holds
        self.blind_from = self.rng.randrange(len(plan.hops)) if is_blind else len(plan.hops)
        self.all_blank = is_blind and self.rng.random() < 0.5
        self.evidence_count = 0  # pieces of evidence, which are numbered
        # what states the fact in the last response; `None` before the first
        self.gold: list[Evidence] | None = None
        self.steps: list[Step] = []
        self.twins: list[Trajectory] = []
        self.stop_reason = "answered"

    def play(self) -> Game:
        """Find the fact of one hop after the other, then answer."""
        finding = ""  # what the last hop found, as a sentence
        for number, hop in enumerate(self.plan.hops):
            # An expert that asks for what it cannot know yet would teach to answer from memory.
            if not self._is_named(hop.subject):
                self.stop_reason = "not_named"
                return
            finding = yield from self._search(number, finding)
            if not finding:
                self._give_up(number)
                return
            is_last = number + 1 == len(self.plan.hops)
            may_be_hasty = self.checks and not is_last and bool(hop.object)
            if may_be_hasty and self.rng.random() < self.habits.hasty:
                self._answer_early(hop, finding, self.plan.hops[number + 1])
        answer = self.plan.answers[0]
        last = Step(self.speech.conclusion(finding), answer=answer)
        self._end(_judging(last, self.gold), UPHELD, found=finding)

    def _search(self, number: int, finding: str) -> Generator[ToolCall, Observation | None, str]:
        """Query until something states the fact of a hop; returns it as a sentence, or "" where
        nothing does. `finding` is the last hop's.
        """
        hop = self.plan.hops[number]
        think = self.speech.onward(finding, hop.need)
        queries = self._queries(hop, self.rng, once_a_tool=self._is_blind(number))
        for turn, (tool, query) in enumerate(queries):
            if turn:
                last_tool, _ = queries[turn - 1]
                think = self.speech.again(hop.need, last_tool, tool)
            call = self._call(tool, query)
            step = _judging(Step(think, call), self.gold)
            returned = yield call
            observation = self._received(number, tool, returned or NO_RESULTS)
            self._add_twins(number, step, observation.evidence, queries[turn:])
            self.steps.append(replace(step, evidence=observation.evidence, note=observation.note))
            self.gold = hop.gold(observation.evidence)
            if self.gold:
                return self._finding(hop, self.gold)
        return ""

    def _is_blind(self, number: int) -> bool:
        """Whether no response to a hop's queries may hold its fact."""
        return number >= self.blind_from

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
        self.steps.append(Step(self.speech.say(DONE, found=finding), answer=hop.object))
        check = self.speech.say(STOPPED_EARLY, found=finding, need=next_hop.need)
        self.steps.append(Step(check, verified=False))

    def _give_up(self, number: int) -> None:
        """End with "unknown": nothing states the fact of this hop."""
        if not self._is_blind(number):  # in a blind episode "unknown" is the right answer
            self.stop_reason = "not_found"
        need = self.plan.hops[number].need
        last = Step(self.speech.say(GIVE_UP, need=need), answer=UNKNOWN)
        # Where the hop had no query, the last response is that of the hop before, which was good.
        self._end(_judging(last, self.gold), NOT_FOUND, need=need)

    def _end(self, last: Step, check: Sequence[str], **parts: str) -> None:
        """End with this step and, in dialects with verification, a check of the answer, in one of
        the phrases `check`.
        """
        self.steps.append(last)
        if self.checks:
            self.steps.append(Step(self.speech.say(check, **parts), verified=True))

    def written(self) -> Trajectory:
        """The episode as the dialect writes it."""
        blind = {"blind": True} if self.blind_from < len(self.plan.hops) else {}
        draft = self._trajectory(self.steps, self.plan.id, **blind)
        return as_written(replace(draft, stop_reason=self.stop_reason), self.shared.dialect)

    def _trajectory(self, steps: Sequence[Step], id: str, **meta: Any) -> Trajectory:
        return Trajectory(
            tuple(steps),
            self.plan.question,
            dialect=self.shared.dialect.name,
            id=id,
            answers=self.plan.answers,
            meta=meta,
        )

    def _call(self, tool: str, query: str) -> ToolCall:
        return ToolCall(tool, {self.shared.arguments[tool]: query})

    def _finding(self, hop: Hop, gold: Sequence[Evidence]) -> str:
        """The hop's statement; without one, the sentence of the evidence that holds the answer,
        else its first.
        """
        if hop.statement:
            return hop.statement
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z\"“])", gold[0].text.strip())
        for sentence in sentences:
            if contains(sentence, self.plan.answers[0]):
                return sentence
        return sentences[0]

    def _queries(self, hop: Hop, rng: random.Random, once_a_tool: bool = False) -> list[Query]:
        """The hop's queries to the tools at hand, sometimes another tool's first; with
        `once_a_tool` only the first to each tool.
        """
        queries = self._usable_queries(hop)
        of_other_tools = [query for query in queries if query[0] != queries[0][0]]
        if of_other_tools and rng.random() < self.habits.wrong_tool:
            queries.remove(of_other_tools[0])
            queries.insert(0, of_other_tools[0])
        if not once_a_tool:
            return queries
        first_of_tool: dict[str, Query] = {}
        for tool, text in queries:
            first_of_tool.setdefault(tool, (tool, text))
        return list(first_of_tool.values())

    def _usable_queries(self, hop: Hop) -> list[Query]:
        """The hop's queries to the tools at hand, each once, with the dialect's name for a search."""
        # what a dialect that can only search calls it
        search = self.shared.dialect.search_tool or SEARCH
        queries: dict[Query, None] = {}
        for tool, text in hop.queries:
            name = search if tool == SEARCH else tool
            if name in self.shared.arguments:
                queries[name, text] = None
        return list(queries)

    def _received(self, number: int, tool: str, observation: Observation) -> Observation:
        """The response to a hop's query as the expert gets it: it may be empty, blanked, without
        what states the fact, or in another order.
        """
        hop = self.plan.hops[number]
        is_blind = self._is_blind(number)
        rng = self.rng
        evidence = list(observation.evidence)
        if not evidence:
            return observation
        is_empty = rng.random() < self.habits.nothing
        is_dropped = rng.random() < self.habits.dropped
        is_shuffled = rng.random() < self.habits.shuffled
        if is_empty and not is_blind:
            return NO_RESULTS
        # kept before it is changed: foils are made of what tools really return
        self.shared.shelf.put(hop, tool, evidence)
        if is_dropped or is_blind:
            kind = "blank" if is_blind and self.all_blank else twins.drawn_kind(rng)
            response = twins.Response(hop, tool, evidence, self.shared.shelf, rng)
            evidence = response.without(kind)
        if is_shuffled:
            rng.shuffle(evidence)
        if not evidence:
            return NO_RESULTS
        first = self.evidence_count + 1
        self.evidence_count += len(evidence)
        return Observation(_numbered(evidence, first))

    def _add_twins(
        self, number: int, step: Step, evidence: Sequence[Evidence], queries: Sequence[Query]
    ) -> None:
        """Add the twins of a response.

        Args:
            number: the hop's.
            step: makes the call, the first of `queries`.
            evidence: what the response holds, numbered.
            queries: this one, and those that follow if it finds nothing.
        """
        first = self.evidence_count - len(evidence) + 1
        for kind, pieces in self._twin_responses(number, queries[0][0], evidence):
            if not pieces:  # the shelf may hold nothing of the kind yet
                continue
            changed = replace(step, evidence=_numbered(pieces, first))
            steps = self._twin(kind, number, changed, queries)
            if not steps:
                continue
            twin_id = f"{self.plan.id}@{len(self.twins)}"
            self.twins.append(self._trajectory(steps, twin_id, twin=kind))

    def _twin_responses(
        self, number: int, tool: str, evidence: Sequence[Evidence]
    ) -> list[tuple[str, list[Evidence]]]:
        """What the twins of a response hold: the kind of each, and its evidence."""
        hop = self.plan.hops[number]
        rng = self.twin_rng
        response = twins.Response(hop, tool, evidence, self.shared.shelf, rng)
        gold = hop.gold(evidence)
        responses: list[tuple[str, list[Evidence]]] = []
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
        return responses

    def _twin(self, kind: str, number: int, step: Step, queries: Sequence[Query]) -> list[Step]:
        """The steps so far, the one with the changed response, and the next turn as the expert
        would write it then; empty where there is no such turn.
        """
        hop = self.plan.hops[number]
        steps = [*self.steps, step]
        if kind == DRILL:
            think = self.twin_speech.onward("", hop.need)
            steps = [Step(think, step.call, evidence=step.evidence)]
        gold = hop.gold(step.evidence)
        next_turn = self._twin_turn(number, gold, queries)
        if next_turn is None:
            return []
        return [*steps, _judging(next_turn, gold)]

    def _twin_turn(
        self, number: int, gold: Sequence[Evidence], queries: Sequence[Query]
    ) -> Step | None:
        """The turn after the changed response, in which `gold` states the fact; `None` where that
        turn would be a call that no tool at hand takes.
        """
        if gold:
            return self._twin_turn_onward(number, gold)
        need = self.plan.hops[number].need
        if len(queries) == 1:
            return Step(self.twin_speech.say(GIVE_UP, need=need), answer=UNKNOWN)
        (tool, _), (next_tool, query) = queries[:2]
        think = self.twin_speech.again(need, tool, next_tool)
        return Step(think, self._call(next_tool, query))

    def _twin_turn_onward(self, number: int, gold: Sequence[Evidence]) -> Step | None:
        """The turn after a changed response that states the fact: the next hop, or the answer."""
        finding = self._finding(self.plan.hops[number], gold)
        if number + 1 == len(self.plan.hops):
            think = self.twin_speech.conclusion(finding)
            return Step(think, answer=self.plan.answers[0])
        next_hop = self.plan.hops[number + 1]
        queries = self._queries(next_hop, self.twin_rng)
        if not queries:
            return None
        tool, query = queries[0]
        think = self.twin_speech.onward(finding, next_hop.need)
        return Step(think, self._call(tool, query))


def _judging(step: Step, gold: Sequence[Evidence] | None) -> Step:
    """The step with its verdict on the response before it, in which `gold` states the fact; as it
    is where there was none.
    """
    if gold is None:
        return step
    return replace(step, helpful=bool(gold), refs=tuple(passage.id for passage in gold))


def _numbered(evidence: Sequence[Evidence], first: int) -> tuple[Evidence, ...]:
    return tuple(replace(passage, id=f"E{n}") for n, passage in enumerate(evidence, start=first))
