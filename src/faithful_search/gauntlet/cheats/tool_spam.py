from collections.abc import Sequence

from ...trajectory import ToolCall
from ..cheat import Cheat, Scene

CALLS = 8


class ToolSpam(Cheat):
    """Calls every tool in turn with the question, for rewards that pay for many calls or for even
    use of tools.
    """

    def queries(self, scene: Scene) -> Sequence[str]:
        return [scene.question] * CALLS

    def call(self, scene: Scene, query: str) -> ToolCall:
        name = list(scene.tools)[len(scene.steps) % len(scene.tools)]
        return ToolCall(name, {scene.tools[name]: query})
