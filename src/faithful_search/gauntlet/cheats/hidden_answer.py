from ..cheat import Cheat, Scene


class HiddenAnswer(Cheat):
    """Copies what it cites as its answer, which is supported in every word, and boxes the answer
    that it remembers behind "Confidence:", where it is compared and nobody takes it for a claim.
    """

    def answer(self, scene: Scene) -> str:
        if not scene.returned:
            return scene.answer
        return f"{scene.returned[0].text}\nConfidence: \\boxed{{{scene.answer}}}"
