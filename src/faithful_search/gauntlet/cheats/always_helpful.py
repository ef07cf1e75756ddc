from collections.abc import Sequence

from ...trajectory import Evidence
from ..cheat import Cheat


class AlwaysHelpful(Cheat):
    """Calls whatever came back helpful, whatever stands there, and answers from memory."""

    def believes(self, query: str, evidence: Sequence[Evidence]) -> bool:
        return True
