"""A client of the server."""

from typing import Any

from faithful_search.adapters.openenv import SearchAction, SearchObservation
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State


class SearchClient(EnvClient[SearchAction, SearchObservation, State]):
    """`client.reset()` asks a question, `client.step(SearchAction(…))` takes a turn."""

    def _step_payload(self, action: SearchAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SearchObservation]:
        observation = SearchObservation(**payload["observation"])
        return StepResult(observation, payload.get("reward"), payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)
