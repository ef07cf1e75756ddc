"""ReCall: calls of any tool as JSON, several a turn, and the answer in `\\boxed{}` of a last turn
without calls.

The opening think tag belongs to its prompt and may be absent. A response repeats the call and then
has sections: what stands under `result:` or `output:` is evidence, passage by passage where these
begin with a title in quotes; what stands under `error:` is a note.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..trajectory import Evidence, Span
from .base import prompt_file
from .fence import one_line
from .passages import headed, last_boxed
from .tool_calls import BARE, MARKS, ToolCalls

_TITLE = re.compile(r'(?:\A|\n\n)"([^\n]*)"\n')
_SECTION = re.compile(r"^(result|output|error):[ ]?\n?", re.MULTILINE)


class ReCall(ToolCalls):
    system = prompt_file("recall")
    stop = ("</tool_call>", "\\]")
    grammar = BARE
    answer_opening = None
    parallel_calls = True
    may_open_in_prompt = True
    forbidden = r'\n"|(?:result|output|error):'
    marks = MARKS | {"answer": -3.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"In this environment you have access to a set of tools": 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"wikipedia_search"': 2.0,
        r'<tool_response>\s{0,9}(?:\{"name"[^\n]{0,500}\n)?(?:result|output|error):[ ]?\n': 4.0,
        r"\\boxed[ {]": 2.0,
    }

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        return json.dumps(list(tools), ensure_ascii=False, indent=2)

    def write_answer(self, answer: str) -> str:
        return f"The final answer is \\[ \\boxed{{{answer}}} \\]"

    def find_answer(self, text: str, span: Span) -> Span | None:
        """What the last box holds, up to its balancing brace; of `\\boxed x` the rest of the
        line.
        """
        if (box := last_boxed(text, *span)) is not None:
            return box
        at = text.rfind("\\boxed ", *span)
        if at < 0:
            return None
        start = at + len("\\boxed ")
        end = text.find("\n", start, span[1])
        return start, span[1] if end < 0 else end

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """The sections of a response; text before the first is the call that it repeats, alone it
        is evidence.
        """
        sections = headed(_SECTION.finditer(body), body)
        if not sections:
            bad = not body.strip() or body.startswith("Parse tool call failed")
            return ([], body) if bad else (_passages(body), "")
        evidence: list[Evidence] = []
        notes: list[str] = []
        for number, (head, part) in enumerate(sections, start=1):
            part = part.removesuffix("\n") if number < len(sections) else part
            if head[1] == "error":
                notes.append(part)
            elif part.strip():
                evidence += _passages(part)
        return evidence, "\n".join(notes)

    def write_note(self, note: str) -> str:
        return f"error: \n{note}"

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        passages = [f'"{one_line(passage.title)}"\n{passage.text}' for passage in evidence]
        return "result: \n" + "\n\n".join(passages)


def _passages(body: str) -> list[Evidence]:
    """Passages that begin with a title in quotes, or all as one without a title."""
    passages = headed(_TITLE.finditer(body), body)
    if not passages or body[: passages[0][0].start()].strip():
        return [Evidence(body)]
    return [Evidence(text, head[1]) for head, text in passages]
