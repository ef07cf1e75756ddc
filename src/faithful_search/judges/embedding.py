"""The judge that compares meanings only roughly: the cosine of two embeddings. A baseline for the
others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from .base import Judge, Pair, Verdict, Weights, weights_of
from .distilled import check
from .windows import windows

if TYPE_CHECKING:
    from ..inference.encoder import Encoder


@dataclass(frozen=True)
class EmbeddingJudge(Judge):
    """p = (1 + c) / 2 with c the greatest cosine between the hypothesis and a window of the
    premise.

    Nearness of topic is not support: "Paris is in Spain" lies close to "Paris is in France". It is
    here as the baseline that a judge should beat.

    Args:
        encoder: what embeds the texts.
        threshold: the smallest p that counts as support. The default is where all-mpnet-base-v2 had
            the best balanced accuracy (0.56) on 120 training rows of four labelled sets; other
            encoders have other scales.
        window: the most tokens of the premise in one vector (fewer where the encoder reads fewer).
        stride: the most tokens that neighbouring windows share.
    """

    encoder: "Encoder"
    threshold: float = 0.88
    window: int = 128
    stride: int = 32

    needs_model: ClassVar[bool] = True
    flags: ClassVar[tuple[str, ...]] = ("trust_remote_code",)
    reads_queries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self.threshold, window=self.window, stride=self.stride)

    @classmethod
    def from_pretrained(cls, model: str, **knobs: Any) -> Self:
        """The judge of a Hub id or a directory; `knobs`: its other fields, or what
        `Encoder.from_pretrained` takes.
        """
        from ..inference.encoder import Encoder

        settings = {
            name: knobs.pop(name) for name in ("threshold", "window", "stride") if name in knobs
        }
        return cls(Encoder.from_pretrained(model, **knobs), **settings)

    @classmethod
    def open(cls, model: str | None = None, **settings: Any) -> Self:
        return cls.from_pretrained(str(model), **settings)

    @property
    def weights(self) -> Weights:
        return weights_of(self.encoder.source, self.encoder.model)

    @property
    def name(self) -> str:
        return f"embedding:{self.encoder.source}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        # an empty hypothesis or premise is near nothing: p = 0
        size = min(self.window, self.encoder.room)
        stride = min(self.stride, size // 2)
        parts: list[list[str]] = []
        for pair in pairs:
            comparable = pair.hypothesis.strip() and pair.premise.strip()
            parts.append(
                windows(pair.premise, size, stride, self.encoder.count) if comparable else []
            )
        # each text once: claims of an answer share their evidence
        texts = dict.fromkeys(pair.hypothesis for pair in pairs)
        for its_windows in parts:
            texts |= dict.fromkeys(its_windows)
        place = {text: row for row, text in enumerate(texts)}
        vectors = self.encoder.encode(list(texts))
        verdicts = []
        for pair, its_windows in zip(pairs, parts, strict=True):
            if not its_windows:
                verdicts.append(Verdict(0.0, False, "there is nothing to compare", self.name))
                continue
            cosine = float(
                max(
                    vectors[[place[part] for part in its_windows]] @ vectors[place[pair.hypothesis]]
                )
            )
            if not math.isfinite(cosine):
                why = f"the model gave the cosine {cosine}: is it damaged?"
                verdicts.append(Verdict(None, None, why, self.name))
                continue
            p = min(1.0, max(0.0, (1 + cosine) / 2))
            where = f", the most of {len(its_windows)} windows" if len(its_windows) > 1 else ""
            verdicts.append(
                Verdict(p, p >= self.threshold, f"cosine {cosine:.3f}{where}", self.name)
            )
        return verdicts
