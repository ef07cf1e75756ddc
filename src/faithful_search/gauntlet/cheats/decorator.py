from ...coldstart.decorators import BELIEF, CONFIRMED
from ..cheat import Scene
from .cite_first import CiteFirst


class Decorator(CiteFirst):
    """States the answer that it remembers before it searches, and calls what came first its
    confirmation.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        phrases = CONFIRMED if answers else BELIEF
        return phrases[1].format(answer=scene.answer)
