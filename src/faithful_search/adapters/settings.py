"""A `Scoring` by plain settings, as configuration files and flags hold them."""

from functools import cache
from typing import Any

from .. import judges
from ..dialects.segments import Responses
from ..scoring import Scoring


@cache
def scoring_of(
    mix: str = "pou",
    dialect: str | None = None,
    responses: Responses = "messages",
    abstained: float | None = None,
    judge: str | None = None,
    judge_model: str | None = None,
    judge_url: str | None = None,
) -> Scoring:
    """The `Scoring` with these settings, made once: rollouts that are scored at the same time share
    their batches.

    Args:
        mix: the name of a mix or of a single reward.
        dialect, responses, abstained: see `Scoring`.
        judge, judge_model, judge_url: who judges, see `faithful_search.judges.load`; by default
            words are compared.

    Raises `ConfigError` and `DialectError` as `Scoring` and `judges.load` do.

    Example:
        >>> scoring_of("veritas") is scoring_of("veritas")
        True
    """
    if judge is None:
        return Scoring(mix, dialect, responses, None, abstained)
    knobs: dict[str, Any] = {} if judge_url is None else {"url": judge_url}
    return Scoring(mix, dialect, responses, judges.load(judge, judge_model, **knobs), abstained)
