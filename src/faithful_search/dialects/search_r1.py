"""Search-R1 (and DeSA, VERITAS): `<think> <search> <information> <answer>` in one running assistant text.

```
<think>plan</think>
<search>query</search>

<information>Doc 1(Title: "Title") text
Doc 2(Title: "Other") text
</information>

<think>reasoning</think>
<answer>…</answer>
```

Kinds of issues are those of `pou` without the verdict's, and

| kind | meaning |
|---|---|
| call_empty | an empty query |
| response_unasked | information before the agent said anything |
| response_forged | information where the agent did not search: it made that up, and it is no evidence |
| response_missing | the agent goes on after a query without any information |
| response_unclosed | common here: that system's environment cuts observations at 500 tokens, closing tag and all |
| after_answer | a turn that comes after an answer (the trajectory's answer is still the last of all) |
| elided | a line of dots where a transcript was shortened |
| another_episode | logs run into each other: a second prompt follows, and what is behind it is not read |
| turns_many | more turns than are read |

Some checkpoints write the information themselves. Behind a query that cannot be told from a tool's response.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..trajectory import Step
from .fence import Fence, tags
from .passages import DOC_LINE, DocLines
from .tagged import MARKS, Tagged, search_grammar

_INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_ASK = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you "
    "get new information. After reasoning, if you find you lack some knowledge, you can call a search engine "
    "by <search> query </search> and it will return the top searched results between <information> and "
    "</information>. You can search as many times as your want. If you find no further external knowledge "
    "needed, you can directly provide the answer inside <answer> and </answer>, without detailed "
    "illustrations. For example, <answer> Beijing </answer>. Question: {question}\n"
)
_SAID = r"My previous action is invalid\. [^\n]*(?:\n|\Z)"
_ASKED = re.compile(r"For\s+example,\s+<answer>\s*Beijing\s*</answer>\.\s+Question:[ \t]*")
_QUESTION_END = re.compile(r"\n\s*\n|\n?<(?:\||(?:think|search|information|answer)>)|\n(?:user|assistant)\n|\?\s*\n|\Z")


class SearchR1(DocLines, Tagged):
    """The dialect of Search-R1. `Step.call` is `search(query=…)`; no verdicts: `helpful` is `None`, `refs` empty.

    A step's answer is the last of its turn, the trajectory's the last of all: so that system's reward reads them.
    """

    ask = _ASK
    frame = ("\n\n<information>", "</information>\n\n")
    grammar = search_grammar("information")
    pause = re.compile(
        rf"<information>|\n{_SAID}|{_SAID}"  # a literal begins each: a search need look at few places
        r"|<\|im_start\|>(?:system\n[^<]*+<\|im_end\|>\n<\|im_start\|>)?user\nAnswer the given question\.(?P<over>)"
    )
    fence = Fence(tags(*grammar.names) + rf"|<\||{DOC_LINE}|My previous action is invalid\.")
    marks = MARKS | {"information": 4.0}

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One user message, a question mark behind the question. There is a single tool, which is not described."""
        asked = question.strip()
        return super().prompt(asked if asked.endswith("?") else asked + "?", tools)

    def asked_in(self, message: str) -> str:
        asked = _ASKED.search(message)
        return message[asked.end() :].strip() if asked else message

    def begin_plain(self, text: str) -> tuple[int, str | None]:
        """After the prompt without chat markup; its example must not be read as an answer.

        The question ends at its question mark at a line's end, at a blank line or where markup begins: so it may run
        over lines.
        """
        tag = self.grammar.tag.search(text)
        prompt = text.find("Answer the given question.", 0, tag.start() if tag else len(text))
        asked = _ASKED.search(text, prompt) if prompt >= 0 else None
        end = _QUESTION_END.search(text, asked.end()) if asked else None
        if asked is None or end is None:
            return 0, None
        stop = end.start() + 1 if end[0].startswith("?") else end.start()
        return stop, " ".join(text[asked.end() : stop].split())

    def on_invalid(self, step: Step) -> str | None:
        return _INVALID
