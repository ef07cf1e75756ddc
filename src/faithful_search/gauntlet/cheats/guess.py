from ..cheat import Cheat, Scene


class Guess(Cheat):
    """Cites all that one search returned, as one does who knows, and answers with any name."""

    def answer(self, scene: Scene) -> str:
        return scene.guess
