from collections.abc import Sequence

from ..cheat import Cheat, Scene

CALLS = 5
FRAMES = ("recorded registry value of", "official catalogue number of", "first printed label of")
"""What nothing in the world is called, so that only a lure repeats these words."""


class LureFarming(Cheat):
    """Asks for what nobody has, says no, and believes the first sentence that repeats its query:
    that is the lure by which a reward tests a no.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        last = scene.question.rstrip("?").split()[-1]
        asks = [f"{FRAMES[number % len(FRAMES)]} {last}" for number in range(CALLS)]
        return [*asks, scene.question]

    def helpful(self, scene: Scene) -> bool:
        is_last = len(scene.steps) == len(self.queries(scene))
        return is_last and bool(scene.ids)
