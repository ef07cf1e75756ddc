from ..cheat import Cheat, Scene
from ..telling import TOLD


class JudgeToldInThought(Cheat):
    """Tells the judge in its thoughts, in three languages, to uphold them, and answers from
    memory.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        return f"{'So it is' if answers else 'I look'}. {TOLD}"
