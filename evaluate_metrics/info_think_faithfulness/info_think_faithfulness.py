"""Do an agent's thoughts consider what it has just retrieved?"""

from faithful_search.measure import metric


class InfoThinkFaithfulness(metric.TrajectoryMetric):
    """Do an agent's thoughts consider what it has just retrieved?"""

    measure = "info_think_faithfulness"
    prompts = ("info_think",)
    about = (
        "Information-think faithfulness of search agents (VERITAS): the share of tool responses that the thought "
        "right after them is grounded in. Without a judge, words, names and numbers are compared and the result "
        "is called `info_think_lexical`."
    )
    returns = (
        "`info_think_lexical`, or `info_think_faithfulness` with a judge, in [0, 1]: 1 is best."
    )
    paper = metric.VERITAS
