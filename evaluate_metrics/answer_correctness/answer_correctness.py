"""Is the answer right? Compared with gold answers, by string or by a judge."""

from faithful_search.measure import metric

SQUAD = """\
@inproceedings{rajpurkar2016squad,
  title     = {{SQuAD}: 100,000+ Questions for Machine Comprehension of Text},
  author    = {Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle = {EMNLP},
  year      = {2016}
}
"""


class AnswerCorrectness(metric.TrajectoryMetric):
    """Is the answer right? Compared with gold answers, by string or by a judge."""

    measure = "answer_correctness"
    prompts = ("correctness",)
    needs_references = True
    about = (
        "Correctness of a search agent's answers against gold answers: exact match, token F1 and substring match, "
        "each named by its normaliser (`exact_match_unicode`, …), and `answer_correctness` when a judge is given."
    )
    returns = (
        "`exact_match_unicode`, `f1_unicode`, `sub_em_unicode` (or `…_squad`, `…_pokee`), and "
        "`answer_correctness` with a judge, in [0, 1]."
    )
    example = 'predictions=[text], references=["Teska"]'
    paper = SQUAD
