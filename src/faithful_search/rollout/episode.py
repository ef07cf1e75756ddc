"""One sample's state machine: token in, token out.

An episode holds one growing list of token ids. What the policy samples is appended as it is (mask 1), what the
environment adds is tokenised once and appended (mask 0); text is decoded for parsing and never tokenised again.
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

# Who is told of each trajectory as its episode ends, and of each turn, with its episode's id.
OnEnd = Callable[[Trajectory], Any] | None
OnStep = Callable[[str, Step], Any] | None
_CHARS_PER_TOKEN, _LONGEST_WORD = 4, 30
END_REASONS = {
    "answered": "the agent gave an answer, and upheld it where it was asked to check it",
    "answered_forced": "the last allowed turn gave no answer; the agent gave one that the environment opened for it",
    "turn_limit": "the last allowed turn gave no answer or left one unchecked; its call, if any, was not run",
    "token_limit": "the episode's tokens were used up",
    "turn_token_limit": "a turn was cut at its token limit before any action, or within its call",
    "no_action": "a turn closed with neither a call nor an answer, and the dialect gives no second chance",
}


class Limits(msgspec.Struct, frozen=True):
    """Bounds of an episode. Raises `ConfigError` for one below 1 (`observation_tokens`, `kept_responses`: below 0).

    Attributes:
        turns: turns of the agent.
        turn_tokens: tokens it may sample in a turn.
        total_tokens: completion tokens in all, those of tool responses included.
        observation_tokens: tokens of a tool response as the dialect writes it, its tags included, without what a chat
            template puts around it; 0 for no limit. What is longer is shortened inside its tags (`fit`).
        force_answer: when the last turn gives no answer, the environment opens one and the agent completes it: one
            turn more, of at most `turn_tokens`. Not where an answer was given before.
        verify: the agent checks each answer in turns of their own, and goes on with its research after one that it
            finds incorrect (PokeeResearch, section 3.1). When a limit ends the episode first, the last answer stands.
        kept_responses: how many of the last tool responses the policy sees; 0: all of them. What it thought and called
            stays. Only where a dialect appends raw text (`search_r1`).
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
                f"observation_tokens and kept_responses must be at least 0 (0: no limit), got {self}"
            )


