"""The flags by which a model shortens what tools return, and which model writes where that is not
the judge's; shared by the recipes that have tools with long responses.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..flags import flag
from ..judges import Judge, Writer
from ..judges.arguments import JudgeArguments
from ..judges.condensing import Condensing
from ..training.starting import RunArguments

if TYPE_CHECKING:
    from ..training.arguments import SearchGRPOConfig


@dataclass
class CondensingArguments(RunArguments):
    """Whether the responses of tools are shortened, and who writes what is written."""

    condense: bool = flag(
        False, "Let the judge's model, or the writer, shorten pages and facts to what a query asks."
    )
    writer_url: str | None = flag(
        None, "Base URL of an OpenAI-compatible endpoint whose model writes in the judge's place."
    )
    writer_model: str | None = flag(
        None, "Name of the model there. By default the judge's model writes."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.writer_url is None) != (self.writer_model is None):
            raise ConfigError("--writer_url and --writer_model go together: give both")
        if self.condense and not (self.reads or self.writer_model):
            raise ConfigError(
                "--condense true needs a model that writes: --judge endpoint, say, or --writer_url "
                "and --writer_model"
            )
        if self.writer_model and not self.has_to_write:
            raise ConfigError(
                f"the writer {self.writer_model!r} would have nothing to write: leave it out, or "
                "give --condense true (or --lures judge, where there is that flag)"
            )

    @property
    def has_to_write(self) -> bool:
        """Whether a model has texts to write."""
        return self.condense

    def load_writer(self, judge: Judge | None, flag_text: str) -> Writer:
        """The model at `writer_url`, with the cache, concurrency and time limit of the judge's
        flags; the judge where there is none. Raises `ConfigError`, naming the flag, for a judge
        that cannot write.
        """
        if self.writer_model is None:
            return writer_of(judge, flag_text)
        writer = JudgeArguments(
            judge="endpoint",
            judge_model=self.writer_model,
            judge_url=self.writer_url,
            judge_cache=self.judge_cache,
            judge_concurrency=self.judge_concurrency,
            judge_timeout=self.judge_timeout,
        )
        return writer_of(writer.load_judge(), flag_text)

    def adjust(self, args: "SearchGRPOConfig") -> None:
        super().adjust(args)
        if self.condense and (args.counterfactual or self.stale):
            raise ConfigError(
                "--counterfactual and --stale change passages by their texts, which --condense "
                "true rewrites: take one"
            )


def build_condenser(script: CondensingArguments) -> Condensing | None:
    """What shortens pages and facts for the policy; `None` without `--condense`.

    Raises `ConfigError` for a judge that can judge but not write.
    """
    if not script.condense:
        return None
    judge = None if script.writer_model else script.load_judge()
    return Condensing(script.load_writer(judge, "--condense true"))


def writer_of(judge: Judge | None, flag_text: str) -> Writer:
    """The judge, which is to write. Raises `ConfigError`, naming the flag, if it cannot."""
    if not isinstance(judge, Writer):
        raise ConfigError(f"{flag_text} needs a judge that writes: --judge endpoint or generator")
    return judge
