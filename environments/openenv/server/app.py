"""The server: `uvicorn server.app:app --port 8000`."""

import uvicorn

from faithful_search.adapters.openenv import FaithfulEnvironment, SearchAction, SearchObservation
from openenv.core.env_server.http_server import create_app

app = create_app(
    FaithfulEnvironment,
    SearchAction,
    SearchObservation,
    env_name="faithful_search",
    max_concurrent_envs=64,
)


def main() -> None:
    """Serve on port 8000."""
    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
