"""Which call a result answers: among those of its turn by ids, else by names, else in order."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .chat import Call, Message, Problem


@dataclass
class _Turn:
    """A message of the agent, and all messages up to its next one.

    Attributes:
        message: the agent's; `None` for what stands before its first.
        followers: the messages after it; `None` for one that was taken away.
        answered: the places of its calls that have a result.
    """

    message: Message | None = None
    followers: list[Message | None] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.message.calls if self.message else ()

    @cached_property
    def requests(self) -> dict[int, int]:
        """For the place of each call that hands in no answer, its number among these calls."""
        places = [place for place, call in enumerate(self.calls) if call.answer is None]
        return {place: number for number, place in enumerate(places)}

    def answer(self, place: int, result: Message) -> Message | None:
        """Answer the call at `place`. Returns the result as that of the call; `None` where the call
        hands in the answer.
        """
        self.answered.add(place)
        if place not in self.requests:
            return None
        return result._replace(place=self.requests[place])

    def messages(self, last: bool) -> Iterator[Message]:
        """The turn's messages. An answer that was handed in beside other calls comes after their
        results.

        `last`: no turn follows.
        """
        followers = [message for message in self.followers if message is not None]
        if self.message is None:
            yield from followers
            return
        requests = self.message.requests
        answers = self.message.answers
        problems = [*self.message.problems, *self.problems]
        may_run = last and not followers  # calls at the very end may still be running
        if requests and not may_run and not any(map(_responds, followers)):
            problems.append(Problem("response_missing", f"{len(requests)} calls, no response"))
        if len(answers) > 1:
            why = f"{len(answers)} answers were handed in within one turn; the last counts"
            problems.append(Problem("answer_multiple", why))
        message = self.message._replace(problems=tuple(problems))
        if not (requests and answers):
            yield message
            yield from followers
            return
        yield message._replace(calls=requests)
        yield from followers
        handing_in = [call for call in self.message.calls if call.answer is not None]
        yield Message("assistant", calls=tuple(handing_in))


def paired(chat: Iterable[Message]) -> Iterator[Message]:
    """The chat with each result after the turn whose call it answers.

    A result that names a call of another turn is moved there, and that turn gets a problem. One
    that names no call at all, in a turn with calls, is left out, and its own turn gets a problem.
    """
    turns = [_Turn()]
    callers: dict[str, list[tuple[_Turn, int]]] = defaultdict(list)  # by id: turns and places
    for message in chat:
        if message.role != "assistant":
            turns[-1].followers.append(message)
            continue
        turns.append(_Turn(message))
        for place, call in enumerate(message.calls):
            callers[call.id].append((turns[-1], place))
    strays: list[tuple[_Turn, int, Message]] = []
    for turn in turns:
        for number, message in _pair_within(turn):
            strays.append((turn, number, message))
    for turn, number, stray in strays:
        unanswered = _only_unanswered(callers[stray.id]) if stray.id else None
        if unanswered is not None:
            caller, place = unanswered
            turn.followers[number] = None
            caller.followers.append(caller.answer(place, stray))
            why = f"the result of the call {stray.id!r} stood behind another turn"
            caller.problems.append(Problem("response_misplaced", why))
        elif turn.calls:
            turn.followers[number] = None
            why = f"a result names the call {stray.id!r}, which there is not: it is left out"
            turn.problems.append(Problem("response_unpaired", why))
    for number, turn in enumerate(turns, start=1):
        yield from turn.messages(last=number == len(turns))


def _only_unanswered(callers: Sequence[tuple[_Turn, int]]) -> tuple[_Turn, int] | None:
    """The call of an id, where there is one such call and it has no result yet."""
    if len(callers) != 1:
        return None
    turn, place = callers[0]
    return None if place in turn.answered else (turn, place)


def _responds(message: Message) -> bool:
    """Whether this is a result; in some chats they are user messages, between tags."""
    return message.role == "tool" or message.content.lstrip().startswith("<tool_response>")


def _pair_within(turn: _Turn) -> list[tuple[int, Message]]:
    """Pair the results after a turn with its calls.

    Returns those that name another call, with their numbers among the followers.
    """
    results: list[tuple[int, Message]] = []
    for number, message in enumerate(turn.followers):
        if message is not None and message.role == "tool":
            results.append((number, message))
    if not results:
        return []
    if not turn.calls:
        return [(number, message) for number, message in results if message.id]
    pairing = pair(
        [Label(call.id, call.name) for call in turn.calls],
        [Label(message.id, message.name) for _, message in results],
    )
    if pairing.assumed:
        why = "the results name none of the turn's calls; they were given to them in order"
        turn.problems.append(Problem("response_assumed", why))
    strays = []
    for (number, message), place in zip(results, pairing.places, strict=True):
        if place is None:
            strays.append((number, message))
        else:
            turn.followers[number] = turn.answer(place, message)
    return strays


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

    If any result has the id of a call, ids decide; results without an id then go to the remaining
    calls, if there are as many. Otherwise names decide, if all of them are names of calls. Else the
    order does: the first result goes to the first call, superfluous ones to the last.

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
    last = len(calls) - 1
    in_order: list[int | None] = [min(number, last) for number in range(len(results))]
    names_other_calls = bool(by_id) and any(result.id for result in results)
    return Pairing(in_order, assumed=names_other_calls)


def _by_id(
    calls: Sequence[Label], results: Sequence[Label], by_id: dict[str, deque[int]]
) -> list[int | None]:
    """For each result the place of the call with its id; results without one get what is left."""
    places: list[int | None] = []
    for result in results:
        places.append(_next(by_id[result.id]) if result.id in by_id else None)
    taken = set(places)
    left = [place for place in range(len(calls)) if place not in taken]
    without_id = [number for number, result in enumerate(results) if not result.id]
    if len(without_id) == len(left):
        for number, place in zip(without_id, left, strict=True):
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
