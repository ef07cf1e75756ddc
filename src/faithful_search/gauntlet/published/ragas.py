"""Ragas faithfulness, taken as a reward."""

from ...judges import Judge
from ...rewards import AnswerSupport, Mix

DIALECT = "pou"


def ragas(judge: Judge | None = None) -> Mix:
    """The share of the answer's claims that follow from what was retrieved.

    ```
    R = |{claims of the answer supported by the retrieved passages}| / |{claims of the answer}|
    ```

    Ragas (arXiv 2309.15217), section 3, the metric "faithfulness" of vibrantlabsai/ragas, which
    makes claims of question and answer by one prompt of a model and judges them by another. It is a
    metric; as a reward alone it does not ask whether the answer is right. Simplified: by default
    the answer must occur in a passage as it stands (`AnswerSupport`), with a judge that writes (an
    endpoint) claims are made as Ragas makes them. An answer without claims, which Ragas scores NaN,
    is 0 here.

    Args:
        judge: whether a claim follows from the passages; by default words are compared.

    How to hack it: copy what was retrieved into the answer (`evidence_as_answer`): it is always
    supported, and never compared with a gold answer.
    """
    support = AnswerSupport(evidence="retrieved")
    if judge is not None:
        support = AnswerSupport(judge, evidence="retrieved")
    return Mix({"answer_support": support}, gate=None)
