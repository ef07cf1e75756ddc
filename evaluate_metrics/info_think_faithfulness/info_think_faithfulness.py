"""Do an agent's thoughts consider what it has just retrieved?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Information-think faithfulness of search agents (VERITAS): the share of tool responses that the thought right after
them is grounded in. Without a judge, words, names and numbers are compared and the result is called
`info_think_lexical`.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `info_think_lexical`, or `info_think_faithfulness` with a judge, in [0, 1]: 1 is best.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("info_think_faithfulness")
    >>> metric.compute(predictions=[text], details=True)["info_think_lexical"]  # doctest: +SKIP
"""
)

_CITATION = """\
@article{veritas2025,
  title  = {Beyond Correctness: Rewarding Faithful Reasoning in Retrieval-Augmented Generation},
  note   = {VERITAS: Verifying Entailed Reasoning through Intermediate Traceability in Agentic Search},
  year   = {2025}
}
"""


class InfoThinkFaithfulness(metric.TrajectoryMetric):
    """Do an agent's thoughts consider what it has just retrieved?"""

    metric = "info_think_faithfulness"
    prompts = ("info_think",)

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
