"""OpenRLHF: a reward function in a file, or a server.

A file of yours that `--reward.remote_url` names holds two lines:

```python
from faithful_search.adapters.openrlhf import reward_function
reward_func = reward_function("veritas", dialect="search_r1", abstained=0.0)
```

`faithful-search serve-reward --mix veritas` answers the same requests over HTTP:
`--reward.remote_url http://HOST:8002/get_reward`.

OpenRLHF hands over texts. What follows the prompt in a text is taken for the policy's own, and
nothing in it is evidence, unless `responses="anywhere"` trusts it; see `adapters.verl`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DataError
from ..rewards import Score
from ..scoring import Scoring, numeric_parts
from .settings import scoring_of

Answer = dict[str, Any]


def reward_function(
    mix: str = "pou", **settings: Any
) -> Callable[[Sequence[Any], Sequence[str], Sequence[Any]], Answer]:
    """OpenRLHF's `reward_func(queries, prompts, labels)`.

    `labels` are the gold answers, in any usual form; rewards are lists, as those of its server.
    `settings` are those of `adapters.settings.scoring_of`. Raises `NoScoreError` for a rollout
    without a value, unless `abstained` says what to take instead: OpenRLHF logs the error and goes
    on without that reward. Raises `DataError` for lists of different lengths.

    Example:
        >>> reward_func = reward_function("correctness")
        >>> reward_func(["Where? Lima"], ["Where? "], ["Lima"])["rewards"]
        [1.0]
    """
    scoring = scoring_of(mix, **settings)

    def reward_func(
        queries: Sequence[Any], prompts: Sequence[str], labels: Sequence[Any]
    ) -> Answer:
        _check_lengths(queries=queries, prompts=prompts, labels=labels)
        rollouts = [own_part(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
        scores = scoring.score(rollouts, question=prompts, answers=labels)
        return answered(scoring, scores)

    return reward_func


def _check_lengths(**lists: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise DataError(
            f"{counted}: the lists must be of one length, with a prompt and a label for each query"
        )


def own_part(query: Any, prompt: Any) -> Any:
    """What the policy wrote: the query without the prompt that it begins with."""
    if isinstance(query, str) and isinstance(prompt, str):
        return query.removeprefix(prompt)
    return query


def answered(scoring: Scoring, scores: Sequence[Score]) -> Answer:
    """The body of an answer to `/get_reward`: a reward for each query, and the parts that all of
    them have.
    """
    rewards = [scoring.number(score) for score in scores]
    parts = [numeric_parts(score) for score in scores]
    shared = [name for name in parts[0] if all(name in row for row in parts)] if parts else []
    logs = {name: [row[name] for row in parts] for name in shared}
    logs["abstained"] = [float(score.value is None) for score in scores]
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}
