"""Real trajectories beside the checkout, whole and mutated."""

from __future__ import annotations

from functools import cache
from itertools import islice

import pytest
from hypothesis import strategies as st
from paths import SHARED

from faithful_search.dialects import parse
from faithful_search.tasks import read_rows

REAL = SHARED / "data" / "trajectories"
R1 = ("r1_searcher_2wiki_qwen", "r1_searcher_hotpotqa_qwen", "r1_searcher_hotpotqa_llama")
real = pytest.mark.skipif(not REAL.exists(), reason="the real trajectories are not beside this checkout")
PIECES = [
    "<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<result>", "</result>", "<search_results>",
    "</search_results>", "<|begin_of_query|>", "<|end_of_query|>", "<|begin_of_documents|>", "<|end_of_documents|>",
    "<helpful>yes</helpful>", "<ref>E1</ref>", "<verification>", "</verification>", "<|im_start|>assistant\n",
    "<|im_start|>user\n", "<|im_end|>", "\nuser\n", "\nassistant\n", "Doc 1(Title: ",
    '{"name": "search", "arguments": {',
    "\\boxed{", "}", "<", "\n", "...", "(1)Title: ", "Answer the given question.", "\ud800",
]  # fmt: skip


@cache
def rows(name: str) -> tuple[dict[str, object], ...]:
    return tuple(read_rows(REAL / f"{name}.jsonl.gz"))


@cache
def samples() -> tuple[str, ...]:
    """Short real texts of each file."""
    r1 = [row["gen_text_store"] for name in R1 for row in rows(name)]
    texts = [row["solution"] for row in rows("search_r1_ppo_3b")]
    chats = [parse(row["messages"], "web_dancer").text for row in rows("webdancer")[:40]]
    return tuple(text for group in (r1, texts, chats) for text in islice(sorted(group, key=len), 0, 60, 8))


def mutated() -> st.SearchStrategy[str]:
    """Real texts, cut, spliced, and with tags put in, doubled and taken out."""

    @st.composite
    def one(draw: st.DrawFn) -> str:
        text = draw(st.sampled_from(samples()))
        for _ in range(draw(st.integers(1, 4))):
            at, piece = draw(st.integers(0, len(text))), draw(st.sampled_from(PIECES))
            kind = draw(st.sampled_from(["cut", "head", "splice", "insert", "double", "remove"]))
            if kind == "cut":
                text = text[:at]
            elif kind == "head":
                text = text[at:]
            elif kind == "splice":
                other = draw(st.sampled_from(samples()))
                text = text[:at] + other[draw(st.integers(0, len(other))) :]
            elif kind == "insert":
                text = text[:at] + piece + text[at:]
            else:
                text = text.replace(piece, piece * 2 if kind == "double" else "", draw(st.integers(1, 3)))
        return text

    return one()
