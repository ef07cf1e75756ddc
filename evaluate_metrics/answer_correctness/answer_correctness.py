"""Is the answer right? Compared with gold answers, by string or by a judge."""

from faithful_search.evaluation import metric

_DESCRIPTION = """\
Correctness of a search agent's answers against gold answers: exact match, token F1 and substring match, each named
by its normaliser (`exact_match_squad`, …), and `answer_correctness` when a judge is given.
"""

_KWARGS_DESCRIPTION = (
    metric.ARGUMENTS
    + """
Returns:
    A dictionary: `exact_match_squad`, `f1_squad`, `sub_em_squad` (or `…_pokee`), and `answer_correctness` with a
    judge, in [0, 1].
    Beside each NAME: NAME_stderr, NAME_low, NAME_high (95 % interval), NAME_n (questions), NAME_not_applicable,
    NAME_not_applicable_share and NAME_abstained; and once judge, trajectories, dialects, errors (rows left out).

Examples:
    >>> metric = evaluate.load("answer_correctness")
    >>> metric.compute(predictions=[text], references=["Teska"])["exact_match_squad"]  # doctest: +SKIP
"""
)

_CITATION = """\
@inproceedings{rajpurkar2016squad,
  title     = {{SQuAD}: 100,000+ Questions for Machine Comprehension of Text},
  author    = {Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle = {EMNLP},
  year      = {2016}
}
"""


class AnswerCorrectness(metric.TrajectoryMetric):
    """Is the answer right? Compared with gold answers, by string or by a judge."""

    metric = "answer_correctness"
    prompts = ("correctness",)
    needs_references = True

    def _info(self):
        return metric.info(_DESCRIPTION, _KWARGS_DESCRIPTION, _CITATION)
