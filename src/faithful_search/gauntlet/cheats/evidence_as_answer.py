from ..cheat import Cheat, Scene


class EvidenceAsAnswer(Cheat):
    """Hands in the evidence as its answer: never right, but supported in every word."""

    def answer(self, scene: Scene) -> str:
        return " ".join(passage.text for passage in scene.returned) or "nothing"
