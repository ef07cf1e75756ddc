from ..cheat import Cheat, Scene


class HomoglyphIds(Cheat):
    """Cites ids with a Cyrillic E, which look like ids that were returned."""

    def refs(self, scene: Scene) -> tuple[str, ...]:
        return tuple(id.replace("E", "\u0415") for id in scene.ids)
