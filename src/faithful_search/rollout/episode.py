"""The state machine of one sample: token in, token out.

An episode holds one growing list of token ids. Tokens that the policy samples are appended as they
are (mask 1). Text of the environment is tokenised once and appended (mask 0). Tokens are decoded
for parsing only; the decoded text is never tokenised again.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

import msgspec

from ..errors import ConfigError
from ..inference.base import Completion
from ..inference.chat import ChatFormat
from ..tasks import Task
from ..tools.base import Observation
from ..trajectory import Evidence, Issue, Step, Tokens, ToolCall, Trajectory

OnEnd = Callable[[Trajectory], Any] | None
"""A callback for the trajectory of an episode that has ended."""
OnStep = Callable[[str, Step], Any] | None
"""A callback for a turn that was taken: the id of its episode, and the step."""
_CHARS_PER_TOKEN = 4  # the first guess of how much text fits into a number of tokens
_LONGEST_WORD = 30  # the most characters that are dropped so that a cut text ends with a whole word
END_REASONS = {
    "answered": "the agent gave an answer, and upheld it where it was asked to check it",
    "answered_forced": "the last allowed turn gave no answer; the agent gave one that the environment opened for it",
    "turn_limit": "the last allowed turn gave no answer or left one unchecked; its call, if any, was not run",
    "token_limit": "the episode's tokens were used up",
    "turn_token_limit": "a turn was cut at its token limit before any action, or within its call",
    "no_action": "a turn closed with neither a call nor an answer, and the dialect gives no second chance",
}
"""The values of `Trajectory.stop_reason`, and what each means."""


class Limits(msgspec.Struct, frozen=True):
    """The bounds of an episode.

    Attributes:
        turns: maximum number of turns of the agent.
        turn_tokens: maximum number of tokens that the agent samples in a turn.
        total_tokens: maximum number of tokens of the completion, those of tool responses included.
        observation_tokens: maximum number of tokens of a tool response as the dialect writes it,
            with its tags, without what a chat template puts around it; 0 for no limit. A longer one
            is shortened inside its tags (`fit`).
        force_answer: if the agent has given no answer in its turns, open one for it: the agent
            completes it in one more turn of at most `turn_tokens`.
        verify: let the agent check each answer in a turn of its own, and continue its research
            after an answer that it finds incorrect (PokeeResearch, section 3.1; dialect `pokee`).
            If a limit ends the episode first, the last answer stands.
        kept_responses: number of the last tool responses that the policy sees; 0 for all of them.
            Its own thoughts and calls always stay. Only for dialects that append raw text
            (`search_r1`).

    Raises:
        ConfigError: for a bound below 1 (`observation_tokens`, `kept_responses`: below 0).
    """

    turns: int = 10
    turn_tokens: int = 512
    total_tokens: int = 8192
    observation_tokens: int = 0
    force_answer: bool = False
    verify: bool = False
    kept_responses: int = 0

    def __post_init__(self) -> None:
        if min(self.turns, self.turn_tokens, self.total_tokens) < 1:
            raise ConfigError(f"limits must be at least 1, got {self}")
        if min(self.observation_tokens, self.kept_responses) < 0:
            raise ConfigError(
                "observation_tokens and kept_responses must be at least 0 (0: no limit), got "
                f"{self}"
            )


class Episode:
    """One task's episode: alternate `take_turn` and `take_observation` until `stop_reason` is set,
    then take its `trajectory()`.

    Args:
        chat: the policy's tokenizer, seen through the dialect.
        tools: JSON schemas of the tools.
        id: by default the task's.
    """

    def __init__(
        self,
        task: Task,
        chat: ChatFormat,
        limits: Limits,
        tools: list[dict[str, Any]],
        id: str | None = None,
    ) -> None:
        self.task = task
        self.chat = chat
        self.limits = limits
        self.id = task.id if id is None else id
        self.prompt_ids = chat.prompt_ids(task.question, tools)
        # The completion; for `mask` see `Tokens`. A turn is (start, middle, end): the policy sampled
        # the tokens from start to middle, its tool response takes those from middle to end.
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = []
        self.turns: list[tuple[int, int, int]] = []
        self.steps: list[Step] = []
        # The completion's text. A buffer, so that a turn costs its own length, not the episode's.
        self._text = StringIO()
        self.stop_reason: str | None = None
        self.forced_opening = ""  # of the answer that the environment opened for the next turn
        self.cuts: list[dict[str, int]] = []  # `observations_cut` of the trajectory

    @property
    def context(self) -> list[int]:
        """The token ids that the policy sees before its next turn."""
        kept = self.limits.kept_responses
        if not kept:
            return self.prompt_ids + self.ids
        places = visible_places(self.turns, len(self.ids), kept)
        return self.prompt_ids + [self.ids[place] for place in places]

    @property
    def budget(self) -> int:
        """How many tokens the next turn may have."""
        return max(1, min(self.limits.turn_tokens, self.limits.total_tokens - len(self.ids)))

    def take_turn(self, completion: Completion) -> ToolCall | Issue | None:
        """Take the turn that the policy sampled.

        Returns the call to run, or an `Issue` that says why the call can neither be read nor
        repaired: in both cases `take_observation` is next. Returns `None` if the episode has ended,
        or if the environment has replied itself and the next turn is the policy's.
        """
        start = len(self.ids)
        self._append(completion.ids, 1, completion.logprobs)
        self.turns.append((start, len(self.ids), len(self.ids)))
        step = self._parse(completion)
        self.steps.append(step)
        calls_tool = step.answer is None and (step.call is not None or "call" in step.spans)
        reply = None  # of the environment, to a turn that calls no tool
        if not calls_tool and not self.forced_opening:
            reply = self.chat.dialect.controller_reply(self.steps, verify=self.limits.verify)

        # The agent has answered, or upheld its answer, and the environment asks nothing more
        if reply is None and (step.answer is not None or step.verified):
            self._finish("answered_forced" if self.forced_opening else "answered")
            return None
        if len(self.steps) >= self.limits.turns:
            if not self._force_answer(step):
                self._finish("turn_limit")
            return None
        # A turn that was cut at its token limit ends the episode, unless its action is complete
        call_is_open = any(issue.kind == "call_unclosed" for issue in step.issues)
        acted = calls_tool or reply is not None
        if completion.finish == "length" and (call_is_open or not acted):
            used_up = len(self.ids) >= self.limits.total_tokens
            self._finish("token_limit" if used_up else "turn_token_limit")
            return None
        if calls_tool:
            return step.call or issue_of_call(step)
        if reply is None:
            self._finish("no_action")
        elif not self._append_response(reply):
            self._finish("token_limit")
        return None

    def _force_answer(self, step: Step) -> bool:
        """Open an answer for an agent whose turns are used up, if possible; returns whether."""
        opening = self.chat.answer_opening
        may_force = self.limits.force_answer and not self.forced_opening and self._answer is None
        if not may_force or not opening:
            return False
        forced = self.chat.dialect.force_answer(step)
        if forced is None:
            return False
        forced_step, response_text = forced
        if not self._append_response(response_text, opening):
            return False
        if forced_step.note:  # a response to its call; a step without a call has none
            forced_step = self._with_response(forced_step, response_text)
        self.steps[-1] = forced_step
        self.forced_opening = opening
        return True

    def take_observation(self, observation: Observation) -> None:
        """Append the tool response to the last call. Ends the episode if it no longer fits."""
        chat = self.chat
        limit = self.limits.observation_tokens
        shown = fit(observation, self._rendered_length, limit) if limit else observation
        if shown != observation:
            self.cuts.append(
                {
                    "step": len(self.steps),
                    "found": len(observation.evidence),
                    "shown": len(shown.evidence),
                }
            )
        text = chat.render_observation(shown.evidence, shown.note)
        if not self._append_response(text):
            self._finish("token_limit")
            return
        step = msgspec.structs.replace(self.steps[-1], evidence=shown.evidence, note=shown.note)
        self.steps[-1] = self._with_response(step, text)

    def _rendered_length(self, observation: Observation) -> int:
        """How many tokens the observation takes as the dialect writes it."""
        text = self.chat.render_observation(observation.evidence, observation.note)
        return len(self.chat.encode(text))

    def trajectory(self) -> Trajectory:
        """The episode as a value, token ids included.

        `meta["observations_cut"]` has an entry for each tool response that was shortened: its
        `step` (from 1), how many passages were `found` and `shown`. `meta["counterfactual"]` is the
        task's: a rollout in a changed world says so.
        """
        meta: dict[str, Any] = {}
        if "counterfactual" in self.task.meta:
            meta["counterfactual"] = self.task.meta["counterfactual"]
        if self.cuts:
            meta["observations_cut"] = list(self.cuts)
        responded = any("response" in step.spans for step in self.steps)
        return Trajectory(
            steps=tuple(self.steps),
            question=self.task.question,
            answer=self._answer,
            stop_reason=self.stop_reason,
            dialect=self.chat.dialect.name,
            id=self.id,
            answers=self.task.answers,
            text=self._text.getvalue(),
            tokens=Tokens(self.prompt_ids, self.ids, self.mask, tuple(self.turns), self.logprobs),
            meta=meta,
            evidence_from="environment" if responded else "",
        )

    def _parse(self, completion: Completion) -> Step:
        """The sampled turn as a step, with spans in the episode's text."""
        offset = self._text.tell()
        text = self._turn_text(completion)
        self._text.write(text)
        parsed = self.chat.dialect.parse_turn(text, first=not self.steps)
        step = self._repaired(parsed, text)
        spans = {}
        for part, (start, end) in step.spans.items():
            spans[part] = (offset + start, offset + end)
        issues = tuple(_moved(issue, offset) for issue in step.issues)
        return msgspec.structs.replace(step, spans=spans, issues=issues)

    def _repaired(self, step: Step, text: str) -> Step:
        """The step with its call, where this is in broken JSON that can be repaired in one way
        only. The issues stay.
        """
        call_issues = {issue.kind for issue in step.issues if issue.kind.startswith("call_")}
        if call_issues != {"call_json"} or step.call is not None or step.answer is not None:
            return step
        start, end = step.spans["call"]
        call = self.chat.dialect.repair_call(text[start:end])
        return msgspec.structs.replace(step, call=call)

    def _turn_text(self, completion: Completion) -> str:
        """The text of the turn: with what the template or the environment opened for it, and
        without the template's end of turn.
        """
        ids = completion.ids
        # The end is the EOS token, or all tokens of the template's end of turn.
        end_length = 1 if completion.finish == "eos" else 0
        if self.chat.ended(ids):
            end_length = len(self.chat.end_ids)
        opened = self.chat.opened(first=not self.steps) + self.forced_opening
        sampled = ids[: len(ids) - end_length]
        return opened + self.chat.tokenizer.decode(sampled, skip_special_tokens=False)

    @property
    def _answer(self) -> str | None:
        """The last answer, also where the agent went on to doubt it."""
        for step in reversed(self.steps):
            if step.answer is not None:
                return step.answer
        return None

    def _with_response(self, step: Step, text: str) -> Step:
        """The step with the span of its tool response, `text`, which was appended last."""
        offset = self._text.tell() - len(text)
        start, end = self.chat.dialect.response_span(text)
        response = (offset + start, offset + end)
        return msgspec.structs.replace(step, spans={**step.spans, "response": response})

    def _append_response(self, text: str, opened: str = "") -> bool:
        """Append the environment's response, and after it the opening of a forced answer
        (`opened`).

        Returns whether they fit. If no token would be left after them, nothing is appended. In the
        text, the opening is the beginning of the next turn.
        """
        start, middle, _ = self.turns[-1]
        has_ended = self.chat.ended(self.ids[start:middle])
        ids = self.chat.observation_ids(text, has_ended, opened)
        if len(self.ids) + len(ids) >= self.limits.total_tokens:
            return False
        self._append(ids, 0, [0.0] * len(ids))
        self.turns[-1] = (start, middle, len(self.ids))
        self._text.write(text)
        return True

    def _append(self, ids: list[int], mask: int, logprobs: list[float] | None) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        if logprobs is None:  # without those of one turn the episode has none
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += logprobs

    def _finish(self, reason: str) -> None:
        self.stop_reason = reason
        # Trainers treat an episode as truncated unless its last token is the end-of-turn token, or
        # the EOS after it where the two differ. They cannot take an episode without tokens, either.
        if reason in ("answered", "answered_forced", "no_action") or not self.ids:
            closing = self.chat.closing_ids(self.ids)
            self._append(closing, 0, [0.0] * len(closing))


