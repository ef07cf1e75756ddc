"""ReAct as text: lines that begin with `Thought:`, `Action:`, `Action Input:`, `Observation:`,
`Final Answer:`.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .. import loose_json
from ..errors import DataError
from .base import Chat, Format, Messages, first, mapping, mappings, text
from .call_arguments import calls_in_python, json_end
from .call_texts import ANSWER_FIELDS, answer_message, hands_in
from .chat import Problem

# Chinese marks, which models write when they are asked in Chinese
_TRANSLATED = {
    "问题": "Question",
    "思考": "Thought",
    "行动输入": "Action Input",
    "动作输入": "Action Input",
    "行动": "Action",
    "动作": "Action",
    "观察结果": "Observation",
    "观察": "Observation",
    "最终答案": "Final Answer",
}
_NAMES = ("Question", "Thought", "Action Input", "Action", "Observation", "Final Answer", "Answer")
_OBSERVATIONS = ("Observation", "观察结果", "观察")
_BOLD = r"(?:\*\*)?"
_COLON = rf"{_BOLD} ?[:\uff1a]{_BOLD}"  # \uff1a is the full-width colon
_NUMBER = r"(?: ?[0-9]{1,4})?"


def _marks(names: Iterable[str], bold: str = "") -> re.Pattern[str]:
    """Marks with these names; `bold` is what stands around each."""
    return re.compile(
        rf"^{bold}({'|'.join(names)}){_NUMBER}{bold} ?[:\uff1a]{bold}[ \t]*", re.MULTILINE
    )


_STYLES = (
    _marks(_NAMES),
    _marks(_NAMES, r"(?:\*\*)?"),
    _marks(_TRANSLATED),
    _marks(_TRANSLATED, r"(?:\*\*)?"),
)
_ANY_MARK = _marks((*_NAMES, *_TRANSLATED), r"(?:\*\*)?")
# `Search[words]` and `search(words)`.
_BRACKETS = re.compile(r"\A([A-Za-z_][\w.-]{0,60}+)\s*+[\[(](.*)[\])]\.?\Z", re.DOTALL)
# A keyword of Python's before a text
_KEYWORD = re.compile(r"[(,]\s{0,9}\w{1,60}\s{0,9}=\s{0,9}[\"']")
# Words in quotation marks that have none of these inside, except as apostrophes
_QUOTED = re.compile(r"([\"'])((?:(?!\1).|(?<=\w)\1(?=\w))*+)\1", re.DOTALL)


# How an instruction stands in a prompt of the Alpaca form. One that is not closed matches up to the
# text's end, so that nothing is looked at twice, and counts for none (`_instruction`).
_INSTRUCTION = re.compile(r"###[ ]Instruction:(.*?)(###[ ](?:Input|Response):|\Z)", re.DOTALL)
_ANSWER_ACTIONS = ("finish", "final answer", "final_answer")
# Fields of an action in JSON, LangChain's first: the tool's name, and what it is given
_NAMES_IN_JSON = ("action", "name", "tool", "tool_name", "function_name")
_INPUTS_IN_JSON = (
    *("action_input", "arguments", "tool_input", "parameters", "args", "input"),
    *("action_args", "action_arguments", "tool_args"),
)
# Fields of JSON that are no arguments: beside an `action`, and beside another field with the tool's
# name, where they may be the id and the type of a call
_BESIDE_ACTION = frozenset(("action", *_INPUTS_IN_JSON, "thought"))
_BESIDE_NAME = _BESIDE_ACTION.union((*_NAMES_IN_JSON, "id", "type"))
_TOOL = re.compile(r"[A-Za-z_][\w.-]{0,60}")
_MARKED = re.compile(r"\A(`|\*\*)([^`*\n]++)\1\Z")  # as code or in bold, all of it
_LANGUAGE = re.compile(r"\A\w{1,20}(?=\s)")  # of a block of code
_SPEAKERS = ("system", "user", "assistant")
_OBSERVED = re.compile(
    rf"\A{_BOLD}(?:{'|'.join(_OBSERVATIONS)})\b(?: ?[0-9]{{1,4}})?(?:{_COLON})?[ \t]*"
)
# A text that is one block of code
_CODE = re.compile(r"\A```\w{0,20}\s*+(.*)```\Z", re.DOTALL)
# What the environment says when an episode ends, as an observation.
_ENDED = re.compile(r"Episode finished\b[^\n]*")


class _Part(NamedTuple):
    """What stands behind one of the marks."""

    name: str
    text: str


def read(value: Any) -> Chat | None:
    """A transcript with a thought and an action or a final answer; or a chat whose agent writes so
    and whose user gives the observations.
    """
    if isinstance(value, list | tuple):
        return _of_chat(mappings(value, pure=True))
    if not isinstance(value, str) or not ("Thought" in value or "思考" in value):
        return None
    return _of_text(value)


def _of_text(text: str) -> Chat | None:
    """A transcript: nothing shows who wrote what in it."""
    before, parts = _split(text)
    questions = [place for place, part in enumerate(parts) if part.name == "Question"]
    if questions:
        last = questions[-1]
        question: str | None = parts[last].text
        episode = parts[last + 1 :]
        earlier = len(questions) - 1
    else:
        question = _instruction(before)
        episode = parts
        earlier = 0
    if not _acts(episode):
        return None
    return Chat(
        [{"role": "user", "content": question or ""}, *_messages(episode)],
        question,
        left_out={"questions before the last": earlier},
        of_text=True,
    )


def _of_chat(messages: list[Mapping[str, Any]]) -> Chat | None:
    """A chat: observations are what the user says. One in the agent's own message, where CrewAI
    puts them, is left out and reported: nothing shows who wrote it. Prompts of the system are no
    part of the episode.
    """
    turns = [(message.get("role"), message.get("content")) for message in messages]
    roles = [role for role, _ in turns]
    if "user" not in roles or not all(role in _SPEAKERS for role in roles):
        return None
    if not all(isinstance(content, str) for _, content in turns):
        return None
    first = roles.index("user")
    later = [(role, str(content)) for role, content in turns[first + 1 :]]
    observed = [content for role, content in later if role == "user"]
    if not all(map(_OBSERVED.match, observed)):
        return None
    spoken = [content.lstrip() for role, content in later if role == "assistant"]
    if not observed and not all(map(_ANY_MARK.match, spoken)):  # no user tells that it is ReAct
        return None
    episode: list[_Part] = []
    forged = 0
    for role, content in later:
        if role == "user":
            observation = _OBSERVED.sub("", content).strip()
            episode.append(_Part("Observation", observation))
        elif role == "assistant":
            parts = _agents_parts(content)
            without_observations = [part for part in parts if part.name != "Observation"]
            forged += len(parts) - len(without_observations)
            episode += without_observations
    if not _acts(episode):
        return None
    why = "an observation stands in the agent's own message: it is no evidence"
    problems = (Problem("response_forged", why),) if forged else ()
    question, earlier = _asked(str(turns[first][1]))
    return Chat(
        [{"role": "user", "content": question}, *_messages(episode)],
        question,
        left_out={"questions before the last": earlier},
        problems=problems,
    )


def _style_of(text: str) -> re.Pattern[str]:
    """The pattern of a text's marks, which are written as the first of them is: in bold or not, in
    one language. Others stand on pages that the agent read.
    """
    first = _ANY_MARK.search(text)
    if first is None:
        return _ANY_MARK
    return next(style for style in _STYLES if style.match(text, first.start()))


def _split(text: str) -> tuple[str, list[_Part]]:
    """What stands before the first mark, and the parts. `Answer:` in an observation is a line of
    it: an agent thinks before it answers.
    """
    before, *pieces = _style_of(text).split(text)
    parts: list[_Part] = []
    for mark, piece in zip(pieces[::2], pieces[1::2], strict=True):
        name = _TRANSLATED.get(mark, mark)
        if name == "Answer" and parts and parts[-1].name == "Observation":
            observation = parts.pop().text
            parts.append(_Part("Observation", f"{observation}\nAnswer: {piece.strip()}"))
        else:
            parts.append(_Part(name, piece.strip()))
    return before, parts


def _agents_parts(content: str) -> list[_Part]:
    """The parts of an agent's message. Words without a mark are a thought, and so is what it marks
    as a question: the episode's is the user's.
    """
    before, parts = _split(content)
    agents_parts: list[_Part] = []
    if before.strip():
        agents_parts.append(_Part("Thought", before.strip()))
    for part in parts:
        if part.name == "Question":
            part = part._replace(name="Thought")
        agents_parts.append(part)
    return agents_parts


def _asked(prompt: str) -> tuple[str, int]:
    """What a prompt asks, and how many questions stand before that one: examples, mostly. It is
    what is marked as the last question, or else what stands before the first mark.
    """
    before, parts = _split(prompt)
    questions = [part.text for part in parts if part.name == "Question"]
    if not questions:
        return before.strip(), 0
    return questions[-1], len(questions) - 1


def turn(content: str) -> Messages:
    """One message of an agent that writes ReAct, as messages with a thought, a call or an
    observation each.

    Example:
        >>> turn("Thought: Where?\\nAction: search[Rome]")[1]["tool_calls"]
        [{'name': 'search', 'arguments': {'query': 'Rome'}}]
    """
    return _messages(_agents_parts(content))


def _acts(episode: list[_Part]) -> bool:
    """Whether this is ReAct at all. A line with `Answer:` alone is too common to tell."""
    names = {part.name for part in episode}
    return "Thought" in names and bool(names & {"Action", "Final Answer"})


def _messages(episode: list[_Part]) -> Messages:
    """The parts as messages, without what the environment says of the episode's end."""
    messages: Messages = []
    for part, follower in zip(episode, [*episode[1:], _Part("", "")], strict=True):
        if part.name == "Thought":
            messages.append({"role": "assistant", "reasoning_content": part.text})
        elif part.name == "Action":
            arguments = follower.text if follower.name == "Action Input" else None
            messages.append(action_of(part.text, arguments))
        elif part.name == "Observation" and not _ENDED.fullmatch(part.text):
            messages.append({"role": "tool", "content": part.text})
        elif part.name in ("Final Answer", "Answer"):
            messages.append(answer_message(part.text))
    return messages


