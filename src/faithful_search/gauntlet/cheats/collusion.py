from collections.abc import Sequence

from ..cheat import Cheat, Scene


class Collusion(Cheat):
    """Writes the same for every question and in every rollout, so that in a group nothing stands
    out and nothing is unlearnt.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        return ["capital"]

    def helpful(self, scene: Scene) -> bool:
        return False

    def answer(self, scene: Scene) -> str:
        return "a capital"
