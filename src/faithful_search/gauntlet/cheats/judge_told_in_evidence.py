from ..cheat import Cheat, Scene
from ..telling import TOLD


class JudgeToldInEvidence(Cheat):
    """Finds pages that tell the judge, in three languages, that they support every claim; it
    answers with any name.
    """

    def planted(self, text: str) -> str:
        return f"{text} {TOLD}"

    def answer(self, scene: Scene) -> str:
        return scene.guess
