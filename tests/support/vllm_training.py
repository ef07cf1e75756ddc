"""Two steps of training with rollouts by vLLM on a CPU: `python vllm_training.py OUT stale|true`.

TRL brings weights to vLLM on GPUs only. Here `reload_weights` does it: it packs the output layer's
weights once and for all, so that a tied layer stays on the old ones ("stale"); "true" has it read
the weights that there are.
"""

import os
import sys
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import tiny_trainer
import torch
import vllm
from transformers import AutoTokenizer
from trl.generation import vllm_generation

from faithful_search.bundled import tiny_policy
from faithful_search.rewards import pou_mix
from faithful_search.rollout import Limits
from faithful_search.tasks import load_tasks
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.training import grpo
from faithful_search.training.arguments import SearchGRPOConfig

VLLM = {
    "use_vllm": True,
    "vllm_max_model_length": 1536,
    "vllm_gpu_memory_utilization": 0.1,
    "vllm_mode": "colocate",
}
OWN = {
    "max_steps": 2,
    "max_completion_length": 512,
    "learning_rate": 1e-3,
    "save_strategy": "no",
    "seed": 0,
}


class PlainLLM(vllm.LLM):
    """As TRL makes it, in float32 and without compilation."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{**how, "dtype": "float32", "enforce_eager": True})


def sync(self: Any) -> None:
    runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(
        weights_iterator=iter([(name, value.clone()) for name, value in self._iter_named_params()])
    )
    head = runner.get_model().lm_head
    if sys.argv[2] == "true":
        head.cpu_linear = lambda rows, weight, bias=None: torch.nn.functional.linear(
            rows, head.weight, bias
        )
    self.llm.reset_prefix_cache()


if __name__ == "__main__":
    torch.set_num_threads(1)
    grpo.check_vllm = lambda args, device: None  # which rightly refuses a CPU
    vllm_generation.LLM = PlainLLM
    vllm_generation.VLLMGeneration.sync_weights = sync
    trainer = grpo.SearchGRPOTrainer(
        str(tiny_policy("pou")),
        SearchGRPOConfig(sys.argv[1], **tiny_trainer.SETTINGS | VLLM | OWN),
        load_tasks("world", limit=8),
        processing_class=AutoTokenizer.from_pretrained(tiny_policy("pou")),
        toolbox=Toolbox([LocalSearch.from_corpus("world", top_k=2)]),
        reward=pou_mix(paper=True),
        limits=Limits(turns=4, turn_tokens=64, total_tokens=512),
        trajectory_file=f"{sys.argv[1]}/trajectories.jsonl",
    )
    trainer.train()
    trainer.state.save_to_json(f"{sys.argv[1]}/state.json")
