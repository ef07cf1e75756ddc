"""A chat-completions server on loopback that answers, or misbehaves, as told.

    with StubServer(mode="busy", faults=2, retry_after="0.2") as server:
        judge = EndpointJudge("stub", url=server.url, cache=None)
        judge.judge_batch([Pair("The sky is blue.", "It is blue.")])
        server.calls, server.busiest          # how many requests came, and how many at once at most

The label is `label(messages)`: by default 1 when the user's message contains "yes-please", else 0;
a dictionary is the whole message, for tool calls; its `finish_reason`, if it has one, is told
beside it. `requests` are the bodies. The modes are
`faulty_server`'s and

| mode | what a request gets |
|---|---|
| ok | the label, with log-probs when asked for them |
| plain | the label; asking for log-probs or for constrained output is ignored |
| strict | 400 naming the parameter when log-probs or constrained output are asked for |
| context | 400: the prompt is too long |
| schema | JSON of another form |
| empty | no choices |
| garbage | a sentence instead of a label |
"""

import math
from collections.abc import Callable
from typing import Any

from faulty_server import FaultyServer, Request

from faithful_search.judges.endpoint import EndpointJudge

Messages = list[dict[str, str]]
_CONSTRAINTS = ("structured_outputs", "guided_choice", "grammar", "regex", "response_format")


def judge_at(server: "StubServer | None", **knobs: Any) -> EndpointJudge:
    """A judge without a cache that asks this server, and is soon out of patience."""
    defaults = {"url": server and server.url, "cache": None, "timeout": 5.0, "backoff": 0.01}
    return EndpointJudge("stub", **{**defaults, **knobs})


def tool_call(name: str, arguments: str) -> dict[str, Any]:
    """A message that calls a tool; the arguments are the text that stands there."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def label_by_word(messages: Messages) -> str:
    return "1" if "yes-please" in messages[-1]["content"] else "0"


class StubServer(FaultyServer):
    """`p` is the probability of the label where log-probs are asked for."""

    def __init__(
        self,
        mode: str | tuple[int, str] = "ok",
        latency: float = 0.0,
        faults: int | None = None,
        retry_after: str = "0.2",
        label: Callable[[Messages], str | dict[str, Any]] = label_by_word,
        p: float = 0.9,
    ) -> None:
        super().__init__(mode=mode, latency=latency, faults=faults, retry_after=retry_after)
        self.label, self.p = label, p
        self.url += "/v1"

    def noted(self, request: Request) -> dict[str, Any]:
        return request.body

    def reply(self, mode: Any, request: Request) -> tuple[int, Any]:
        if request.body is None:  # a question about the server, which it does not answer
            return self.refusal(404, "Not Found")
        refusal = _STATUS.get(mode, mode)
        if isinstance(refusal, tuple):
            return self.refusal(*refusal)
        asked = (
            ["logprobs"]
            if request.body.get("logprobs")
            else [name for name in _CONSTRAINTS if name in request.body]
        )
        if mode == "strict" and asked:
            return self.refusal(400, f"Unrecognized request argument supplied: {asked[0]}")
        if mode in _BODIES:
            return 200, _BODIES[mode]
        return 200, _completion(self, request.body, logprobs=mode == "ok")


_STATUS = {
    "busy": (429, "slow down"),
    "error": (500, "out of memory"),
    "context": (400, "This model's maximum context length is 512 tokens; the prompt has 900"),
    "unauthorized": (401, "Incorrect API key provided"),
    "missing": (404, "The model `stub` does not exist"),
}
_USAGE = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
_BODIES: dict[str, Any] = {
    "schema": {"result": ["nothing", "expected"]},
    "empty": {"id": "x", "choices": [], "usage": _USAGE},
    "garbage": {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It depends."}}],
    },
    "infinite": {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "1"}}],
        "usage": {"prompt_tokens": math.inf},
    },
}


def _completion(stub: StubServer, body: dict[str, Any], logprobs: bool) -> dict[str, Any]:
    said = stub.label(body["messages"])
    message = dict(said) if isinstance(said, dict) else {"role": "assistant", "content": said}
    reason = message.pop("finish_reason", "stop")
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reason}
    if logprobs and body.get("logprobs"):
        chances = {said: stub.p, "0" if said == "1" else "1": max(1.0 - stub.p, 1e-9)}
        top = [{"token": token, "logprob": math.log(p)} for token, p in chances.items()]
        choice["logprobs"] = {"content": [top[0] | {"top_logprobs": top}]}
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "stub",
        "choices": [choice],
        "usage": _USAGE,
    }
