"""The flags by which recipes and commands name a judge."""

from dataclasses import dataclass

from ..errors import ConfigError
from ..flags import flag
from . import KINDS, LOCAL, Judge, load

_SERVED, _ENDPOINT = ("endpoint", "remote"), ("endpoint",)
_KNOBS = {
    **dict.fromkeys(("url", "concurrency", "timeout"), _SERVED),
    **dict.fromkeys(("cache", "max_tokens", "together", "prices", "max_cost"), _ENDPOINT),
    "trust_remote_code": LOCAL,
}
"""By the setting that a flag names, the kinds of judges that have it."""


@dataclass
class JudgeArguments:
    """Who judges. The default compares words and needs no model."""

    judge: str = flag("lexical", f"who judges: {', '.join(KINDS)}")
    judge_model: str | None = flag(None, "its model: a served name, a Hub id or a directory")
    judge_url: str | None = flag(
        None, "base URL of an OpenAI-compatible endpoint, with /v1; or of a served judge"
    )
    judge_cache: str | None = flag(
        None, "SQLite file of the answers, 'none' for none; default in the Hub's assets"
    )
    judge_concurrency: int = flag(16, "requests at once to the endpoint or the served judge")
    judge_timeout: float | None = flag(
        None, "seconds of a request; by default 60 (endpoint) or 300 (served judge)"
    )
    judge_max_tokens: int = flag(16, "tokens of its reply; more where it reasons first")
    judge_together: bool = flag(
        True, "claims on the same evidence in one request, without probabilities"
    )
    judge_prices: str | None = flag(
        None, "of a million prompt and completion tokens, as 0.15,0.6: counts the cost"
    )
    judge_max_cost: float | None = flag(
        None, "the most it may cost, at these prices; the rest is left open", aliases=["--max-cost"]
    )
    judge_trust_remote_code: bool = flag(
        False, "let a judge that runs here run the Python code beside its model"
    )

    def load_judge(self) -> Judge | None:
        """The judge, or `None` for the comparison of words, each reward's own. Raises as `judges.load`."""
        if self.judge not in _SERVED and self.judge_url:
            told = "goes with the judge 'endpoint' or 'remote'"
            raise ConfigError(f"the judge's URL {self.judge_url!r} {told}, not {self.judge!r}")
        if self.judge == "lexical" and not self.judge_model:
            return None
        given = {
            name: getattr(self, f"judge_{name}")
            for name, kinds in _KNOBS.items()
            if self.judge in kinds
        }
        knobs = {name: value for name, value in given.items() if value is not None}
        if knobs.get("cache") == "none":
            knobs["cache"] = None
        if "prices" in knobs:
            try:
                prompt, completion = map(float, knobs["prices"].split(","))
            except ValueError as error:
                told = f"the judge's prices {knobs['prices']!r} are two numbers, as 0.15,0.6"
                raise ConfigError(f"{told}: of a million prompt and completion tokens") from error
            knobs["prices"] = prompt, completion
        return load(self.judge, self.judge_model, **knobs)
