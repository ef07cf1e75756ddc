"""Trajectory self-evaluation: `<think> <search> <search_results> <answer>`, one search in a step.

The paper (figure 2) fixes the tags but not what stands in the results: `Doc` lines are written;
prose is read too, as one passage.
"""

from .base import prompt_file
from .passages import DOC_LINE, DocLines
from .tagged import MARKS, Tagged
from .turns import Grammar


class SelfEval(DocLines, Tagged):
    system = prompt_file("self_eval")
    frame = ("\n<search_results>", "</search_results>\n")
    grammar = Grammar("search", "search_results")
    forbidden = DOC_LINE
    marks = MARKS | {"search_results": 4.0}
