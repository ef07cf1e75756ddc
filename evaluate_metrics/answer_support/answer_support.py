"""Does the cited evidence support the answer's claims?"""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Answer support of search agents (Proof-of-Use, after Ragas' faithfulness): the share of the answer's claims that the
evidence the agent cited supports. Without a judge, words are compared and the result is called
`answer_support_lexical`.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `answer_support_lexical`, or `answer_support` with a judge, in [0, 1]: 1 is best.
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("answer_support")
    >>> metric.compute(predictions=[text], details=True)["answer_support_lexical"]  # doctest: +SKIP
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


class AnswerSupport(metric.TrajectoryMetric):
    """Does the cited evidence support the answer's claims?"""

    metric = "answer_support"
    prompts = ("support", "support_many", "claims")

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
