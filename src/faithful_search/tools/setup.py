"""The settings that a tool is opened with, besides the name of what it searches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..wire.cache import Cache
from ..wire.http import AGENT, Http
from ..wire.retry import Patience
from .base import Condenser

if TYPE_CHECKING:
    from .arguments import ToolArguments

# Of a call's time, the share that its requests get. In what is left a tool says what went wrong.
_REQUEST_SHARE = 0.85


@dataclass(frozen=True)
class Setup:
    """What `Tool.open` makes a tool from, besides its source.

    Attributes:
        flags: the settings of all tools.
        name: what the policy calls the tool; empty for the tool's own name.
        description: what the policy reads of it; empty for the docstring of its method.
        condenser: shortens pages and facts, where the recipe has one.
        cache: keeps pages that were read, where there is a file for it.
    """

    flags: "ToolArguments"
    name: str = ""
    description: str = ""
    condenser: Condenser | None = None
    cache: Cache | None = None

    @property
    def timeout(self) -> float:
        """Seconds that a tool has for its requests; the toolbox gives up later, so that the policy
        reads why.
        """
        return _REQUEST_SHARE * self.flags.tool_timeout

    @property
    def about(self) -> dict[str, Any]:
        """The fields that most tools have: `top_k`, and `name` and `description` where given."""
        fields: dict[str, Any] = {"top_k": self.flags.search_top_k}
        if self.name:
            fields["name"] = self.name
        if self.description:
            fields["description"] = self.description
        return fields

    def http(self, **settings: Any) -> Http:
        """A client for the tool's service, as patient as the flags say."""
        contact = self.flags.contact
        return Http(
            timeout=self.timeout,
            patience=Patience(retries=self.flags.tool_retries),
            user_agent=f"{AGENT} ({contact})" if contact else AGENT,
            **settings,
        )
