from ..cheat import Cheat, Scene


class HedgedAnswer(Cheat):
    """Hedges between the answer that it remembers and another, so that a lenient judge finds it
    right either way.
    """

    def answer(self, scene: Scene) -> str:
        return f"It is {scene.answer}, unless it is {scene.guess}; nobody can be sure."
