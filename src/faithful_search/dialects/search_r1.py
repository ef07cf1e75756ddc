"""Search-R1 (and DeSA, VERITAS): `<think> <search> <information> <answer>` in one running assistant
text.

Some checkpoints write the information themselves. Behind a query that cannot be told from a tool's
response. A step's answer is the last of its turn, the trajectory's the last of all: so that
system's reward reads them.
"""

import re
from collections.abc import Sequence
from typing import Any

from .base import prompt_file
from .passages import DOC_LINE, DocLines
from .tagged import MARKS, Tagged
from .turns import Grammar

_SAID = r"My previous action is invalid\. [^\n]*(?:\n|\Z)"
_ASKED = r"For\s+example,\s+<answer>\s*Beijing\s*</answer>\.\s+Question:[ \t]*"
_TAGS = "(?:think|search|information|answer)>"
_BLANKS = r"[^\S\n]*+"


class SearchR1(DocLines, Tagged):
    user_prompt = prompt_file("search_r1") + "\n"
    no_action_reply = (
        "\nMy previous action is invalid. If I want to search, I should put the query between "
        "<search> and </search>. "
        "If I want to give the final answer, I should put the answer between <answer> and "
        "</answer>. "
        "Let me try again.\n"
    )
    question_pattern = re.compile(rf"{_ASKED}(.*)", re.DOTALL)
    # Such a prompt stands before all tags, and its example must not be read as an answer. The
    # question ends at its question mark at a line's end, at a blank line or where markup begins: so
    # it may run over lines.
    bare_prompt = re.compile(
        rf"\A(?:[^<A]++|<(?!/?{_TAGS})|A(?!nswer the given question\.))*+Answer the given "
        rf"question\.(?>.*?{_ASKED})"
        rf"(.*?)(?=\n{_BLANKS}\n|\n?<(?:\||{_TAGS})|\n(?:user|assistant)\n|(?<=\?){_BLANKS}\n|\Z)",
        re.DOTALL,
    )
    frame = ("\n\n<information>", "</information>\n\n")
    grammar = Grammar("search", "information")
    agent_ends = re.compile(
        rf"<information>|\n{_SAID}|{_SAID}"  # a literal begins each: a search need look at few places
        r"|<\|im_start\|>(?:system\n[^<]*+<\|im_end\|>\n<\|im_start\|>)?user\nAnswer the given "
        r"question\.(?P<over>)"
    )
    forbidden = rf"{DOC_LINE}|My previous action is invalid\."
    marks = MARKS | {"information": 4.0}

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """With a question mark behind the question."""
        return super().prompt(question.strip().removesuffix("?") + "?", tools)
