"""Does the answer follow from an agent's last thought?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Think-answer faithfulness of search agents (VERITAS): whether the answer follows from the last thought before it. By
default the normalised answer must occur in the thought (`think_answer_sub_em`); a judge adds
`think_answer_faithfulness`.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `think_answer_sub_em`, and `think_answer_faithfulness` with a judge, in [0, 1]: 1 is best.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("think_answer_faithfulness")
    >>> metric.compute(predictions=[text], details=True)["think_answer_sub_em"]  # doctest: +SKIP
"""
)

_CITATION = """\
@article{veritas2025,
  title  = {Beyond Correctness: Rewarding Faithful Reasoning in Retrieval-Augmented Generation},
  note   = {VERITAS: Verifying Entailed Reasoning through Intermediate Traceability in Agentic Search},
  year   = {2025}
}
"""


class ThinkAnswerFaithfulness(metric.TrajectoryMetric):
    """Does the answer follow from an agent's last thought?"""

    metric = "think_answer_faithfulness"
    prompts = ("think_answer",)

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
