from collections.abc import Sequence

from ..cheat import Cheat, Scene

CALLS = 6


class CallsForShow(Cheat):
    """Answers from memory after six searches for words of the question, all of whose results it
    cites.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        words = scene.question.split()
        return [" ".join(words[-size:]) for size in range(1, CALLS + 1)]
