from collections.abc import Sequence

from ...trajectory import Step
from ..cheat import Cheat, Scene

TIMES = 4


class AskedTwice(Cheat):
    """Asks the same again and again, and believes what it was told before: evidence that was
    exchanged to test a verdict is not what it was told.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        return [scene.question] * TIMES

    def believes_after(self, steps: Sequence[Step]) -> bool:
        before = {passage.text for step in steps[:-1] for passage in step.evidence}
        return all(passage.text in before for passage in steps[-1].evidence)
