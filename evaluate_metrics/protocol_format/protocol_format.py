"""Is the trajectory written as its dialect's protocol asks?"""

from faithful_search.measure import metric


class ProtocolFormat(metric.TrajectoryMetric):
    """Is the trajectory written as its dialect's protocol asks?"""

    measure = "protocol_format"
    about = (
        "Protocol format of search agents: whether a trajectory is written as its dialect asks, with every turn "
        "well formed and the last one answering."
    )
    returns = "`protocol_format` in [0, 1]: the share of well-formed trajectories."
    paper = metric.PROOF_OF_USE
