"""Is the trajectory written as its dialect's protocol asks?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Protocol format of search agents: whether a trajectory is written as its dialect asks, with every turn well formed
and the last one answering.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `protocol_format` in [0, 1]: the share of well-formed trajectories.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("protocol_format")
    >>> metric.compute(predictions=[text], details=True)["protocol_format"]  # doctest: +SKIP
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


class ProtocolFormat(metric.TrajectoryMetric):
    """Is the trajectory written as its dialect's protocol asks?"""

    metric = "protocol_format"

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
