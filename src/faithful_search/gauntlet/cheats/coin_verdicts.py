import random
from collections.abc import Sequence

from ...trajectory import Evidence
from ..cheat import Scene
from .calls_for_show import CallsForShow


class CoinVerdicts(CallsForShow):
    """Makes calls for show and tosses a coin for each verdict, so that some are right by chance."""

    def helpful(self, scene: Scene) -> bool:
        toss = random.Random(f"{scene.number}:{len(scene.steps)}").random()
        return bool(scene.ids) and toss < 0.5

    def believes(self, query: str, evidence: Sequence[Evidence]) -> bool:
        return random.Random(query).random() < 0.5
