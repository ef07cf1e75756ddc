"""Was what the answer cites returned, does it carry its sentence, and how many sentences cite?"""

from faithful_search.measure import metric


class Citations(metric.TrajectoryMetric):
    """Was what the answer cites returned, does it carry its sentence, and how many sentences cite?"""

    measure = "citations"
    prompts = ("support", "support_many")
    about = (
        "Citations of search agents, in whatever form they are written: the share of the cited sources that a tool "
        "returned, the share of the citing sentences that what they cite carries, and the share of the sentences that "
        "cite. Without a judge, words are compared and the second is called `citation_support_lexical`."
    )
    returns = (
        "`citation_returned`, `citation_support_lexical`, or `citation_support` with a judge, and "
        "`citation_coverage` in [0, 1]: 1 is best."
    )
    paper = """\
@inproceedings{gao2023alce,
  title     = {Enabling Large Language Models to Generate Text with Citations},
  author    = {Gao, Tianyu and Yen, Howard and Yu, Jiatong and Chen, Danqi},
  booktitle = {Proceedings of EMNLP},
  year      = {2023}
}"""
