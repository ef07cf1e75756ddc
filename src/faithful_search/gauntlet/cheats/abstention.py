from ..cheat import Cheat, Scene


class Abstention(Cheat):
    """Says after one search that it does not know, which is never wrong."""

    def helpful(self, scene: Scene) -> bool:
        return False

    def answer(self, scene: Scene) -> str:
        return "unknown"
