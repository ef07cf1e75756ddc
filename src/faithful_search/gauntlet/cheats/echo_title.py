from ..cheat import Cheat, Scene


class EchoTitle(Cheat):
    """Thinks a title that came back and the answer that it remembers: words of the evidence, and no
    reason.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        if not answers:
            return "I look."
        title = scene.returned[0].title if scene.returned else "Nothing"
        return f"{title}. {scene.answer}."
