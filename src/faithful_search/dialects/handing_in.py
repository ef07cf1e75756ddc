"""Answers that a call hands in: agents of many frameworks end with a tool that takes the answer.

A tool is taken for one by its place and its name: the last call of an episode, after which the
agent says nothing, and a name that speaks of ending or handing in (`submit_final_result`,
`attempt_completion`, `done`) and not of getting something (`get_result`). Any other tool can be
named.
"""

import re

import msgspec

from ..trajectory import Step, ToolCall, Trajectory

_HANDING_IN = frozenset(
    (
        *("submit", "submission", "finish", "finished", "final", "finalize", "finalise"),
        *("complete", "completed", "completion", "done", "conclude", "conclusion", "end"),
        *("terminate", "exit", "stop"),
        *("answer", "respond", "response", "reply", "report", "output", "return", "provide"),
    )
)
_GETTING = frozenset(
    (
        *("get", "fetch", "search", "find", "read", "list", "load", "lookup", "query", "check"),
        *("open", "view", "retrieve", "download", "browse", "verify", "evaluate", "extract"),
        *("wait", "poll", "start", "run", "execute", "ask", "send", "write", "save", "generate"),
    )
)
_NAME = re.compile(r"[\w.:/ -]+")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_FIELDS = ("answer", "final_answer", "final_result", "result", "response", "text", "output")


def may_hand_in(name: str) -> bool:
    """Whether a tool of this name may hand in the answer. What is no name, with tags or quotes in
    it, never does.

    Example:
        >>> may_hand_in("submit_final_result"), may_hand_in("StructuredOutput"), may_hand_in("get_result")
        (True, True, False)
    """
    if not _NAME.fullmatch(name):
        return False
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words & _HANDING_IN) and not words & _GETTING


def with_answer(trajectory: Trajectory, tool: str | None = None) -> Trajectory:
    """The trajectory with the answer that its last call hands in; unchanged where it hands in none.

    What such a call returned is no evidence, and the step has no call any more. `tool` names the
    tool that hands in; without it `may_hand_in` decides.
    """
    if trajectory.answer is not None or not trajectory.steps:
        return trajectory
    last = trajectory.steps[-1]
    if last.call is None:
        return trajectory
    hands_in = last.call.name == tool if tool is not None else may_hand_in(last.call.name)
    answer = _answer(last.call) if hands_in else None
    if answer is None:
        return trajectory
    return msgspec.structs.replace(
        trajectory,
        steps=(*trajectory.steps[:-1], _ended(last, answer)),
        answer=answer,
        stop_reason=trajectory.stop_reason or "answered",
    )


def ends_in(trajectory: Trajectory) -> str:
    """The tool whose call is the last thing that an agent without an answer did; empty for others."""
    if trajectory.answer is not None or not trajectory.steps:
        return ""
    call = trajectory.steps[-1].call
    return call.name if call is not None else ""


def _ended(step: Step, answer: str) -> Step:
    return msgspec.structs.replace(step, call=None, evidence=(), note="", answer=answer)


def _answer(call: ToolCall) -> str | None:
    """The text among the arguments: under a usual name, or the only one."""
    arguments = call.arguments
    for name in _FIELDS:
        if isinstance(arguments.get(name), str) and arguments[name].strip():
            return str(arguments[name])
    values = [value for value in arguments.values() if isinstance(value, str) and value.strip()]
    return values[0] if len(values) == 1 else None
