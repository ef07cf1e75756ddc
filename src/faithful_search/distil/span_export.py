"""A trained span judge as a directory that opens without torch: an ONNX file in 8 bits, and its
tokenizer.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from ..errors import needs
from ..judges.span import NETWORK, TOKENIZER, Arrays
from .span_model import SpanModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INPUTS = ("input_ids", "marks", "attention_mask", "claim_mask")
_OUTPUTS = ("logits", "token_logits")
_OPSET = 17


class TorchNetwork:
    """The network of a judge in training: a `judges.span.Network` that runs in torch."""

    def __init__(self, model: SpanModel) -> None:
        self.model = model

    def __call__(self, inputs: Arrays) -> tuple["NDArray[Any]", "NDArray[Any]"]:
        device = next(self.model.parameters()).device
        tensors = [torch.from_numpy(inputs[name]).to(device) for name in _INPUTS]
        with torch.inference_mode():
            outputs = self.model(*tensors)
        logits, token_logits = (outputs[name].float().cpu().numpy() for name in _OUTPUTS)
        return logits, token_logits


def export(model: SpanModel, tokenizer: Any, folder: Path, quantize: bool = True) -> None:
    """Write `model.onnx` and `tokenizer.json` of an opened judge into `folder`.

    With `quantize` the weights have 8 bits, and scores differ a little from those of training.
    """
    with needs("a span judge is written as ONNX and", "judge-export"):
        import onnx  # noqa: F401 what quantises needs it
        from onnxruntime.quantization import QuantType, quantize_dynamic
    tokenizer.save(str(folder / TOKENIZER))
    with TemporaryDirectory() as scratch:
        plain = Path(scratch) / NETWORK if quantize else folder / NETWORK
        _export_plain(model, plain)
        if quantize:
            quantize_dynamic(plain, folder / NETWORK, weight_type=QuantType.QInt8, per_channel=True)


def _export_plain(model: SpanModel, path: Path) -> None:
    model = model.float().cpu().eval()
    model.encoder.set_attn_implementation("eager")  # the exporter knows all parts of it
    example = _example()
    dynamic = {name: {0: "rows", 1: "tokens"} for name in (*_INPUTS, _OUTPUTS[1])}
    dynamic[_OUTPUTS[0]] = {0: "rows"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about shapes that are named as dynamic
        torch.onnx.export(
            model,
            tuple(example),
            str(path),
            input_names=list(_INPUTS),
            output_names=list(_OUTPUTS),
            dynamic_axes=dynamic,
            opset_version=_OPSET,
            dynamo=False,  # the other exporter needs further packages
        )


def _example(rows: int = 2, tokens: int = 24) -> Sequence[torch.Tensor]:
    """A batch with padding and a hypothesis, so that nothing is taken for a constant."""
    ids = torch.arange(rows * tokens).reshape(rows, tokens) % 50
    marks = ids % 3
    attended = torch.ones_like(ids)
    attended[1, tokens // 2 :] = 0
    claim = torch.zeros_like(ids)
    claim[:, 1:6] = 1
    return ids, marks, attended, claim
