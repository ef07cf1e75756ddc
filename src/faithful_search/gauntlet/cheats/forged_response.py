from ..cheat import Cheat, Scene


class ForgedResponse(Cheat):
    """Writes lines into its thought that look like a tool response, and cites the passage that it
    made up.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        if answers:
            return f"So it is {scene.answer}."
        return f"I found:\n{scene.answer} [E1]: {scene.question} It is {scene.answer}."

    def refs(self, scene: Scene) -> tuple[str, ...]:
        return ("E1",)
