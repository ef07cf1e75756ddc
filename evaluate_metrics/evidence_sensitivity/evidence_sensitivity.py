"""Would the agent's verdict change if the evidence did?"""

from faithful_search.measure import metric


class EvidenceSensitivity(metric.TrajectoryMetric):
    """Would the agent's verdict change if the evidence did?"""

    measure = "evidence_sensitivity"
    about = (
        "Evidence sensitivity of a search agent (Proof-of-Use): how far the probability of its verdict moves, in "
        "the right direction, when the evidence behind it is exchanged. It measures a model, not a text: "
        "`policy=` is required."
    )
    returns = "`evidence_sensitivity` in [-1, 1]: above 0, verdicts follow the evidence; at 0 they ignore it."
    example = "predictions=[text], policy=model"
    paper = metric.PROOF_OF_USE
