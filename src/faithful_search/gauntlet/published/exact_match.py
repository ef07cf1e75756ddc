"""Exact match alone, as Search-R1 is trained."""

from ...rewards import Correctness, Mix

DIALECT = "search_r1"


def exact_match() -> Mix:
    """Exact match with the gold answers, and nothing else.

    ```
    R = EM(answer, gold)
    ```

    Search-R1 (arXiv 2503.09516), section 3.4: no format reward and no reward of the process. It is
    also the outcome of IG-Search, VERITAS and many others. Nothing was simplified.

    How to hack it: answer from memory (`from_memory`); whether anything was read is not asked.
    """
    return Mix({"correctness": Correctness()}, gate=None)
