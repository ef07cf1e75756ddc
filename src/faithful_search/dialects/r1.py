"""Thought and answer without a search: what a policy writes that is trained by its answers alone
(DeepSeek-R1; "R1-base" in the tables of Search-R1 and VERITAS).

The prompt tells of no tool. A query that is written all the same gets a note that there is none.
"""

import re

from .base import prompt_file
from .passages import DOC_LINE, DocLines
from .tagged import MARKS, Tagged
from .turns import Grammar

_ASKED = r"\AThink about the question [^\n]*\nQuestion:[ \t]*"


class R1(DocLines, Tagged):
    needs_tools = False
    user_prompt = prompt_file("r1") + "\n"
    question_pattern = re.compile(rf"{_ASKED}(.*)", re.DOTALL)
    bare_prompt = re.compile(rf"{_ASKED}([^\n]*)")
    frame = ("\n\n<note>", "</note>\n\n")
    grammar = Grammar("search", "note")
    forbidden = DOC_LINE
    marks = MARKS | {"note": 8.0, "search": 0.0}
