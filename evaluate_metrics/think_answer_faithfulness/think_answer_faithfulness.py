"""Does the answer follow from an agent's last thought?"""

from faithful_search.measure import metric


class ThinkAnswerFaithfulness(metric.TrajectoryMetric):
    """Does the answer follow from an agent's last thought?"""

    measure = "think_answer_faithfulness"
    prompts = ("think_answer",)
    about = (
        "Think-answer faithfulness of search agents (VERITAS): whether the answer follows from the last thought "
        "before it. By default the normalised answer must occur in the thought (`think_answer_sub_em`); a judge "
        "adds `think_answer_faithfulness`."
    )
    returns = (
        "`think_answer_sub_em`, and `think_answer_faithfulness` with a judge, in [0, 1]: 1 is best."
    )
    paper = metric.VERITAS
