"""Real trajectories beside the checkout."""

from functools import cache
from itertools import islice

import pytest
from paths import SHARED

from faithful_search.dialects import parse
from faithful_search.json_lines import read_rows

REAL = SHARED / "data" / "trajectories"
R1 = ("r1_searcher_2wiki_qwen", "r1_searcher_hotpotqa_qwen", "r1_searcher_hotpotqa_llama")
real = pytest.mark.skipif(
    not REAL.exists(), reason="the real trajectories are not beside this checkout"
)


@cache
def rows(name: str) -> tuple[dict[str, object], ...]:
    return tuple(read_rows(REAL / f"{name}.jsonl.gz"))


@cache
def samples() -> list[str]:
    """Short real texts of each file."""
    r1 = [row["gen_text_store"] for name in R1 for row in rows(name)]
    texts = [row["solution"] for row in rows("search_r1_ppo_3b")]
    chats = [parse(row["messages"], "web_dancer").text for row in rows("webdancer")[:40]]
    return [
        text for group in (r1, texts, chats) for text in islice(sorted(group, key=len), 0, 60, 8)
    ]
