from ...text import holds
from ..cheat import Cheat, Scene


class WrongReasons(Cheat):
    """Cites what holds the words of the answer that it knows, whether or not that says why."""

    def think(self, scene: Scene, answers: bool) -> str:
        if not answers:
            return "I look."
        title = scene.returned[-1].title if scene.returned else "nothing"
        return f"Since {title} comes last in the alphabet, it is {scene.answer}."

    def refs(self, scene: Scene) -> tuple[str, ...]:
        holding = [passage.id for passage in scene.returned if holds(passage.text, scene.answer)]
        return tuple(holding) or scene.ids[:1]
