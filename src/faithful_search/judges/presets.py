"""The published weights that judges of other people's models open where no model is named."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Preset(NamedTuple):
    """Published weights.

    Attributes:
        model: their Hub id.
        licence: what their model card says.
        authors: where the authors say how they are read: template, labels and windows.
    """

    model: str
    licence: str
    authors: str


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "minicheck": Preset(
            "lytang/MiniCheck-Flan-T5-Large", "MIT", "https://github.com/Liyan06/MiniCheck"
        ),
        "hhem": Preset(
            "vectara/hallucination_evaluation_model",
            "Apache-2.0",
            "https://huggingface.co/vectara/hallucination_evaluation_model",
        ),
        "lettuce": Preset(
            "KRLabsOrg/lettucedect-base-modernbert-en-v1",
            "MIT",
            "https://github.com/KRLabsOrg/LettuceDetect",
        ),
        "factcg": Preset(
            "yaxili96/FactCG-DeBERTa-v3-Large", "MIT", "https://github.com/derenlei/FactCG"
        ),
        "granite": Preset(
            "ibm-granite/granite-guardian-3.3-8b",
            "Apache-2.0",
            "https://github.com/ibm-granite/granite-guardian",
        ),
    }
)
"""By the names of the judges. None of these weights comes with the package."""
