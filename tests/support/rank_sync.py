"""The weight sync's test in two processes that share out a model, run by `torchrun`: each prints what came of it.

The only argument is "fsdp2" or "zero3".
"""

import json
import sys
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer

from faithful_search.bundled import tiny_policy
from faithful_search.errors import FaithfulSearchError, GeneratorError
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.training.processes import most
from faithful_search.training.vllm import check_sync


def opened() -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_policy(), dtype=torch.float32).eval()


def shared_out(kind: str) -> Any:
    model = opened()
    if kind == "fsdp2":
        for part in (*model.model.layers, model):
            fully_shard(part)
        return model
    import deepspeed

    deepspeed.init_distributed("gloo")
    stage = {"stage": 3, "stage3_param_persistence_threshold": 0}
    settings = {"zero_optimization": stage, "zero_allow_untested_optimizer": True, "train_micro_batch_size_per_gpu": 1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0].module


def full(parameter: Any) -> torch.Tensor:
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor()
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def own(parameter: Any) -> torch.Tensor:
    """What this process holds of it."""
    return (parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter.to_local()).detach().clone()


class Engine(TransformersGenerator):
    """Takes all weights, or none; may be out of order."""

    def __init__(self, tokenizer: Any, deaf: bool = False, broken: bool = False) -> None:
        super().__init__(opened(), tokenizer)
        self.deaf, self.broken = deaf, broken

    def load(self, model: Any) -> None:
        whole = {name: full(value) for name, value in model.named_parameters()}  # every process takes part
        if not self.deaf:
            self.model.load_state_dict(whole, strict=False)

    def generate(self, *arguments: Any) -> Any:
        if self.broken:
            raise GeneratorError("out of order")
        return super().generate(*arguments)


def main() -> None:
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    model = shared_out(sys.argv[1])
    scorer = TransformersGenerator(model, tokenizer, agree=most(accelerator))
    prompt = tokenizer("<|user|>Which city" + " is" * rank, add_special_tokens=False)["input_ids"]
    before = own(model.get_input_embeddings().weight)
    told = []
    for engine in (Engine(tokenizer), Engine(tokenizer, deaf=rank == 1), Engine(tokenizer, broken=rank == 0)):
        try:
            found = check_sync(model, lambda engine=engine: engine.load(model), engine, scorer, prompt)
            told.append([max(found.changed, found.restored) < 1e-4, found.moved > 1])
        except FaithfulSearchError as error:
            told.append([type(error).__name__, str(error)[:40]])
    after = own(model.get_input_embeddings().weight)
    told.append([after.numel(), torch.equal(before.view(torch.int32), after.view(torch.int32))])
    accelerator.wait_for_everyone()
    sys.stdout.write(json.dumps({"rank": rank, "told": told}) + "\n")  # at once: both write into the same pipe


if __name__ == "__main__":
    main()