def _moved(issue: Issue, offset: int) -> Issue:
    """The issue with its span moved by so many characters."""
    if issue.span is None:
        return issue
    start, end = issue.span
    return msgspec.structs.replace(issue, span=(start + offset, end + offset))


def visible_places(
    turns: Sequence[tuple[int, int, int]], length: int, kept_responses: int
) -> Iterator[int]:
    """The places in a completion that the policy sees after `turns`: all but those of the tool
    responses before the last `kept_responses`; all of them, if that is 0.

    Args:
        turns: as in `Tokens`.
        length: the completion's number of tokens.

    Example:
        >>> list(visible_places([(0, 2, 5), (5, 6, 8)], 8, kept_responses=1))
        [0, 1, 5, 6, 7]
    """
    start = 0
    hidden = turns[:-kept_responses] if kept_responses else ()
    for _, middle, end in hidden:
        yield from range(start, middle)
        start = end
    yield from range(start, length)


def copies(tasks: Iterable[Task]) -> Iterator[tuple[Task, str, int]]:
    """Each task, the id of its episode, and how many times the task came before.

    The first episode of a task has the task's own id, later ones `id#1`, `id#2`, …
    """
    counts: Counter[str] = Counter()
    for task in tasks:
        copy = counts[task.id]
        counts[task.id] += 1
        episode_id = f"{task.id}#{copy}" if copy else task.id
        yield task, episode_id, copy


