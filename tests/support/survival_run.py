"""A recipe in which one process sends itself a signal at a certain place: what `test_survival.py`
starts.

`FAULT=place:process:call:signal` says where, in which process, at which call and which; `none` for
an undisturbed run. A signal of `HALF` writes half of what `torch.save` was to write and kills;
`ERROR` is no signal but an exception.
"""

import os
import signal
import sys
from functools import wraps
from typing import Any

import torch
from accelerate import Accelerator
from transformers import Trainer

from faithful_search.errors import GeneratorError
from faithful_search.recipes import pou
from faithful_search.training import runs
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.starting import run_recipe

PLACES: dict[str, tuple[Any, str]] = {
    "rollout": (SearchGRPOTrainer, "_rollout"),
    "reward": (SearchGRPOTrainer, "_report"),
    "backward": (Accelerator, "backward"),
    "checkpoint": (Trainer, "_save_checkpoint"),
    "random": (Trainer, "_save_rng_state"),
    "file": (torch, "save"),
    "evaluation": (runs, "run_conditions"),
    "scoring": (runs, "evaluate_rollouts"),
}


def arm(place: str, process: str, call: str, name: str) -> None:
    """Make the call that is meant do it."""
    owner, attribute = PLACES[place]
    plain, calls = getattr(owner, attribute), []

    @wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == int(call) and os.environ.get("RANK", "0") == process:
            if name == "ERROR":
                raise GeneratorError("the server at http://127.0.0.1:9 is down")
            if name == "HALF":
                plain(*args)
                os.truncate(args[1], os.path.getsize(args[1]) // 2)
            print(f"\nfault: {place}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), getattr(signal, name.replace("HALF", "SIGKILL")))
        return plain(*args, **kwargs)

    setattr(owner, attribute, wrapped)


if __name__ == "__main__":
    if os.environ["FAULT"] != "none":
        arm(*os.environ["FAULT"].split(":"))
    run_recipe(pou.main)
