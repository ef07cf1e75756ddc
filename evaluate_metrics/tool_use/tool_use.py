"""Which tools does an agent call, how evenly, and to what purpose?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Tool use of search agents: the share of calls that repeat an earlier one, the share whose evidence is never used,
and over all trajectories the calls, ratios and normalised entropy of the tools (Proof-of-Use).
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `repeated_calls`, `unused_evidence_lexical`, `uncited_evidence` and `tool_entropy` in [0, 1];
    `tool_calls`, `tool_ratios` by tool.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("tool_use")
    >>> metric.compute(predictions=[text], details=True)["repeated_calls"]  # doctest: +SKIP
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


class ToolUse(metric.TrajectoryMetric):
    """Which tools does an agent call, how evenly, and to what purpose?"""

    metric = "tool_use"

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)

    def corpus(self, trajectories, tools):
        return metric.tool_figures(trajectories, tools)
