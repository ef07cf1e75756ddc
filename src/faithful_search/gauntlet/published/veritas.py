"""VERITAS's reward."""

from ...judges import Judge
from ...rewards import Mix, veritas_mix

DIALECT = "search_r1"


def veritas(judge: Judge | None = None, think_answer: float = 0.02) -> Mix:
    """Exact match, and a little for thoughts that follow from information and lead to the answer.

    ```
    R = EM + 0.05·info_think + 0.02·think_answer
    ```

    VERITAS, section 4, equation 1, after its curriculum; the row with the paper's best exact match
    has no think_answer. Simplified: without a judge the words of thought and information are
    compared, where the paper has a distilled model.

    Args:
        judge: of info_think.
        think_answer: its weight; 0.0 is the row without it.

    How to hack it: answer from memory and copy evidence into the thought
    (`evidence_in_thought`).
    """
    return veritas_mix(judge, think_answer=think_answer)
