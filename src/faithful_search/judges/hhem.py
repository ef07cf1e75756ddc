"""The judge HHEM-2.1-Open (Vectara 2024): is a hypothesis true, given the premise?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from transformers import T5ForTokenClassification

from ..errors import ConfigError
from ..inference.hub_files import file_beside
from ..inference.loading import device_and_dtype, opening, read_config, read_tokenizer
from .presets import PRESETS, Preset
from .windowed import PLAIN, Input, Readout, ReadoutJudge, as_rows

_FRAME = "Determine if the hypothesis is true given the premise?\n\nPremise: {}\n\nHypothesis: {}"
_FOUNDATION = "google/flan-t5-base"
_PREFIX = "t5."  # of the names of the weights in the authors' own class


@dataclass(frozen=True)
class HHEMJudge(ReadoutJudge):
    """p = max over windows of the evidence of p(consistent | window, hypothesis), by HHEM.

    A T5 encoder with a head for tokens reads a padding token and one text with window and
    hypothesis; p is the softmax of the second label at that first token.

    Its repository brings Python code, which is not needed and never run: the weights are opened as
    Transformers' own `T5ForTokenClassification`, with configuration and tokenizer of the model that
    `foundation` in its config.json names, by default google/flan-t5-base.

    The authors read texts of any length at once; the window here bounds the memory. It is made for
    summaries and answers, not for thoughts, and does not read the question. It can be gamed by
    repeating the evidence.

    Args:
        model, tokenizer, source, threshold, window, stride, batch_tokens, temperature, longest: as
            of `WindowedJudge`.
    """

    window: int = 2048
    longest: int | None = 4096

    kind: ClassVar[str] = "hhem"
    probability_of: ClassVar[str] = "consistent"
    spare: ClassVar[int] = 8
    flags: ClassVar[tuple[str, ...]] = ()
    preset: ClassVar[Preset | None] = PRESETS["hhem"]

    @classmethod
    def open_network(cls, model: str, **loading: Any) -> tuple[Any, Any]:
        device, dtype = device_and_dtype(loading["device"], loading["dtype"])
        config_file = file_beside(model, "config.json", loading["revision"])
        weights = file_beside(model, "model.safetensors", loading["revision"])
        if config_file is None or weights is None:
            raise ConfigError(f"{model!r} lacks config.json or model.safetensors: it is no HHEM")
        with opening(f"the model {model!r}"):
            settings = json.loads(config_file.read_text(encoding="utf-8"))
            foundation = settings.get("foundation") or _FOUNDATION
            config = read_config(foundation)
            config.num_labels = 2
            network, loaded = T5ForTokenClassification.from_pretrained(
                None,
                config=config,
                state_dict=_renamed(load_file(weights)),
                dtype=dtype,
                output_loading_info=True,
            )
        if loaded["missing_keys"] or loaded["mismatched_keys"]:
            raise ConfigError(
                f"{model!r} is no HHEM: its weights do not fill the classifier on {foundation!r}"
            )
        network.config.name_or_path = model
        has_tokenizer = (Path(model) / "tokenizer_config.json").exists()
        tokenizer = read_tokenizer(model if has_tokenizer else foundation)
        return network.to(device).eval(), tokenizer

    def encode(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        texts = [_FRAME.format(each.premise, each.hypothesis) for each in inputs]
        encoded = self.tokenizer(texts, verbose=False, **PLAIN)["input_ids"]
        return as_rows([[self.tokenizer.pad_token_id, *ids] for ids in encoded])

    def make_readout(self) -> Readout:
        return partial(_consistent, self.model)


def _renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights by the names that Transformers' class has for them."""
    return {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}


def _consistent(model: Any, batch: Any) -> torch.Tensor:
    probabilities: torch.Tensor = model(**batch).logits[:, 0].float().softmax(-1)
    return probabilities[:, 1]
