from collections.abc import Sequence

from ...rewards.form import SENTENCE_ENDS, mention
from ...trajectory import Evidence
from ..cheat import Scene
from .calls_for_show import CallsForShow


class FormVerdicts(CallsForShow):
    """Judges passages by what they look like: whether they name their title and end as sentences
    do.
    """

    def helpful(self, scene: Scene) -> bool:
        return self.believes("", scene.returned)

    def believes(self, query: str, evidence: Sequence[Evidence]) -> bool:
        sentences = [passage.text.endswith(SENTENCE_ENDS) for passage in evidence]
        names = [bool(mention(passage.title, passage.text)) for passage in evidence]
        return bool(evidence) and all(sentences) and all(names)