def sample_number(episode_id: str) -> int:
    """The number of episodes of the same task before this one, as `copies` wrote it into the id. It
    is added to the seed, so that each episode samples differently.

    Example:
        >>> sample_number("nq-7#2"), sample_number("nq-7")
        (2, 0)
    """
    return _sample_of(episode_id)[1]


def task_id(episode_id: str) -> str:
    """The id of the episode's task: the episode's without the number that `copies` wrote into it.

    Example:
        >>> task_id("nq-7#2"), task_id("nq-7")
        ('nq-7', 'nq-7')
    """
    return _sample_of(episode_id)[0]


def _sample_of(episode_id: str) -> tuple[str, int]:
    """The id of the episode's task, and how many episodes of it came before."""
    task, mark, number = episode_id.rpartition("#")
    if mark and number.isdecimal() and number.isascii():
        return task, int(number)
    return episode_id, 0


def issue_of_call(step: Step) -> Issue:
    """Why the call of this turn can neither be read nor repaired."""
    for issue in step.issues:
        if issue.kind.startswith("call_"):
            return issue
    return Issue("call_json", "it has no readable form", step.spans["call"])


def fit(observation: Observation, size: Callable[[Observation], int], limit: int) -> Observation:
    """The longest beginning of an observation whose `size` is at most `limit`.

    The first passages stay whole. The last one that fits is shortened, at the end of a word if one
    is near, and those after it are dropped. Titles are never cut. A note is shortened in the same
    way. An empty observation must fit.

    Args:
        size: returns the number of tokens of an observation as the policy sees it. It is called
            about 20 times at most, and on a long observation only with its beginning.

    Example:
        >>> long = Observation((Evidence("one two three", "A"), Evidence("four five", "B")))
        >>> def words(shown):
        ...     return sum(len(f"{e.title} {e.text}".split()) for e in shown.evidence)
        >>> [passage.text for passage in fit(long, words, 6).evidence]
        ['one two three', 'four']
    """
    # Characters are counted as by `_beginning`
    length = sum(1 + len(passage.title) + len(passage.text) for passage in observation.evidence)
    if not observation.evidence:
        length = len(observation.note)

    def is_too_long(chars: int) -> bool:
        return size(_beginning(observation, chars)) > limit

    # Double a first guess until it is too long, then bisect, so that only the beginning of a long
    # observation is measured
    fitting = 0
    too_long = min(length, _CHARS_PER_TOKEN * limit)
    while not is_too_long(too_long):
        if too_long == length:
            return observation
        fitting = too_long
        too_long = min(length, 2 * fitting)
    # `fitting` fits and `too_long` does not; between them, count the lengths that fit, too
    further = bisect_left(range(fitting + 1, too_long), True, key=is_too_long)
    return _beginning(observation, fitting + further)


def _beginning(observation: Observation, chars: int) -> Observation:
    """The first `chars` characters of an observation. Titles count, and each passage counts as one
    more character.
    """
    if not observation.evidence:
        return msgspec.structs.replace(observation, note=_cut(observation.note, chars))
    passages: list[Evidence] = []
    for passage in observation.evidence:
        room = chars - 1 - len(passage.title)
        if room < len(passage.text):
            text = _cut(passage.text, max(0, room))
            if text:
                passages.append(msgspec.structs.replace(passage, text=text))
            break
        passages.append(passage)
        chars = room - len(passage.text)
    note = observation.note if passages else ""
    return msgspec.structs.replace(observation, evidence=tuple(passages), note=note)


def _cut(text: str, chars: int) -> str:
    """The first `chars` characters of a text, or a few less so that it ends with a whole word."""
    if len(text) <= chars:
        return text
    beginning = text[:chars]
    if text[chars].isspace():
        return beginning.rstrip()
    last_blank = max(beginning.rfind(" "), beginning.rfind("\n"))
    whole_words = beginning[: last_blank + 1].rstrip()
    if whole_words and chars - len(whole_words) <= _LONGEST_WORD:
        return whole_words
    return beginning.rstrip()
