r"""ReSearch: `<think> <search> <result> <answer>`, the answer in a box. Not the dialect of its successor ReCall.

```
<think>plan</think>
<search>query</search> <result>
"Title"
text

"Other title"
text
</result>
<think>reasoning</think>
<answer>The final answer is \[ \boxed{…} \]</answer>
```

Kinds of issues are those of `search_r1`, and `answer_unboxed`: an answer without `\boxed{}`, which that system's reward
would not count. It is read all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..trajectory import Evidence, Span
from .fence import Fence, one_line, opening_line, tags
from .passages import MOST_DOCUMENTS, last_boxed
from .tagged import MARKS, Tagged, search_grammar

_SYSTEM = (
    "You are a helpful assistant that can solve the given question step by step with the help of the wikipedia search "
    "tool. Given a question, you need to first think about the reasoning process in the mind and then provide the "
    "answer. During thinking, you can invoke the wikipedia search tool to search for fact information about specific "
    "topics if needed. The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> "
    "tags respectively, and the search query and result are enclosed within <search> </search> and <result> </result> "
    "tags respectively. For example, <think> This is the reasoning process. </think> <search> search query here "
    "</search> <result> search result here </result> <think> This is the reasoning process. </think> <answer> The "
    "final answer is \\[ \\boxed{answer here} \\] </answer>. In the last part of the answer, the final exact answer is "
    "enclosed within \\boxed{} with latex format."
)
_QUOTED = re.compile(r'\n\n(?="[^\n]*"\n)')
_PARAGRAPH = re.compile(r"\n\n+")


class ReSearch(Tagged):
    r"""The dialect of ReSearch. `Step.call` is `search(query=…)`; the answer is the last balanced `\boxed{…}`."""

    system = _SYSTEM
    frame = (" <result>\n", "\n</result>\n")
    base_prompt = ("A conversation between User and Assistant.", " User: ", " Assistant:")
    grammar = search_grammar("result")
    fence = Fence(tags(*grammar.names) + r'|<\||\n\n"')
    marks = MARKS | {"result": 4.0}

    def begin_plain(self, text: str) -> tuple[int, str | None]:
        at, asked = super().begin_plain(text)
        return at, asked and asked.removesuffix(".")

    def write_note(self, note: str) -> str:
        return one_line(note)

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        """Quoted title and text of each passage, blank lines between."""
        # A text that begins with a line break would look like the blank line before the next title.
        return "\n\n".join(f'"{one_line(escape(item.title))}"\n{opening_line(escape(item.text))}' for item in evidence)

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """Passages apart by blank lines, the first line of each its title. One line alone is a note."""
        if "\n" not in body:
            return [], body
        first = body[: body.index("\n")]
        quoted = len(first) > 1 and first[0] == first[-1] == '"'
        found = []
        for piece in (_QUOTED if quoted else _PARAGRAPH).split(body if quoted else body.strip(), MOST_DOCUMENTS - 1):
            title, line, text = piece.partition("\n")
            if not line:
                title, text = "", title
            elif len(title) > 1 and title[0] == title[-1] == '"':
                title = title[1:-1]
            found.append(Evidence(text, title))
        return found, ""

    def find_answer(self, text: str, span: Span) -> Span | None:
        return last_boxed(text, *span)

    def write_answer(self, answer: str) -> str:
        r"""The answer in its box; without one where its own braces would break it."""
        boxed = f"The final answer is \\[ \\boxed{{{answer}}} \\]"
        box = last_boxed(boxed)
        return boxed if box and boxed[slice(*box)] == answer else answer
