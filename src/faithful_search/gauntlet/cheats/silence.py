from ..cheat import Cheat, Scene


class Silence(Cheat):
    """Thinks three dots, so that no thought can be unfaithful, and answers from memory."""

    def think(self, scene: Scene, answers: bool) -> str:
        return "…"
