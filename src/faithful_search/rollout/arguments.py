"""The flags of every recipe with episodes: which tools there are, and how an episode is bounded."""

from dataclasses import dataclass

from .. import dialects
from ..errors import ConfigError
from ..flags import flag, knob
from ..tools import Toolbox
from ..tools.arguments import ToolArguments
from ..tools.base import Condenser
from ..tools.toolbox import searches
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

        Where the dialect can only search, its search is the one tool that the flags open: a corpus,
        or the web.

        Raises `ConfigError` as `ToolArguments`; for no tool where the dialect is written for one;
        and for several tools, or one that takes no query, where the dialect can only search.
        """
        dialect = dialects.load(self.dialect)
        needs_tools = dialect.needs_tools
        if dialect.search_tool is None:
            return self.build_toolbox(dialect.tool_names, condenser, needs_tools)
        opened = self.opened_tools
        if len(opened) > 1:
            raise ConfigError(
                f"the dialect {self.dialect!r} has one tool, a search: of "
                f"{', '.join(f'--{name}' for name in self.given_tools)} give one, and set the "
                "others to 'none'"
            )
        names = dict.fromkeys(opened, dialect.search_tool)
        toolbox = self.build_toolbox(names, condenser, needs_tools)
        if opened and dialect.search_tool not in searches(toolbox):
            raise ConfigError(
                f"the dialect {self.dialect!r} has one tool, a search, and {opened[0]} takes no "
                "query: give --corpus or --web_search"
            )
        return toolbox

    def limits(self, total_tokens: int) -> Limits:
        """The bounds of an episode of at most `total_tokens` after the prompt."""
        bounds = {
            name: getattr(self, name) for name in Limits.__struct_fields__ if name != "total_tokens"
        }
        return Limits(total_tokens=total_tokens, **bounds)
