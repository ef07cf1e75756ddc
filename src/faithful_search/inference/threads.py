"""How many CPU threads torch takes: as many as cores are idle, since threads that share a core wait for each other.

On two cores beside other work, two threads of a small model take ten times as long as one.
"""

import os

import torch

LAUNCHERS = frozenset(("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"))
"""What `accelerate launch` and `torchrun` put into the environment of what they start."""
_chosen = False


def choose_threads(asked: int = 0) -> int:
    """Set torch's threads, and return how many there are: as many as asked for, at 0 as many as `idle_cores`.

    At 0 what `OMP_NUM_THREADS` says stays (a launcher's 1 is what it says where nobody said anything), and so does what
    was set before: by then this program itself keeps cores busy.
    """
    global _chosen
    said = os.environ.get("OMP_NUM_THREADS")
    launched = said == "1" and not LAUNCHERS.isdisjoint(os.environ)
    if asked:
        torch.set_num_threads(asked)
    elif not _chosen and (said is None or launched):
        torch.set_num_threads(idle_cores() if launched else min(torch.get_num_threads(), idle_cores()))
    _chosen = True
    return torch.get_num_threads()


def idle_cores() -> int:
    """This process's share of the cores that it may use and that had nothing to do in the last minute; at least 1."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, round(mine - busy) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
