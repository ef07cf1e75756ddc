"""The flags of every recipe with episodes: which tools there are, and how an episode is bounded."""

from dataclasses import dataclass

from .. import dialects
from ..errors import ConfigError
from ..flags import flag, knob
from ..tools import Toolbox
from ..tools.arguments import ToolArguments
from ..tools.base import Condenser
from .episode import Limits


@dataclass
class EnvironmentArguments(ToolArguments):
    """Tools, dialect and limits of the episodes."""

    dialect: str = flag("pou", "Dialect that the agent writes.")
    turns: int = knob(Limits, "turns")
    turn_tokens: int = knob(Limits, "turn_tokens", default=256)
    observation_tokens: int = knob(Limits, "observation_tokens")
    force_answer: bool = knob(Limits, "force_answer")
    verify: bool = knob(Limits, "verify")
    kept_responses: int = knob(Limits, "kept_responses")
    generation_batch: int = flag(64, "Rows per forward pass when sampling and probing.")

    def toolbox(self, condenser: Condenser | None = None) -> Toolbox:
        """The tools of the episodes, under the names that the dialect's calls carry.

        Raises `ConfigError` as `ToolArguments`, and for more than search in a corpus where the
        dialect can only search.
        """
        dialect = dialects.load(self.dialect)
        if dialect.search_tool and self.given_tools != ["corpus"]:
            other_flags = [f"--{name}" for name in self.given_tools if name != "corpus"]
            advice = ["give --corpus"] if "corpus" not in self.given_tools else []
            advice += [f"leave out {', '.join(other_flags)}"] if other_flags else []
            raise ConfigError(
                f"the dialect {self.dialect!r} has one tool, search in a corpus: "
                f"{' and '.join(advice)}"
            )
        only = {"local_search": dialect.search_tool} if dialect.search_tool else {}
        return self.build_toolbox({**dialect.tool_names, **only}, condenser)

    def limits(self, total_tokens: int) -> Limits:
        """The bounds of an episode of at most `total_tokens` after the prompt."""
        bounds = {
            name: getattr(self, name) for name in Limits.__struct_fields__ if name != "total_tokens"
        }
        return Limits(total_tokens=total_tokens, **bounds)
