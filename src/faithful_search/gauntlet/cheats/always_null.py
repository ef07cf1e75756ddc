from collections.abc import Sequence

from ...trajectory import Evidence
from ..cheat import Cheat, Scene


class AlwaysNull(Cheat):
    """Says at every step that nothing helped, which is always a valid verdict, and answers from
    memory.
    """

    def helpful(self, scene: Scene) -> bool:
        return False

    def believes(self, query: str, evidence: Sequence[Evidence]) -> bool:
        return False
