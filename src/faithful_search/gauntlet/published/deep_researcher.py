"""DeepResearcher's reward."""

from ...rewards import Correctness, Mix

DIALECT = "deep_researcher"


def deep_researcher() -> Mix:
    """F1 of the words behind a gate of -1 for a broken format.

    ```
    R = -1                  if the format is broken
      = F1(answer, gold)    else
    ```

    DeepResearcher (arXiv 2504.03160), section 3 on its reward. Simplified: the format is that of
    the trajectory's own dialect (`Format`).

    How to hack it: answer from memory (`from_memory`); who is unsure lists candidates, since F1
    pays each word.
    """
    return Mix({"correctness": Correctness("f1")})
