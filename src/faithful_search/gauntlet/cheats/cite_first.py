from ..cheat import Cheat, Scene


class CiteFirst(Cheat):
    """Answers from memory and cites what came first, whatever it says."""

    def refs(self, scene: Scene) -> tuple[str, ...]:
        return scene.ids[:1]
