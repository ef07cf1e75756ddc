"""Would the agent's verdict change if the evidence did?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Evidence sensitivity of a search agent (Proof-of-Use): how far the probability of its verdict moves, in the right
direction, when the evidence behind it is exchanged. It measures a model, not a text: `policy=` is required.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `evidence_sensitivity` in [-1, 1]: above 0, verdicts follow the evidence; at 0 they ignore it.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("evidence_sensitivity")
    >>> metric.compute(predictions=[text], policy=model)["evidence_sensitivity"]  # doctest: +SKIP
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


class EvidenceSensitivity(metric.TrajectoryMetric):
    """Would the agent's verdict change if the evidence did?"""

    metric = "evidence_sensitivity"

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
