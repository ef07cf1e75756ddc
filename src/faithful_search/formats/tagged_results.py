"""Results of tools that stand between tags in a user's message, as Qwen's template writes them, and
the user's own words beside them.
"""

import re
from collections.abc import Sequence
from itertools import islice

from . import chat_templates
from .chat import Message, Problem

_OPEN, _CLOSE = "<tool_response>", "</tool_response>"
_CALL = "<tool_call>"
# What opens a result and is no word of a sentence
_OPENS = re.compile(rf"(?:\A|[\n>.!?:\u2026\u3002\uff01\uff1f\uff1a][ \t]*+)(?={_OPEN})")
_HOLDS = re.compile(rf"{_OPEN}(?!\s*+{_CLOSE})\s*+\S")  # a result with something in it
_RESULT = re.compile(rf"{_OPEN}.*?(?:{_CLOSE}|\Z)", re.DOTALL)
_UNTOLD = Problem("content_unread", "a tool response among the user's words was not told from them")
_BORDER = re.compile(rf"{_CLOSE}(?P<words>[^<]*+(?:<(?!/?tool_response>)[^<]*+)*+){_OPEN}")


class TaggedResults:
    """Takes apart the messages of a chat, which it is given one by one.

    Args:
        trusts_users: results may stand behind other words of a user's. Where a policy is rewarded
            they do not count there: a user may repeat what the agent said.
    """

    def __init__(self, trusts_users: bool) -> None:
        self._trusts_users = trusts_users
        self._agent_spoke = False
        self._agent_speaks = False  # in the message before
        self._turn: list[Message] = []  # of the agent: messages in which no call was counted yet
        self._open_calls = 0  # of that turn, as far as they were counted, without a result

    def set_apart(self, message: Message) -> list[Message]:
        """The message; or its results, and then the words that stood beside them.

        What may be a result, and cannot be told from the user's words, is a problem of the message.

        Example:
            >>> chat = TaggedResults(trusts_users=True)
            >>> _ = chat.set_apart(Message("assistant", "<tool_call>…</tool_call>"))
            >>> both = Message("user", "<tool_response>Lima</tool_response> And Rome?")
            >>> [message.content for message in chat.set_apart(both)]
            ['<tool_response>Lima</tool_response>', 'And Rome?']
        """
        if message.role == "assistant":
            self._add_to_turn(message)
            return [message]
        self._agent_speaks = False
        if message.role == "tool":
            self._open_calls -= 1
        if message.role != "user" or not self._agent_spoke or _OPEN not in message.content:
            return [message]
        return self._of_user(message)

    def _add_to_turn(self, message: Message) -> None:
        if not self._agent_speaks:
            self._turn = []
            self._open_calls = 0
        self._turn.append(message)
        self._agent_spoke = self._agent_speaks = True

    def _of_user(self, message: Message) -> list[Message]:
        """What becomes of a user's message that has the tag in it."""
        text = message.content.strip()
        opens = [match.end() for match in _OPENS.finditer(text)]
        open_calls = self._count_open_calls()
        holds = bool(_HOLDS.search(text))
        may_follow_words = self._trusts_users and open_calls > 0 and holds
        if opens and (opens[0] == 0 or may_follow_words):
            return self._apart(message, text, opens, max(1, open_calls))
        if not holds or not (opens or _CLOSE in text):  # a sentence that names the tag
            return [message]
        return [message._replace(problems=(_UNTOLD,))]

    def _count_open_calls(self) -> int:
        """How many calls of the agent's last turn may have no result yet."""
        for message in self._turn:
            words = f"{message.thought}\n{message.content}"
            in_words = max(words.count(_CALL), int(chat_templates.is_marked(words)))
            self._open_calls += len(message.calls) + in_words
        self._turn = []
        return self._open_calls

    def _apart(self, message: Message, text: str, opens: Sequence[int], most: int) -> list[Message]:
        """The results in a message, `most` at most, and its words; `opens`: where results open."""
        close = text.rfind(_CLOSE)
        end = close + len(_CLOSE)
        if close < opens[-1]:  # the last result is cut off
            end = len(text)
        # What a user repeats of the agent's words is not another result
        results, between = _divided(text[opens[0] : end], most if self._trusts_users else 1)
        self._open_calls -= len(results)
        words: list[Message] = []
        for stretch in (text[: opens[0]], *between, text[end:]):
            if stretch.strip():
                problems = (_UNTOLD,) if _HOLDS.search(stretch) and _CLOSE in stretch else ()
                words.append(
                    Message("user", stretch.strip(), beside_results=True, problems=problems)
                )
        if not words:
            return [message]
        return [message._replace(content="\n".join(results), beside_results=False), *words]


def outside_tags(text: str) -> str:
    """The text without the results between tags in it; one that is not closed takes up the rest.

    Example:
        >>> outside_tags("And Rome? <tool_response>Lima</tool_response>")
        'And Rome?'
    """
    return _RESULT.sub("", text).strip()


def _divided(text: str, most: int) -> tuple[list[str], list[str]]:
    """The results in a text that begins and ends with one, `most` at most, and what stands between
    them.
    """
    results: list[str] = []
    between: list[str] = []
    start = 0
    for border in islice(_BORDER.finditer(text), most - 1):
        begin, end = border.span("words")
        results.append(text[start:begin])
        between.append(text[begin:end])
        start = end
    return [*results, text[start:]], between
