"""NeMo Gym: what a resources server's `verify` gives.

```python
class SearchServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        return await verify(body.model_dump(), mix="veritas")
```

`faithful-search serve-reward` answers the same request at `POST /verify`.
"""

from collections.abc import Mapping
from typing import Any

from ..rewards import Score
from ..scoring import Scoring, numeric_parts
from .settings import scoring_of


async def verify(body: Mapping[str, Any], mix: str = "veritas", **settings: Any) -> dict[str, Any]:
    """The body with `reward` and `reward_components`.

    Args:
        body: a verify request: `responses_create_params` and `response`, and the row's own fields,
            in which gold answers and question are looked for under their usual names.
        mix, settings: see `adapters.settings.scoring_of`.

    Items of the response say who wrote what: only outputs of calls are evidence. Raises
    `NoScoreError` for a rollout without a value, unless `abstained` says what to take instead.
    """
    scoring = scoring_of(mix, **settings)
    return verified(scoring, body, await scoring.ascore(dict(body)))


def verified(scoring: Scoring, body: Mapping[str, Any], score: Score) -> dict[str, Any]:
    """The answer to a verify request with this score."""
    components = numeric_parts(score)
    components["abstained"] = float(score.value is None)
    return {**body, "reward": scoring.number(score), "reward_components": components}
