"""Where does what an agent searches for come from?"""

from faithful_search.measure import metric


class QueryProvenance(metric.TrajectoryMetric):
    """Where does what an agent searches for come from?"""

    measure = "query_provenance"
    about = (
        "Query provenance of search agents: the share of the names in their queries that was first seen in the "
        "question, in evidence, or only in the agent's own words. Who searches for what it remembers confirms it."
    )
    returns = (
        "`query_from_question_lexical`, `query_from_evidence_lexical` and `query_from_thought_lexical` in [0, 1]; "
        "they sum to 1."
    )
    paper = """\
@article{livebrowsecomp2026,
  title  = {LiveBrowseComp},
  note   = {arXiv:2605.28721},
  year   = {2026}
}
"""
