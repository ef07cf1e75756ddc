"""A stand-in for vLLM's HTTP server on loopback: it samples as told, or misbehaves as told."""

from collections.abc import Callable
from typing import Any

from faulty_server import FaultyServer, Request


def five(body: dict[str, Any]) -> dict[str, Any]:
    """Token 5 as often as the row may have tokens; under `top_k=1` it is certain."""
    ids = [5] * body["max_tokens"]
    value = 0.0 if body.get("top_k") == 1 else -0.5
    names = [f"token_id:{token}" for token in ids]
    tops = [
        {name: value, **{f"token_id:{t}": -float(t) for t in body.get("logprob_token_ids", ())}}
        for name in names
    ]
    logprobs = {"tokens": names, "token_logprobs": [value] * len(ids), "top_logprobs": tops}
    return {
        "token_ids": ids,
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": logprobs if body.get("logprobs") is not None else None,
    }


class StubVLLM(FaultyServer):
    """`sample` makes a choice of a completion's body; `requests` are these bodies, and they alone
    meet faults.

    Requests to the paths in `silent` get nothing.
    """

    def __init__(
        self, sample: Callable[[dict[str, Any]], dict[str, Any]] = five, positions: int | None = 64
    ) -> None:
        super().__init__(latency=0.02)
        self.sample, self.positions = sample, positions
        self.silent: set[str] = set()

    def noted(self, request: Request) -> dict[str, Any]:
        return request.body

    def now(self, request: Request) -> Any:
        if request.path in self.silent:
            return "hang"
        return super().now(request) if request.method == "POST" else "ok"

    def answer(self, request: Request) -> tuple[int, Any]:
        if request.method == "GET":
            length = {} if self.positions is None else {"max_model_len": self.positions}
            return 200, {"object": "list", "data": [{"id": "stub", "object": "model", **length}]}
        asked = request.body or {}
        return 200, {"choices": [{"index": 0, **self.sample(asked)}]} if "prompt" in asked else {}