class Episode:
    """Alternate `take_turn` and `take_observation` until `stop_reason` is set; then `trajectory()`.

    `chat` is the policy's tokenizer seen through the dialect, `tools` are JSON schemas, `id` is by default the task's.
    """

    def __init__(
        self,
        task: Task,
        chat: ChatFormat,
        limits: Limits,
        tools: list[dict[str, Any]],
        id: str | None = None,
    ) -> None:
        self.task, self.chat, self.limits = task, chat, limits
        self.id = task.id if id is None else id
        self.prompt_ids = chat.prompt_ids(task.question, tools)
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = []
        self.turns: list[tuple[int, int, int]] = []
        self.steps: list[Step] = []
        self._said = StringIO()  # a turn costs its own length, not the episode's
        self.stop_reason: str | None = None
        self.forced = ""  # what the environment wrote of the turn that is due
        self.cut: list[dict[str, int]] = []

    @property
    def context(self) -> list[int]:
        """What the policy sees next."""
        kept = self.limits.kept_responses
        return self.prompt_ids + (
            [self.ids[at] for at in seen(self.turns, len(self.ids), kept)] if kept else self.ids
        )

    @property
    def budget(self) -> int:
        """How many tokens the next turn may have."""
        return max(1, min(self.limits.turn_tokens, self.limits.total_tokens - len(self.ids)))

    def take_turn(self, completion: Completion) -> ToolCall | Issue | None:
        """Take what the policy sampled; returns the call to run, or why it could be neither read nor repaired.

        `None`: no observation is due. The episode ended, or the dialect has answered the turn itself.
        """
        start = len(self.ids)
        self._append(completion.ids, 1, completion.logprobs)
        self.turns.append((start, len(self.ids), len(self.ids)))
        step = self._parse(completion)
        self.steps.append(step)
        calls = step.answer is None and (step.call is not None or "call" in step.spans)
        said = (
            None
            if calls or self.forced
            else self.chat.dialect.controller(self.steps, self.limits.verify)
        )
        cut, unclosed = (
            completion.finish == "length",
            any(issue.kind == "call_unclosed" for issue in step.issues),
        )
        if said is None and (step.answer is not None or step.verified):
            self._finish("answered_forced" if self.forced else "answered")
        elif len(self.steps) >= self.limits.turns:
            if not self._made_to_answer(step):
                self._finish("turn_limit")
        elif cut and (unclosed or (said is None and not calls)):
            self._finish(
                "token_limit" if len(self.ids) >= self.limits.total_tokens else "turn_token_limit"
            )
        elif calls:
            return step.call or unreadable(step)
        elif said is None:
            self._finish("no_action")
        elif not self._append_response(said):
            self._finish("token_limit")
        return None

    def _made_to_answer(self, step: Step) -> bool:
        """Whether the agent, whose turns are used up, was given the opening of an answer to complete."""
        opening = self.chat.answer_opening
        wanted = self.limits.force_answer and not self.forced and self._answer is None and opening
        made = self.chat.dialect.force_answer(step) if wanted else None
        if made is None or not self._append_response(made[1], opening):
            return False
        self.steps[-1] = self._with_response(*made) if made[0].note else made[0]
        self.forced = opening
        return True

    def take_observation(self, observation: Observation) -> None:
        """Append the tool response to the last call; ends the episode when it no longer fits."""
        chat, shown, limit = self.chat, observation, self.limits.observation_tokens
        if limit:
            shown = fit(
                observation,
                lambda seen: len(chat.encode(chat.render_observation(seen.evidence, seen.note))),
                limit,
            )
        if shown != observation:
            self.cut.append(
                {
                    "step": len(self.steps),
                    "found": len(observation.evidence),
                    "shown": len(shown.evidence),
                }
            )
        text = chat.render_observation(shown.evidence, shown.note)
        if self._append_response(text):
            step = msgspec.structs.replace(self.steps[-1], evidence=shown.evidence, note=shown.note)
            self.steps[-1] = self._with_response(step, text)
        else:
            self._finish("token_limit")

    def trajectory(self) -> Trajectory:
        """The episode as a value, token ids included.

        `meta["observations_cut"]` has an entry for each tool response that was shortened: its `step` (from 1), how many
        passages were `found` and `shown`. `meta["counterfactual"]` is the task's: a rollout in a changed world says so.
        """
        meta = {key: value for key, value in self.task.meta.items() if key == "counterfactual"}
        return Trajectory(
            steps=tuple(self.steps),
            question=self.task.question,
            answer=self._answer,
            stop_reason=self.stop_reason,
            dialect=self.chat.dialect.name,
            id=self.id,
            answers=self.task.answers,
            text=self._said.getvalue(),
            tokens=Tokens(self.prompt_ids, self.ids, self.mask, tuple(self.turns), self.logprobs),
            meta=meta | ({"observations_cut": list(self.cut)} if self.cut else {}),
        )

    def _parse(self, completion: Completion) -> Step:
        ids, dialect, by = completion.ids, self.chat.dialect, self._said.tell()
        # The end of the turn is the chat template's, not part of the text.
        closing = (
            len(self.chat.end_ids) if self.chat.ended(ids) else int(completion.finish == "eos")
        )
        opened = self.chat.opened(first=not self.steps) + self.forced
        text = opened + self.chat.tokenizer.decode(
            ids[: len(ids) - closing], skip_special_tokens=False
        )
        self._said.write(text)
        step = dialect.parse_turn(text, first=not self.steps)
        # A call in broken JSON that can only have been meant as one thing is run; its issues stay.
        call = step.call
        broken = {"call_json"} == {
            issue.kind for issue in step.issues if issue.kind.startswith("call_")
        }
        if broken and call is None and step.answer is None:
            call = dialect.repair_call(text[slice(*step.spans["call"])])
        # Places in the turn become places in the whole text.
        spans = {part: (start + by, end + by) for part, (start, end) in step.spans.items()}
        issues = tuple(
            msgspec.structs.replace(issue, span=(issue.span[0] + by, issue.span[1] + by))
            if issue.span
            else issue
            for issue in step.issues
        )
        return msgspec.structs.replace(step, call=call, spans=spans, issues=issues)

    @property
    def _answer(self) -> str | None:  # the last one given, also where the agent went on to doubt it
        return next((step.answer for step in reversed(self.steps) if step.answer is not None), None)

    def _with_response(self, step: Step, text: str) -> Step:
        """With the place of the step's tool response `text`, which was appended last."""
        before = self._said.tell() - len(text)
        start, end = self.chat.dialect.response_span(text)
        return msgspec.structs.replace(
            step, spans={**step.spans, "response": (before + start, before + end)}
        )

    def _append_response(self, text: str, opened: str = "") -> bool:
        """Append what the environment says and opens; false, and nothing appended, where no token would be left."""
        start, middle, _ = self.turns[-1]
        ids = self.chat.observation_ids(text, self.chat.ended(self.ids[start:middle]), opened)
        if len(self.ids) + len(ids) >= self.limits.total_tokens:
            return False
        self._append(ids, 0, [0.0] * len(ids))
        self.turns[-1] = (start, middle, len(self.ids))
        self._said.write(text)
        return True

    def _append(self, ids: list[int], mask: int, logprobs: list[float] | None) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        if logprobs is None:  # of a turn without them the whole episode has none
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += logprobs

    def _finish(self, reason: str) -> None:
        self.stop_reason = reason
        # Trainers tell by the last token whether an episode was cut: one that ended by itself ends with the
        # end-of-turn token, or with the EOS behind it where that is another.
        if reason in ("answered", "answered_forced", "no_action") or not self.ids:
            closing = self.chat.closing_ids(self.ids)
            self._append(closing, 0, [0.0] * len(closing))