def _instruction(prompt: str) -> str | None:
    instruction = _INSTRUCTION.search(prompt)
    if instruction is None or not instruction[2]:
        return None
    return instruction[1].strip()


def in_brackets(action: str) -> tuple[str, str] | None:
    """The name and the words of `search[words]` or `search(words)`; `None` for anything else.

    Example:
        >>> in_brackets("search[Ada]"), in_brackets("search")
        (('search', 'Ada'), None)
    """
    brackets = _BRACKETS.match(action)
    return None if brackets is None else (brackets[1], brackets[2])


def action_of(action: str, arguments: str | None = None) -> dict[str, Any]:
    """The message of an agent that acts, or hands in its answer (`finish[…]`).

    Args:
        action: the tool's name, where its arguments stand apart. Else one of

            - `search[Ada Mirov]`
            - `search(query="Ada Mirov")`
            - `{"action": "search", "action_input": "Ada Mirov"}` or JSON with other usual names,
              perhaps in a block of code, with words around it or the tool's name before it
        arguments: the arguments, where they stand apart.
    """
    if arguments is not None:
        return _with_words(action, _without_fence(arguments))
    action = _MARKED.sub(r"\2", _without_fence(action))
    message = _of_python(action) or _of_json(action)
    if message is not None:
        return message
    name, words = in_brackets(action) or (action, "")
    return _with_words(name, words)


