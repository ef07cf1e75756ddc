"""The flags by which recipes and commands name a judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from . import KINDS, Judge, load

_SERVED = ("endpoint", "remote")


def _flag(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass
class JudgeArguments:
    """Who judges. The default compares words and needs no model."""

    judge: str = _flag("lexical", f"who judges: {', '.join(KINDS)}")
    judge_model: str | None = _flag(None, "its model: a served name, a Hub id or a directory")
    judge_url: str | None = _flag(
        None, "base URL of an OpenAI-compatible endpoint, with /v1; or of `faithful-search serve-judge`"
    )
    judge_cache: str | None = _flag(
        None, "SQLite file of the endpoint's answers, 'none' for none; default in the Hub's assets"
    )
    judge_concurrency: int = _flag(16, "requests at once to the endpoint or the served judge")
    judge_timeout: float | None = _flag(
        None, "seconds a request may take; by default 60 to an endpoint, 300 to a served judge"
    )
    judge_max_tokens: int = _flag(16, "tokens of its reply; more where it reasons first")
    judge_together: bool = _flag(
        True, "claims on the same evidence in one request to the endpoint, without probabilities"
    )
    judge_prices: str | None = _flag(
        None, "of a million prompt and completion tokens, as 0.15,0.6: what it cost is counted"
    )
    judge_max_cost: float | None = _flag(
        None, "the most it may cost, at these prices; the rest is left open", aliases=["--max-cost"]
    )
    judge_trust_remote_code: bool = _flag(False, "let a judge that runs here run the Python code beside its model")

    def load_judge(self) -> Judge | None:
        """The judge, or `None` for the comparison of words, of which each reward has its own.

        Raises:
            ConfigError: for an unknown kind, without the model it needs, or with one (or a URL) that it cannot have.
        """
        if self.judge not in _SERVED and self.judge_url:
            raise ConfigError(
                f"the judge's URL {self.judge_url!r} goes with the judge 'endpoint' or 'remote', not {self.judge!r}"
            )
        if self.judge == "lexical":
            if self.judge_model:
                raise ConfigError(f"the judge 'lexical' has no model; say which judge {self.judge_model!r} belongs to")
            return None
        knobs: dict[str, Any] = {}
        if self.judge in _SERVED:
            knobs = {"url": self.judge_url, "concurrency": self.judge_concurrency}
            if self.judge_timeout is not None:
                knobs["timeout"] = self.judge_timeout
        elif self.judge_trust_remote_code:
            knobs["trust_remote_code"] = True
        if self.judge == "endpoint":
            knobs |= {"max_tokens": self.judge_max_tokens, "together": self.judge_together}
            knobs |= {"prices": self._prices(), "max_cost": self.judge_max_cost}
            if self.judge_cache:
                knobs["cache"] = None if self.judge_cache == "none" else self.judge_cache
        return load(self.judge, self.judge_model, **knobs)

    def _prices(self) -> tuple[float, float] | None:
        if self.judge_prices is None:
            return None
        try:
            prompt, completion = map(float, self.judge_prices.split(","))
        except ValueError as error:
            raise ConfigError(
                f"the judge's prices {self.judge_prices!r} are two numbers, of a million prompt and completion tokens: "
                "0.15,0.6"
            ) from error
        return prompt, completion
