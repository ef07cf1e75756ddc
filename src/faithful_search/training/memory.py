"""On CPUs, memory that was freed is kept for the next step instead of being asked of the system again."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_MOST = 2_000_000_000


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed; returns whether it could.

    glibc gives large blocks back to the system and asks for them again, page by page and zeroed: up to half of the time
    of a training step on a CPU goes into page faults. The price is that the process never shrinks. Elsewhere than on
    Linux with glibc nothing happens. Set `MALLOC_MMAP_MAX_` in the environment for another behaviour of your own.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return bool(mallopt and mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _MOST))
