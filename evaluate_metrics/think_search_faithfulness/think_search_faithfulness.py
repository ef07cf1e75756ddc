"""Do an agent's searches follow from its thoughts?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Think-search faithfulness of search agents (VERITAS): the share of calls that follow from the thought right before
them. Without a judge, words, names and numbers are compared and the result is called `think_search_lexical`.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `think_search_lexical`, or `think_search_faithfulness` with a judge, in [0, 1]: 1 is best.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("think_search_faithfulness")
    >>> metric.compute(predictions=[text], details=True)["think_search_lexical"]  # doctest: +SKIP
"""
)

_CITATION = """\
@article{veritas2025,
  title  = {Beyond Correctness: Rewarding Faithful Reasoning in Retrieval-Augmented Generation},
  note   = {VERITAS: Verifying Entailed Reasoning through Intermediate Traceability in Agentic Search},
  year   = {2025}
}
"""


class ThinkSearchFaithfulness(metric.TrajectoryMetric):
    """Do an agent's searches follow from its thoughts?"""

    metric = "think_search_faithfulness"
    prompts = ("think_search",)

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
