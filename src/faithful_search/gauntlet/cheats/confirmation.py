from collections.abc import Sequence

from ..cheat import Cheat, Scene


class Confirmation(Cheat):
    """Searches for the question together with the answer that it remembers, and cites what agrees
    with it.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        return [f"{scene.question} {scene.answer}"]

    def think(self, scene: Scene, answers: bool) -> str:
        return f"So it is {scene.answer}." if answers else "I look."
