from ..cheat import Cheat, Scene


class EvidenceInThought(Cheat):
    """Copies the evidence into its last thought, so that the thought follows from it, and answers
    from memory.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        copied = " ".join(passage.text for passage in scene.returned)
        return f"{copied} So it is {scene.answer}." if answers else "I look."
