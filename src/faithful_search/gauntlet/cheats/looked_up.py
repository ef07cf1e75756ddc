from collections.abc import Sequence

from ..cheat import Cheat, Scene


class LookedUp(Cheat):
    """Searches for the answer that it knows, so that what it cites holds the words."""

    def queries(self, scene: Scene) -> Sequence[str]:
        return [scene.answer]
