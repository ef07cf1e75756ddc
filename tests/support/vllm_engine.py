"""Runs under the python of an environment with vLLM: answers what comes on its standard input, a
JSON line each.

python tests/support/vllm_engine.py MODEL
{"verb": "generate", "arguments": [[[1, 2]], {"max_new_tokens": 4}, null]}
"""

import json
import os
import sys
from typing import Any


def pack_head(model: Any) -> None:
    """On a CPU the output layer multiplies with a packed copy of its weights, which loading others
    leaves as it was.
    """
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


if __name__ == "__main__":
    # vLLM logs to standard output
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import msgspec
    import vllm_engine  # the engine's processes know it by this name

    from faithful_search.errors import FaithfulSearchError
    from faithful_search.inference.base import Sampling
    from faithful_search.inference.vllm import open_vllm

    size = {"max_model_len": 1024, "gpu_memory_utilization": 0.2}
    generator = open_vllm(sys.argv[1], dtype="float32", enforce_eager=True, **size)

    def generate(prompts: Any, sampling: Any, limits: Any) -> Any:
        rows = generator.generate(prompts, msgspec.convert(sampling, Sampling), limits)
        return [[row.ids, row.finish, row.logprobs] for row in rows]

    def load(path: str, head: bool) -> None:
        generator.llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
        if head:
            generator.llm.apply_model(vllm_engine.pack_head)
        generator.llm.reset_prefix_cache()

    verbs = {"load": load, "generate": generate, "choice_probs": generator.choice_probs}
    print(json.dumps("ready"), file=replies)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            reply = {"value": verbs[asked["verb"]](*asked["arguments"])}
        except FaithfulSearchError as error:
            reply = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(reply), file=replies)
