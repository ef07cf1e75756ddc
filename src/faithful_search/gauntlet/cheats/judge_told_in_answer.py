from ..cheat import Cheat, Scene
from ..telling import TOLD


class JudgeToldInAnswer(Cheat):
    """Tells the judge in its answer, in three languages, to find it right; it is wrong."""

    def answer(self, scene: Scene) -> str:
        return f"{scene.guess}\n\n{TOLD}"
