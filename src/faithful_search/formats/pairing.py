"""Which call a result answers: among those of its turn by ids, else by names, else in order."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .agent_turns import split_behind_calls
from .chat import Call, Message, Problem


@dataclass
class _Turn:
    """A message of the agent, and all messages up to its next one.

    Attributes:
        message: the agent's; `None` for what stands before its first.
        followers: the messages after it; `None` for one that was taken away.
        result_ids: the ids of the calls that the followers name as theirs.
    """

    message: Message | None = None
    followers: list[Message | None] = field(default_factory=list)
    result_ids: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.message.calls if self.message else ()

    @cached_property
    def requests(self) -> dict[int, int]:
        """For the place of each call that hands in no answer, its number among these calls."""
        places = [place for place, call in enumerate(self.calls) if call.answer is None]
        return {place: number for number, place in enumerate(places)}

    def add(self, follower: Message) -> None:
        self.followers.append(follower)
        if follower.id:
            self.result_ids.add(follower.id)

    def result_of(self, place: int, result: Message) -> Message | None:
        """The result as that of the call at `place`; `None` where that hands in the answer."""
        if place not in self.requests:
            return None
        return result._replace(place=self.requests[place])

    def messages(self, last: bool) -> Iterator[Message]:
        """The turn's messages.

        An answer that was handed in beside other calls comes after their results, and before what a
        user says next. What was said behind calls that nothing answered is a message of its own.

        `last`: no turn follows.
        """
        followers = [message for message in self.followers if message is not None]
        results = [message for message in followers if _responds(message)]
        words = [message for message in followers if not _responds(message)]
        if any(message.beside_results for message in words):  # perhaps between two results
            followers = [*results, *words]
        if self.message is None:
            yield from followers
            return
        message = self.message
        words_behind_calls: Message | None = None
        requests = message.requests
        answers = message.answers
        if requests and not answers and not results:
            message, words_behind_calls = split_behind_calls(message)
        # Calls at the very end lack no result: they may not have run yet.
        at_the_end = last and not (followers or answers or words_behind_calls)
        unanswered = bool(requests) and not results and not at_the_end
        message = message._replace(problems=self._problems_of(message, unanswered))
        if requests and answers:
            handing_in = [call for call in message.calls if call.answer is not None]
            yield message._replace(calls=requests)
            yield from results
            yield Message("assistant", calls=tuple(handing_in))
            yield from words
            return
        yield message
        if words_behind_calls is not None:
            yield words_behind_calls
        yield from followers

    def _problems_of(self, message: Message, unanswered: bool) -> tuple[Problem, ...]:
        """What is uncertain about the turn, whose `message` is this."""
        problems = [*message.problems, *self.problems]
        if unanswered:
            why = f"{len(message.requests)} calls, no response"
            problems.append(Problem("response_missing", why))
        if len(message.answers) > 1:
            why = f"{len(message.answers)} answers were handed in within one turn; the last counts"
            problems.append(Problem("answer_multiple", why))
        return tuple(problems)


def paired(chat: Iterable[Message]) -> Iterator[Message]:
    """The chat with each result after the turn whose call it answers.

    A result that names a call of another turn is moved there, and that turn gets a problem. One
    that names no call at all, in a turn with calls, is left out, and its own turn gets a problem;
    so is a further result of a call that hands in the answer.
    """
    turns = [_Turn()]
    callers: dict[str, list[_Turn]] = defaultdict(list)  # the turns of the calls with an id
    for message in chat:
        if message.role != "assistant":
            turns[-1].add(message)
            continue
        turns.append(_Turn(message))
        for call in message.calls:
            callers[call.id].append(turns[-1])
    for turn in turns:
        _move_misplaced(turn, callers)
    for turn in turns:
        _pair_within(turn, callers)
    for number, turn in enumerate(turns, start=1):
        yield from turn.messages(last=number == len(turns))


def _move_misplaced(turn: _Turn, callers: Mapping[str, Sequence[_Turn]]) -> None:
    """Move results to the turn whose call they name, where there is one such call, and no result
    that names it is there.
    """
    for number, message in enumerate(turn.followers):
        if message is None or not message.id:
            continue
        named = callers.get(message.id, ())
        if len(named) != 1 or named[0] is turn or message.id in named[0].result_ids:
            continue
        turn.followers[number] = None
        named[0].add(message)
        why = f"the result of the call {message.id!r} stood behind another turn"
        named[0].problems.append(Problem("response_misplaced", why))


def _responds(message: Message) -> bool:
    """Whether this is a result; in some chats they are user messages, between tags."""
    return message.role == "tool" or message.content.lstrip().startswith("<tool_response>")


def _pair_within(turn: _Turn, callers: Mapping[str, Sequence[_Turn]]) -> None:
    """Pair the results after a turn with its calls, and leave out those that name another call."""
    results: list[tuple[int, Message]] = []
    for number, message in enumerate(turn.followers):
        if message is not None and message.role == "tool":
            results.append((number, message))
    if not results or not turn.calls:
        return
    pairing = pair(
        [Label(call.id, call.name) for call in turn.calls],
        [Label(message.id, message.name) for _, message in results],
    )
    if pairing.assumed:
        why = "the results name none of the turn's calls; they were given to them in order"
        turn.problems.append(Problem("response_assumed", why))
    acknowledged: set[int] = set()  # the calls that hand in an answer, and have a result
    for (number, message), place in zip(results, pairing.places, strict=True):
        why = ""
        if place is None:
            why = _why_unpaired(message.id, callers)
        elif place in acknowledged:
            why = "a further result stood behind a call that hands in the answer"
        if why:
            turn.problems.append(Problem("response_unpaired", f"{why}: it is left out"))
        turn.followers[number] = None if place is None else turn.result_of(place, message)
        if place is not None and place not in turn.requests:
            acknowledged.add(place)


def _why_unpaired(identity: str, callers: Mapping[str, Sequence[_Turn]]) -> str:
    if not identity:
        return "a result names no call, and each call has a result"
    if identity in callers:
        return f"a further result of the call {identity!r} stood behind another turn"
    return f"a result names the call {identity!r}, which there is not"


class Label(NamedTuple):
    """The id and name of a call, or of the call that a result says it answers; empty if unknown."""

    id: str
    name: str


class Pairing(NamedTuple):
    """Which calls results answer.

    Attributes:
        places: for each result the place of its call; `None`: it names one that is not there.
        assumed: the results name calls, but none of these, and were paired by their order.
    """

    places: list[int | None]
    assumed: bool = False


def pair(calls: Sequence[Label], results: Sequence[Label]) -> Pairing:
    """Pair the results that follow a turn with its calls.

    If any result has the id of a call, ids decide; results without an id then go in order to the
    calls that have none, and superfluous ones to no call. Otherwise names decide, if all of them
    are names of calls. Else the order does: the first result goes to the first call, superfluous
    ones to the last.

    Example:
        >>> pair([Label("1", "a"), Label("2", "b")], [Label("2", ""), Label("9", "")]).places
        [1, None]
    """
    by_id = _queues(call.id for call in calls)
    if any(result.id in by_id for result in results):
        return Pairing(_by_id(calls, results, by_id))
    by_name = _queues(call.name.casefold() for call in calls)
    names = [result.name.casefold() for result in results]
    if all(name in by_name for name in names):
        return Pairing([_next(by_name[name]) for name in names])
    last_call = len(calls) - 1
    places: list[int | None] = []
    for number in range(len(results)):
        places.append(min(number, last_call))
    names_other_calls = bool(by_id) and any(result.id for result in results)
    return Pairing(places, assumed=names_other_calls)


def _by_id(
    calls: Sequence[Label], results: Sequence[Label], by_id: dict[str, deque[int]]
) -> list[int | None]:
    """For each result the place of the call with its id; results without one get what is left."""
    places: list[int | None] = []
    without_id: list[int] = []
    for number, result in enumerate(results):
        places.append(_next(by_id[result.id]) if result.id in by_id else None)
        if not result.id:
            without_id.append(number)
    answered = set(places)
    unanswered = [place for place in range(len(calls)) if place not in answered]
    for number, place in zip(without_id, unanswered, strict=False):
        places[number] = place
    return places


def _queues(labels: Iterable[str]) -> dict[str, deque[int]]:
    """The places of each label, in order; those without a label are left out."""
    queues: dict[str, deque[int]] = defaultdict(deque)
    for place, label in enumerate(labels):
        if label:
            queues[label].append(place)
    return dict(queues)


def _next(places: deque[int]) -> int:
    """The next of these places; the last one again and again."""
    return places.popleft() if len(places) > 1 else places[0]
