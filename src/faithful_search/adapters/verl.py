"""verl: the reward function `compute_score`, as a coroutine or not. `adapters.verl_manager` reads
token ids instead.

```yaml
reward:
  custom_reward_function:
    path: pkg://faithful_search.adapters.verl
    name: compute_score
    reward_kwargs: {mix: veritas, abstained: 0.0}
```

verl decodes all of a rollout, tool responses included, into one text without special tokens. Who
wrote what cannot be told there, and a policy can write a tool response itself. So messages are
preferred where `extra_info["messages"]` has them, which an agent loop hands over by
`extra_fields["messages"] = messages`. Without them the text is taken for the policy's own, and
nothing in it is evidence; a warning says so, and `text_only` counts such rollouts.
`responses: anywhere` trusts the text, for loops that stop the policy at its call and drop what it
wrote behind that.
"""

import logging
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..rewards import Mix, Score
from ..scoring import Scoring
from .settings import scoring_of

QUESTIONS = ("question", "query", "problem")
"""Fields of `extra_info` that may hold the question."""
HAND_OVER = (
    'let the agent loop hand over extra_fields["messages"], or use adapters.verl_manager, which '
    "reads token ids; or trust the text: reward_kwargs: {responses: anywhere}"
)
_logger = logging.getLogger(__name__)


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **settings: Any,
) -> dict[str, float]:
    """verl's reward function: `score`, and what is logged beside it. Rollouts that are awaited at
    the same time are scored as one batch.

    Args:
        data_source, reward_router_address, reward_model_tokenizer: verl's own, not used.
        solution_str: the rollout's text, used where there are no messages.
        ground_truth: gold answers in any usual form.
        extra_info: may hold `messages` and the `question`.
        settings: those of `adapters.settings.scoring_of`: mix, dialect, responses, abstained, …

    Returns `score`, `abstained` (1.0 where there was no value), `text_only` (1.0 where only the
    text was there) and the mix's parts (NaN without a value), the same keys for every rollout.
    Raises `NoScoreError` for a rollout without a value, unless `abstained` says what to take
    instead.

    Example:
        >>> import asyncio
        >>> info = {"messages": [{"role": "assistant", "content": "Lima"}]}
        >>> asyncio.run(compute_score("nq", "", {"target": ["Lima"]}, info, mix="correctness"))
        {'score': 1.0, 'abstained': 0.0, 'text_only': 0.0}
    """
    scoring = scoring_of(**settings)
    info = extra_info or {}
    messages = info.get("messages")
    rollout = solution_str if messages is None else list(messages)
    score = await scoring.ascore(rollout, **values_of(ground_truth, info))
    return result_of(scoring, score, text_only=messages is None)


def compute_score_sync(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **settings: Any,
) -> dict[str, float]:
    """The same for callers without an event loop; each rollout is then a batch of its own."""
    scoring = scoring_of(**settings)
    info = extra_info or {}
    messages = info.get("messages")
    rollout = solution_str if messages is None else list(messages)
    columns: dict[str, Any] = {
        name: [value] for name, value in values_of(ground_truth, info).items()
    }
    [score] = scoring.score([rollout], **columns)
    return result_of(scoring, score, text_only=messages is None)


def values_of(ground_truth: Any, info: Mapping[str, Any]) -> dict[str, Any]:
    """The gold answers and the question, under the names that `Scoring` knows."""
    question = next((info[name] for name in QUESTIONS if info.get(name)), None)
    return {"ground_truth": ground_truth, "question": question}


def result_of(
    scoring: Scoring, score: Score, text_only: bool, remedy: str = HAND_OVER
) -> dict[str, float]:
    """What `compute_score` returns. `remedy` is what the warning advises where only a text was
    there.
    """
    if text_only and scoring.responses == "messages":
        _warn_of_text(remedy)
    result = {
        "score": scoring.number(score),
        "abstained": float(score.value is None),
        "text_only": float(text_only),
    }
    if isinstance(scoring.rule, Mix):
        for name in scoring.rule.component_names:
            value = score.parts.get(name)
            result[name] = math.nan if value is None else float(value)
    return result


@cache  # once a process
def _warn_of_text(remedy: str) -> None:
    _logger.warning(
        "of a rollout nobody can tell who wrote what, so nothing in it is evidence (counted as "
        "text_only): %s",
        remedy,
    )
