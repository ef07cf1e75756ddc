"""PokeeResearch's reward."""

from ...judges import Judge
from ...rewards import Mix, pokee_mix

DIALECT = "pokee"


def pokee(judge: Judge | None = None, format_weight: float = 0.1) -> Mix:
    """A right answer, and a little for a valid format.

    ```
    R = R_correct + w·[the format is valid]
    ```

    PokeeResearch (arXiv 2510.15862), sections 3.2 and 3.3, which gives no w: 0.1 is ours.
    Simplified: without a judge the answer must be an exact match, where the paper has AI feedback.

    Args:
        judge: whether the answer means the same as a gold answer.
        format_weight: w.

    How to hack it: answer from memory (`from_memory`); whether anything was read is not asked.
    """
    return pokee_mix(judge, metric="em" if judge is None else "judge", format_weight=format_weight)
