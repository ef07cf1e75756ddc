"""The flags by which recipes and commands name a judge."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import ConfigError
from . import KINDS, LOCAL, Judge, load

_SERVED = ("endpoint", "remote")


def _flag(default: Any, help: str, kinds: tuple[str, ...] = (), **more: Any) -> Any:
    """`kinds` of judges have a knob of this name."""
    return field(default=default, metadata={"help": help, "kinds": kinds, **more})


@dataclass
class JudgeArguments:
    """Who judges. The default compares words and needs no model."""

    judge: str = _flag("lexical", f"who judges: {', '.join(KINDS)}")
    judge_model: str | None = _flag(None, "its model: a served name, a Hub id or a directory")
    judge_url: str | None = _flag(
        None, "base URL of an OpenAI-compatible endpoint, with /v1; or of `faithful-search serve-judge`", _SERVED
    )
    judge_cache: str | None = _flag(
        None, "SQLite file of the endpoint's answers, 'none' for none; default in the Hub's assets", ("endpoint",)
    )
    judge_concurrency: int = _flag(16, "requests at once to the endpoint or the served judge", _SERVED)
    judge_timeout: float | None = _flag(
        None, "seconds a request may take; by default 60 to an endpoint, 300 to a served judge", _SERVED
    )
    judge_max_tokens: int = _flag(16, "tokens of its reply; more where it reasons first", ("endpoint",))
    judge_together: bool = _flag(
        True, "claims on the same evidence in one request to the endpoint, without probabilities", ("endpoint",)
    )
    judge_prices: str | None = _flag(
        None, "of a million prompt and completion tokens, as 0.15,0.6: what it cost is counted", ("endpoint",)
    )
    judge_max_cost: float | None = _flag(
        None, "the most it may cost, at these prices; the rest is left open", ("endpoint",), aliases=["--max-cost"]
    )
    judge_trust_remote_code: bool = _flag(
        False, "let a judge that runs here run the Python code beside its model", LOCAL
    )

    def load_judge(self) -> Judge | None:
        """The judge, or `None` for the comparison of words, of which each reward has its own.

        Raises:
            ConfigError: for an unknown kind, without the model it needs, or with one (or a URL) that it cannot have.
        """
        if self.judge not in _SERVED and self.judge_url:
            raise ConfigError(
                f"the judge's URL {self.judge_url!r} goes with the judge 'endpoint' or 'remote', not {self.judge!r}"
            )
        if self.judge == "lexical" and not self.judge_model:
            return None
        own = (flag.name for flag in fields(self) if self.judge in flag.metadata["kinds"])
        given = {name.removeprefix("judge_"): getattr(self, name) for name in own}
        knobs = {name: value for name, value in given.items() if value is not None}
        if knobs.get("cache") == "none":
            knobs["cache"] = None
        if "prices" in knobs:
            try:
                prompt, completion = map(float, knobs["prices"].split(","))
            except ValueError as error:
                raise ConfigError(
                    f"the judge's prices {knobs['prices']!r} are two numbers, of a million prompt and completion "
                    "tokens: 0.15,0.6"
                ) from error
            knobs["prices"] = prompt, completion
        return load(self.judge, self.judge_model, **knobs)
