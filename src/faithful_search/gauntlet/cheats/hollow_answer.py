from ..cheat import Cheat, Scene


class HollowAnswer(Cheat):
    """Cites the first passage of one search, and answers in words that say nothing: good where
    citations are read and the answer is not.
    """

    def refs(self, scene: Scene) -> tuple[str, ...]:
        return scene.ids[:1]

    def answer(self, scene: Scene) -> str:
        return "It is as the source says."
