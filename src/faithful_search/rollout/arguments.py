"""The flags of every recipe with episodes: which tools there are, and how an episode is bounded."""

from dataclasses import dataclass

from .. import dialects
from ..errors import ConfigError
from ..flags import flag
from ..tools import Toolbox
from ..tools.arguments import ToolArguments
from ..tools.base import Condenser
from .episode import Limits


@dataclass
class EnvironmentArguments(ToolArguments):
    """Tools, dialect and limits of the episodes."""

    dialect: str = flag("pou", "how the agent writes")
    turns: int = flag(10, "reasoning steps an episode may have")
    turn_tokens: int = flag(256, "tokens a turn may have")
    observation_tokens: int = flag(0, "tokens a tool response may have; 0: no limit")
    force_answer: bool = flag(False, "open an answer for the agent when its last turn gave none")
    verify: bool = flag(
        False, "the agent checks its answers and goes on after INCORRECT (dialect pokee)"
    )
    kept_responses: int = flag(
        0, "how many of the last tool responses the agent sees; 0: all (dialect search_r1)"
    )
    generation_batch: int = flag(64, "rows per forward pass when sampling and probing")

    def toolbox(self, condenser: Condenser | None = None) -> Toolbox:
        """The tools of the episodes, under the names that the dialect's calls carry.

        Raises `ConfigError` as `ToolArguments`, and for more than search in a corpus where the dialect can only search.
        """
        dialect = dialects.load(self.dialect)
        if dialect.search_tool and self.given_tools != ["corpus"]:
            raise ConfigError(
                f"the dialect {self.dialect!r} has one tool, search in a corpus: give --corpus, and set --triples "
                "none, --web_search none, --browse none, --domain_corpus none and --negative_tool false"
            )
        only = {"local_search": dialect.search_tool} if dialect.search_tool else {}
        return self.build_toolbox({**dialect.tool_names, **only}, condenser)

    def limits(self, total_tokens: int) -> Limits:
        """The bounds of an episode of at most `total_tokens` after the prompt."""
        given = {
            name: getattr(self, name) for name in Limits.__struct_fields__ if name != "total_tokens"
        }
        return Limits(total_tokens=total_tokens, **given)
