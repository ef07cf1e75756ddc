"""The flags by which recipes and commands name a judge."""

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError
from ..flags import flag, prices_of
from . import WORDS, Judge, find, load, names
from .presets import PRESETS

_PUBLISHED = ", ".join(f"{name} ({preset.model})" for name, preset in PRESETS.items())


@dataclass
class JudgeArguments:
    """Who judges. Without a judge words are compared, which needs no model."""

    judge: str | None = flag(
        None,
        f"Judge: {', '.join(names())}, or the path of a file that defines one. By default words "
        "are compared, as by lexical.",
    )
    judge_model: str | None = flag(
        None,
        "Model of the judge: a served name, a Hub id or a directory. Not needed for judges with "
        f"published weights: {_PUBLISHED}.",
    )
    judge_url: str | None = flag(
        None, "Base URL of an OpenAI-compatible endpoint, with /v1, or of a served judge."
    )
    judge_cache: str | None = flag(
        None, "SQLite file in which answers are cached, or 'none'. By default in the Hub's cache."
    )
    judge_concurrency: int | None = flag(
        None, "Number of concurrent requests to the judge. By default 16."
    )
    judge_timeout: float | None = flag(
        None, "Seconds that a request may take. By default 60 (endpoint) or 300 (served judge)."
    )
    judge_max_tokens: int | None = flag(
        None, "Maximum tokens of a reply. By default 16; a model that reasons first needs more."
    )
    judge_together: bool = flag(
        True, "Judge claims on the same evidence in one request, without probabilities."
    )
    judge_prompts: Literal["ours", "paper"] | None = flag(
        None,
        "Prompts about thoughts and searches: 'ours' or 'paper', those that VERITAS prints. By "
        "default ours.",
    )
    judge_prices: str | None = flag(
        None, "Price of a million prompt and completion tokens, as 0.15,0.6, to report the cost."
    )
    judge_max_cost: float | None = flag(
        None, "Stop asking once this much has been spent, at these prices.", aliases=["--max-cost"]
    )
    judge_tokenizer: str | None = flag(
        None, "Tokenizer of the endpoint's model, whose control tokens are escaped in texts."
    )
    judge_trust_remote_code: bool = flag(
        False, "Allow a local judge to run the Python code beside its model."
    )

    @property
    def reads(self) -> bool:
        """Whether the judge is to be a model that reads, rather than a comparison of words."""
        return self.judge is not None and self.judge not in WORDS

    def load_judge(self) -> Judge | None:
        """The judge, or `None` where none is named: each reward then compares words in its own way.

        Raises as `judges.load`.
        """
        if self.judge is None:
            if self.judge_model:
                raise ConfigError(f"of which kind is the judge {self.judge_model!r}? Name it, too")
            if self.judge_url:
                raise self._no_url("the comparison of words")
            return None
        flags = find(self.judge).flags
        if self.judge_url and "url" not in flags:
            raise self._no_url(repr(self.judge))
        if self.judge_prompts and "prompts" not in flags:
            raise ConfigError(f"the judge {self.judge!r} is not asked by prompts: leave them out")
        if self.judge_tokenizer and "tokenizer" not in flags:
            raise ConfigError(
                f"the judge's tokenizer goes with the judge 'endpoint', not {self.judge!r}: leave "
                "it out"
            )
        values = {name: getattr(self, f"judge_{name}") for name in flags}
        settings = {name: value for name, value in values.items() if value is not None}
        if settings.get("cache") == "none":
            settings["cache"] = None
        if "prices" in settings:
            settings["prices"] = prices_of(settings["prices"], "the judge's prices")
        return load(self.judge, self.judge_model, **settings)

    def _no_url(self, judge: str) -> ConfigError:
        served = "goes with the judge 'endpoint' or 'remote'"
        return ConfigError(f"the judge's URL {self.judge_url!r} {served}, not {judge}")