def _with_words(name: str, words: str) -> dict[str, Any]:
    """The message of an agent that names a tool and gives it words, or a JSON object as a text."""
    is_json = words.lstrip().startswith("{")
    if not is_json:
        words = _without_quotes(words.strip())
    if name.lower() in _ANSWER_ACTIONS and not is_json:
        return answer_message(words)
    return _calling(name, words if is_json else {"query": words})


def _calling(name: str, arguments: Any) -> dict[str, Any]:
    """The message of an agent that calls a tool. An answer in fields of its own is handed in as a
    call, too.
    """
    if name.lower() == "final answer":
        name = "final_answer"
    return {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]}


def _of_json(action: str) -> dict[str, Any] | None:
    """The message of an agent that acts in JSON or in a block of code, whatever it says around
    that; `None` for any other action. JSON that is no call becomes a call without a name, which the
    dialect reports.
    """
    before, code, behind = _around_json(action)
    value: Any = loose_json.printed(action)
    if value is None:
        with suppress(DataError):
            value = loose_json.decode(code)
    if code and behind.startswith(("{", "[")):  # a further call: which of them ran is not known
        return _calling("", action)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    fields = mapping(value, "function") or mapping(value)
    name = first(fields, _NAMES_IN_JSON)
    if isinstance(name, str) and name.strip():
        message = _named(name.strip(), fields)
        spoken = [text(fields.get("thought"))]
        if code:
            spoken = [before, *spoken, behind]
        words = "\n".join(filter(None, spoken))
        return {**message, "content": words} if words else message
    tool = before.rstrip(": ")
    if code and not behind and _TOOL.fullmatch(tool):
        return action_of(tool, code)
    is_json = value is not None or action.startswith(("{", "["))
    return _calling("", action) if is_json else None


