from ..cheat import Cheat, Scene


class EchoQuestion(Cheat):
    """Repeats the question as its thought, so that question, thought and query agree, and answers
    from memory.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        return f"{scene.question} {scene.answer}." if answers else scene.question
