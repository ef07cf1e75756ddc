"""Does every verdict on the evidence say what it rests on?"""

from faithful_search.measure import metric


class CitationValidity(metric.TrajectoryMetric):
    """Does every verdict on the evidence say what it rests on?"""

    measure = "citation_validity"
    about = (
        "Citation validity of search agents that judge each tool response and cite it (Proof-of-Use): the share "
        "of steps after the first whose verdict is readable, consistent, and cites only what the previous "
        "response holds."
    )
    returns = "`citation_validity` in [0, 1]: 1 is best."
    paper = metric.PROOF_OF_USE
