"""ReAct (Yao et al. 2023): thought, action and observation by turns, in lines that begin with their
names. `all_in_one` and `routing` are of this kind.
"""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from .. import loose_json
from ..errors import DataError
from ..formats import react
from ..formats.call_texts import hands_in
from ..trajectory import ToolCall
from ..wire.llm import Messages
from .base import Attempt, ChatAgent
from .prompts import filled
from .replies import answer_of, thought_of

_STOP = ("Observation:",)
_UNREADABLE = (
    "This is no action. Write a line `Action:` and a line `Action Input:`, or a line "
    "`Final Answer:`."
)


class Turn(NamedTuple):
    """What the model wrote in a turn: a thought, and an action or an answer or neither."""

    think: str | None
    action: str | None = None
    arguments: dict[str, Any] | None = None
    answer: str | None = None


class React(ChatAgent):
    """An agent of this kind says which `actions` there are, and which calls one of them means."""

    own_turns: ClassVar[int] = 3  # of both agents of this kind in Proof-of-Use, section 4.1

    @abstractmethod
    def actions(self) -> str:
        """The actions as the prompt lists them, one a line."""

    @abstractmethod
    def calls(self, action: str, arguments: dict[str, Any]) -> list[ToolCall]:
        """The calls that an action means; none where there is no such action."""

    async def attempt(self, episode: Attempt) -> None:
        prompt = filled(
            "react",
            question=episode.question,
            actions=self.actions(),
            turns=str(self.turns),
        )
        messages: Messages = [{"role": "user", "content": prompt}]
        for number in range(1, self.turns + 1):
            reply = await episode.reply(messages, _STOP)
            turn = turn_of(reply.text)
            if turn.answer is not None:
                episode.answer(turn.think, turn.answer, reply)
                return
            messages.append({"role": "assistant", "content": reply.text})
            calls = self.calls(turn.action, turn.arguments or {}) if turn.action else []
            note = "" if calls else f"{_UNREADABLE} There are:\n{self.actions()}"
            returned = await episode.call(turn.think, calls, note)
            observation = f"Observation: {episode.shown(returned) if calls else note}"
            if number == self.turns:
                observation = f"{observation}\n\n{filled('react_last')}"
            messages.append({"role": "user", "content": observation})
        reply = await episode.reply(messages, _STOP)
        turn = turn_of(reply.text)
        if turn.answer is None and turn.action is None:
            # It was asked for the answer alone, and small models then write just that.
            think, text = thought_of(reply.text)
            turn = Turn(think, answer=answer_of(text))
        episode.answer(turn.think, turn.answer, reply)


def turn_of(reply: str) -> Turn:
    """What stands in a reply: its first action or answer, and what is thought before it. What the
    model writes behind that, such as observations of its own, is left out.

    Example:
        >>> turn_of("Thought: Who?\\nAction: search\\nAction Input: Ada Lovelace").arguments
        {'query': 'Ada Lovelace'}
    """
    reasoning, text = thought_of(reply)
    thoughts = [reasoning] if reasoning else []
    for message in react.turn(text):
        if "reasoning_content" in message:
            thoughts.append(message["reasoning_content"])
            continue
        think = "\n".join(thoughts) or None
        if message["role"] == "tool":  # an observation that the model wrote itself, without a call
            return Turn(think)
        [call] = message["tool_calls"]
        if hands_in(call["name"]):
            return Turn(think, answer=answer_of(call["arguments"]["answer"]))
        arguments = _arguments_of(call["arguments"])
        return Turn(think) if arguments is None else Turn(think, call["name"], arguments)
    return Turn("\n".join(thoughts) or None)


def _arguments_of(written: Any) -> dict[str, Any] | None:
    """The arguments of an action; `None` for JSON that cannot be read."""
    if not isinstance(written, str):
        return dict(written)
    try:
        value = loose_json.decode(written)
    except DataError:
        return None
    return value if isinstance(value, dict) else None
