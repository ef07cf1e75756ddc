"""Which tools does an agent call, how evenly, and to what purpose?"""

from faithful_search.measure import metric


class ToolUse(metric.TrajectoryMetric):
    """Which tools does an agent call, how evenly, and to what purpose?"""

    measure = "tool_use"
    about = (
        "Tool use of search agents: the share of calls that repeat an earlier one, the share whose evidence is "
        "never used, and over all trajectories the calls, ratios and normalised entropy of the tools (Proof-of-"
        "Use)."
    )
    returns = (
        "`repeated_calls`, `unused_evidence_lexical`, `uncited_evidence` and `tool_entropy` in [0, 1]; "
        "`tool_calls`, `tool_ratios` by tool."
    )
    paper = metric.PROOF_OF_USE

    def corpus(self, audit):
        return metric.tool_figures(audit)
