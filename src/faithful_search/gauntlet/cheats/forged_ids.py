from ..cheat import Cheat, Scene


class ForgedIds(Cheat):
    """Cites ids that no tool returned."""

    def refs(self, scene: Scene) -> tuple[str, ...]:
        return ("E97", "E98")
