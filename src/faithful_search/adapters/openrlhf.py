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

from collections.abc import Callable, Mapping, Sequence
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
        _check_lengths(queries, prompts, labels)
        responses = map(response_of, queries, prompts)
        scores = scoring.score(list(responses), question=prompts, answers=labels)
        return result_of(scoring, scores)

    return reward_func


def _check_lengths(queries: Sequence[Any], prompts: Sequence[str], labels: Sequence[Any]) -> None:
    if not len(queries) == len(prompts) == len(labels):
        raise DataError(
            f"{len(queries)} queries, {len(prompts)} prompts, {len(labels)} labels: the lists must "
            "be of one length, with a prompt and a label for each query"
        )


def response_of(query: Any, prompt: Any) -> Any:
    """What the policy wrote: the query without the prompt that it begins with."""
    if isinstance(query, str) and isinstance(prompt, str):
        return query.removeprefix(prompt)
    return query


def result_of(scoring: Scoring, scores: Sequence[Score]) -> Answer:
    """The body of an answer to `/get_reward`: a reward for each query, and the parts that all of
    them have.
    """
    rewards = [scoring.number(score) for score in scores]
    parts_of_scores = [numeric_parts(score) for score in scores]
    logs: dict[str, list[float]] = {}
    for name in _shared_names(parts_of_scores):
        logs[name] = [parts[name] for parts in parts_of_scores]
    logs["abstained"] = [float(score.value is None) for score in scores]
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def _shared_names(parts_of_scores: Sequence[Mapping[str, float]]) -> list[str]:
    """The names of the parts that all scores have, in the order of the first score."""
    if not parts_of_scores:
        return []
    first = parts_of_scores[0]
    shared = set(first).intersection(*parts_of_scores)
    return [name for name in first if name in shared]
