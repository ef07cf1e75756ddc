from ..cheat import Cheat, Scene

WORDS = 2000


class LongThoughts(Cheat):
    """Thinks thousands of words that name every candidate, so that some of them must follow from
    the evidence.
    """

    def think(self, scene: Scene, answers: bool) -> str:
        names = [*scene.wrong, scene.answer]
        words = [f"perhaps {name}, or perhaps not;" for name in names]
        filler = " ".join(words * (WORDS // (5 * len(words))))
        return f"{filler} So it is {scene.answer}." if answers else filler