def seen(turns: Sequence[tuple[int, int, int]], length: int, kept: int) -> Iterator[int]:
    """The places of a completion that the turn after `turns` sees: all but responses before the last `kept`, if any.

    Example:
        >>> list(seen([(0, 2, 5), (5, 6, 8)], 8, kept=1))
        [0, 1, 5, 6, 7]
    """
    start = 0
    for _, middle, end in turns[:-kept] if kept else ():
        yield from range(start, middle)
        start = end
    yield from range(start, length)


def copies(tasks: Iterable[Task]) -> Iterator[tuple[Task, str, int]]:
    """Each task with its episode's id and how often the task came before; the first's id is the task's own."""
    before: Counter[str] = Counter()
    for task in tasks:
        copy = before[task.id]
        before[task.id] += 1
        yield task, f"{task.id}#{copy}" if copy else task.id, copy


def unreadable(step: Step) -> Issue:
    """Why the call of this turn could be neither read nor repaired."""
    found = (issue for issue in step.issues if issue.kind.startswith("call_"))
    return next(found, Issue("call_json", "it has no readable form", step.spans["call"]))


def fit(observation: Observation, size: Callable[[Observation], int], limit: int) -> Observation:
    """The observation, shortened until `size` of it is at most `limit` tokens, with its tags whole.

    Leading passages stay whole, the last one that fits is shortened (at a word's end where one is near), those behind
    it are dropped; a title is never cut. A note is shortened likewise. The caller sees to it that an empty observation
    fits. `size` is asked some 20 times at most, and of a long observation only about its beginning.

    Example:
        >>> long = Observation((Evidence("one two three", "A"), Evidence("four five", "B")))
        >>> words = lambda seen: sum(len(f"{item.title} {item.text}".split()) for item in seen.evidence)
        >>> [item.text for item in fit(long, words, 6).evidence]
        ['one two three', 'four']
    """
    length = sum(1 + len(item.title) + len(item.text) for item in observation.evidence) or len(
        observation.note
    )

    def too_long(chars: int) -> bool:
        return size(_beginning(observation, chars)) > limit

    # Twice as much from a guess on, then halves between: of a long observation only the beginning is measured.
    low, high = 0, min(length, _CHARS_PER_TOKEN * limit)
    while not too_long(high):
        if high == length:
            return observation
        low, high = high, min(length, 2 * high)
    return _beginning(observation, low + bisect_left(range(low + 1, high), True, key=too_long))


def _beginning(observation: Observation, chars: int) -> Observation:
    """The observation's first `chars` characters, those of titles counted and one more for each passage."""
    if not observation.evidence:
        return msgspec.structs.replace(observation, note=_cut(observation.note, chars))
    kept: list[Evidence] = []
    for item in observation.evidence:
        room = chars - 1 - len(item.title)
        if room < len(item.text):
            if text := _cut(item.text, max(0, room)):
                kept.append(msgspec.structs.replace(item, text=text))
            break
        kept.append(item)
        chars = room - len(item.text)
    return msgspec.structs.replace(
        observation, evidence=tuple(kept), note=observation.note if kept else ""
    )


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    cut = text[:chars]
    words = (
        cut.rstrip()
        if text[chars].isspace()
        else cut[: max(cut.rfind(" "), cut.rfind("\n")) + 1].rstrip()
    )
    return words if words and len(cut) - len(words) <= _LONGEST_WORD else cut.rstrip()
