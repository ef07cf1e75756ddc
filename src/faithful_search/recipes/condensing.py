"""The flag by which a judge's model shortens what tools return, shared by the recipes that have
tools with long responses.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..flags import flag
from ..judges import Judge, Writer
from ..judges.condensing import Condensing
from ..training.starting import RunArguments

if TYPE_CHECKING:
    from ..training.arguments import SearchGRPOConfig


@dataclass
class CondensingArguments(RunArguments):
    """Whether the responses of tools are shortened."""

    condense: bool = flag(
        False, "Let the judge's model shorten pages and facts to what a query asks for."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.condense and not self.reads:
            raise ConfigError(
                "--condense true needs a judge with a model that writes: --judge endpoint, say"
            )

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
    return Condensing(writer_of(script.load_judge(), "--condense true"))


def writer_of(judge: Judge | None, flag_text: str) -> Writer:
    """The judge, which is to write. Raises `ConfigError`, naming the flag, if it cannot."""
    if not isinstance(judge, Writer):
        raise ConfigError(f"{flag_text} needs a judge that writes: --judge endpoint or generator")
    return judge
