"""The judge MiniCheck (Tang, Laban and Durrett 2024): is a sentence supported by a document?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .nli import is_seq2seq, open_entailment, second_of_two, written_labels
from .presets import PRESETS, Preset
from .windowed import Input, Readout, ReadoutJudge, as_rows

_TASK = "predict: "  # what the seq2seq model reads before a document
_CLASSIFIERS_WINDOW = 400


@dataclass(frozen=True)
class MiniCheckJudge(ReadoutJudge):
    """p = max over windows of the evidence of p(supported | window, claim), by MiniCheck.

    The model reads `predict: DOCUMENT</s>CLAIM`, and p = p(1) / (p(1) + p(0)) of the first token it
    writes. The RoBERTa and DeBERTa variants of MiniCheck are classifiers, which read the same
    without `predict:`; there p is the softmax of the second of two labels. Windows end between
    sentences and do not overlap. The authors count 500 words (700 tokens here) for the seq2seq
    model and 400 tokens for classifiers.

    It is made for single sentences that state something. It is not made for thoughts, and does not
    read the question. It can be gamed by repeating the evidence.

    Args:
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`.
    """

    window: int = 700
    stride: int = 0
    longest: int | None = 2048

    kind: ClassVar[str] = "minicheck"
    preset: ClassVar[Preset | None] = PRESETS["minicheck"]

    @classmethod
    def from_pretrained(cls, model: str, **knobs: Any) -> Self:
        """As `WindowedJudge.from_pretrained`; a classifier's window is by default 400 tokens."""
        judge = super().from_pretrained(model, **knobs)
        if is_seq2seq(judge.architecture) or "window" in knobs:
            return judge
        return replace(judge, window=_CLASSIFIERS_WINDOW)

    @classmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        return open_entailment(model, **loading)

    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        # What the tokenizer writes around a text: BOS or CLS, where it has one, and the end token,
        # which MiniCheck also puts between the two texts.
        *opening, end = self.tokenizer("")["input_ids"]
        task = _TASK if is_seq2seq(self.architecture) else ""
        documents = self.pieces([task + each.premise for each in inputs])
        claims = self.pieces([each.hypothesis for each in inputs])
        rows = []
        for document, claim in zip(documents, claims, strict=True):
            if self.limit is not None:
                # Windows are counted in parts, whose tokens need not add up exactly.
                room = self.limit - len(opening) - len(claim) - 2  # 2: the end tokens
                document = document[:room]
            rows.append([*opening, *document, end, *claim, end])
        return as_rows(rows)

    def make_readout(self) -> Readout:
        if is_seq2seq(self.architecture):
            return written_labels(self)
        return second_of_two(self)
