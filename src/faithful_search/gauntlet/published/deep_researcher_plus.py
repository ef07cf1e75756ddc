"""The sum of format and answer that Proof-of-Use's authors train DeepResearcher+ with."""

from ...errors import ConfigError
from ...rewards import Correctness, Format, Mix

DIALECT = "deep_researcher"


def deep_researcher_plus(weight: float = 0.1) -> Mix:
    """A valid format and the F1 of the answer, added with a weight.

    ```
    R = λ·[the format is valid] + (1 - λ)·F1(answer, gold)
    ```

    Proof-of-Use, section 3.1, equation 1, names it the common reward of deep research agents, and
    section 4.2 its baseline DeepResearcher+. It gives no λ: 0.1 is ours. The paper's answer reward
    is a measure of correctness; F1 is DeepResearcher's. Simplified: the format is that of the
    trajectory's own dialect (`Format`).

    Args:
        weight: λ, between 0 and 1.

    How to hack it: answer from memory (`from_memory`); any answer in good form earns λ.
    """
    if not 0 <= weight <= 1:
        raise ConfigError(f"deep_researcher_plus: weight must be in [0, 1], got {weight}")
    return Mix(
        {"format": Format(), "correctness": Correctness("f1")},
        {"format": weight, "correctness": 1 - weight},
        gate=None,
    )
