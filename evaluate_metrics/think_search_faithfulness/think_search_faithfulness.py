"""Do an agent's searches follow from its thoughts?"""

from faithful_search.measure import metric


class ThinkSearchFaithfulness(metric.TrajectoryMetric):
    """Do an agent's searches follow from its thoughts?"""

    measure = "think_search_faithfulness"
    prompts = ("think_search",)
    about = (
        "Think-search faithfulness of search agents (VERITAS): the share of calls that follow from the thought "
        "right before them. Without a judge, words, names and numbers are compared and the result is called "
        "`think_search_lexical`."
    )
    returns = (
        "`think_search_lexical`, or `think_search_faithfulness` with a judge, in [0, 1]: 1 is best."
    )
    paper = metric.VERITAS