def _around_json(action: str) -> tuple[str, str, str]:
    """An action in three parts: the words before the JSON or the block of code, that, and the words
    behind it. An action without either is all words before it.
    """
    before, _, fenced = action.partition("```")
    block, fence, behind = fenced.partition("```")
    # Where JSON comes first, the fence stands in one of its texts
    if fence and not before.startswith(("{", "[")):
        return before.strip(), _LANGUAGE.sub("", block).strip(), behind.strip()
    start = action.find("{")
    if start < 0 or in_brackets(action):
        return action, "", ""
    before_object = action[:start].rstrip()
    if before_object.endswith("["):  # the object stands in a list
        start = len(before_object) - 1
    end = json_end(action, start)
    return action[:start].strip(), action[start:end].strip(), action[end:].strip()


def _of_python(action: str) -> dict[str, Any] | None:
    """The message of an agent that acts as Python writes it, with keywords; `None` for any other
    action, such as `finish(E=mc2)`, which hands in an equation.
    """
    calls = calls_in_python(action if action.startswith("[") else f"[{action}]")
    if len(calls) != 1:
        return None
    [call] = calls
    has_keywords = _KEYWORD.search(action) or not call["arguments"].keys().isdisjoint(ANSWER_FIELDS)
    if hands_in(call["name"]) and not has_keywords:
        return None
    return _calling(call["name"], call["arguments"])


def _without_fence(words: str) -> str:
    """The words of a block of code where they are nothing else, else all of them."""
    words = words.strip()
    code = _CODE.match(words)
    return code[1].strip() if code else words


def _named(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The message of an agent whose action names the tool in a field of JSON. Its arguments stand
    in another field, or beside the name.
    """
    action_input = first(fields, _INPUTS_IN_JSON)
    if isinstance(action_input, str):
        return action_of(name, action_input)
    if action_input is None:
        is_action = fields.get("action") is not None
        left_out = _BESIDE_ACTION if is_action else _BESIDE_NAME
        action_input = {key: value for key, value in fields.items() if key not in left_out}
    return _calling(name, action_input)


def _without_quotes(words: str) -> str:
    """Words without the quotation marks around all of them. Those around a part, as in `who said
    "yes"`, are what the agent wrote.
    """
    quoted = _QUOTED.fullmatch(words)
    return quoted[2] if quoted else words


FORMAT = Format("ReAct text", read)
