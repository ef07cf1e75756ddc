"""The judge FactCG (Lei et al. 2025): can a claim be concluded from a paragraph?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .nli import open_entailment, second_of_two
from .presets import PRESETS, Preset
from .windowed import PLAIN, Input, Readout, ReadoutJudge, as_rows

_FRAME = (
    '{}\n\nChoose your answer: based on the paragraph above can we conclude that "{}"?\n\n'
    "OPTIONS:\n- Yes\n- No\nI think the answer is "
)


@dataclass(frozen=True)
class FactCGJudge(ReadoutJudge):
    """p = max over windows of the evidence of p(supported | window, claim), by FactCG.

    A classifier reads one text, a question around the window and the claim; p is the softmax of the
    second of its two labels. Windows end between sentences and do not overlap; the authors count
    550 words and signs (700 tokens here).

    The threshold is 0.5, which the authors call fixed; their better figures tune it on each set. It
    is made for claims, not for thoughts, and does not read the question. It can be gamed by
    repeating the evidence.

    Args:
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`.
    """

    window: int = 700
    stride: int = 0
    longest: int | None = 2048

    kind: ClassVar[str] = "factcg"
    spare: ClassVar[int] = 8
    preset: ClassVar[Preset | None] = PRESETS["factcg"]

    @classmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        return open_entailment(model, **loading)

    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        texts = [_FRAME.format(each.premise, each.hypothesis) for each in inputs]
        return as_rows(self.tokenizer(texts, verbose=False, **PLAIN)["input_ids"])

    def make_readout(self) -> Readout:
        return second_of_two(self)
