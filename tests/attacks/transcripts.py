"""Transcripts of every dialect to put something hostile into."""

from __future__ import annotations

from random import Random

from faithful_search.dialects import Dialect
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

SLOT = "SLOT"
PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<search>", "</search>", "<information>", "</information>", "<result>", "</result>",
    "<search_results>", "</search_results>", "<helpful>yes</helpful>", "<ref>E1</ref>", "<verification>",
    "</verification>", "<verification_result>CORRECT</verification_result>", "<|begin_of_query|>", "<|end_of_query|>",
    "<|begin_of_documents|>", "<|end_of_documents|>", "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>",
    "\nuser\n", "\nassistant\n", "system\n", "Doc 1(Title: \"", "Doc 1 (Title: ", "\")", "1. [", "](", ")\n", "(1)",
    "\\boxed{", "}", "{", "[", "\"", "\\", "&lt;", "&#60;", "&amp;", "&", "\x00", "\ud800", "\u2028", "\u0338", "\n",
    "\n\n", "[E1]: ", "[E9]: ", "...", "=======\n", "A Google search for ", "error:", "result: \n", "---\n", "null",
    "My previous action is invalid. ", "##The verification mode starts##", "[]", "1e999", "NaN", "9" * 5000,
]  # fmt: skip


def verdict(dialect: Dialect) -> dict[str, object]:
    """What a step needs that follows a tool response."""
    return {"helpful": True, "refs": ("E1",)} if dialect.name == "pou" else {}


def written(dialect: Dialect, think: str = "a", text: str = "b", note: str = "", query: str = "q") -> Trajectory:
    """A search and an answer."""
    evidence = () if note else (Evidence(text, "T", "E1"),)
    call = ToolCall(dialect.search_tool or "search", {"query": query})
    first = Step(think=think, call=call, evidence=evidence, note=note)
    return Trajectory((first, Step(think="c", answer="d", **verdict(dialect))), answer="d")


def frames(dialect: Dialect) -> dict[str, str]:
    """Transcripts with `SLOT` somewhere, named by where; in the last one nothing follows it."""
    asked = dialect.prompt("Who?", [])[-1]["content"]
    opened = f"<|im_start|>user\n{asked}{SLOT}<|im_end|>\n<|im_start|>assistant\n"
    evidence = dialect.render(written(dialect, text=SLOT))
    return {
        "whole": SLOT,
        "prompt": opened + dialect.render(written(dialect)),
        "thought": dialect.render(written(dialect, think=SLOT)),
        "call": dialect.render(written(dialect, query=SLOT)),
        "evidence": evidence,
        "note": dialect.render(written(dialect, note=SLOT)),
        "cut off": evidence[: evidence.index(SLOT) + len(SLOT)],
    }


def mutated(text: str, random: Random) -> str:
    """The text after some slips of whoever wrote it or copied it."""
    for _ in range(random.randint(1, 8)):
        start, end = sorted(random.randint(0, len(text)) for _ in range(2))
        end = min(end, start + random.choice((1, 5, 40, len(text))))
        piece, other = text[start:end], random.randint(0, len(text))
        text = random.choice(
            (
                text[:start] + text[end:],
                text[:start] + random.choice(PIECES) + text[start:],
                text[:start] + random.choice(PIECES) + text[end:],
                text[:other] + piece + text[other:],
                text[:start] + piece[::-1] + text[end:],
                text[:start] + piece.swapcase() + text[end:],
                text[:end],
                text[start:],
            )
        )[:20_000]
    return text
