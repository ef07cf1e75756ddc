"""Does the cited evidence support the answer's claims?"""

from faithful_search.measure import metric


class AnswerSupport(metric.TrajectoryMetric):
    """Does the cited evidence support the answer's claims?"""

    measure = "answer_support"
    prompts = ("support", "support_many", "claims")
    about = (
        "Answer support of search agents (Proof-of-Use, after Ragas' faithfulness): the share of the answer's "
        "claims that the evidence the agent cited supports. Without a judge, words are compared and the result is "
        "called `answer_support_lexical`. An answer that says that it has none claims nothing; `declined` is the share "
        "of such answers."
    )
    returns = (
        "`answer_support_lexical`, or `answer_support` with a judge, in [0, 1]: 1 is best; `declined`, the share of "
        "answers that say that they have none."
    )
    paper = metric.PROOF_OF_USE
