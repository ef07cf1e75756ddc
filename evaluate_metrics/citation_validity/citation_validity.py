"""Does every verdict on the evidence say what it rests on?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Citation validity of search agents that judge each tool response and cite it (Proof-of-Use): the share of steps
after the first whose verdict is readable, consistent, and cites only what the previous response holds.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `citation_validity` in [0, 1]: 1 is best.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("citation_validity")
    >>> metric.compute(predictions=[text], details=True)["citation_validity"]  # doctest: +SKIP
"""
)

_CITATION = """\
@article{ma2025proofofuse,
  title  = {Proof-of-Use: Mitigating Tool-Call Hacking in Deep Research Agents},
  author = {Ma, Shengjie and Deng, Chenlong and Mao, Jiaxin and Huang, Jiadeng and Wang, Teng and Wu, Junjie and
            Zhang, Changwang and Wang, Jun},
  year   = {2025}
}
"""


class CitationValidity(metric.TrajectoryMetric):
    """Does every verdict on the evidence say what it rests on?"""

    metric = "citation_validity"

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
