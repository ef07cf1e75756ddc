from collections.abc import Sequence

from ..cheat import Cheat, Scene

TIMES = 3


class OneTool(Cheat):
    """Asks one tool the same thing again and again, which counts as research, and answers from
    memory.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        return [scene.question] * TIMES
