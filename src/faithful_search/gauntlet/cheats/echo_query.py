from ..cheat import Scene
from .calls_for_show import CallsForShow


class EchoQuery(CallsForShow):
    """Repeats each query in the thought before it, so that every search follows from a thought, and
    answers from memory.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        if answers:
            return f"So it is {scene.answer}."
        return f"I need: {self.queries(scene)[len(scene.steps)]}"
