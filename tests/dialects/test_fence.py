"""The fence: reversible for every string, and nothing forbidden is left."""

import re

import pytest
from dialect_texts import EVERY, PIECES
from hypothesis import given, settings, strategies as st

from faithful_search.dialects import load
from faithful_search.dialects.fence import Fence, tags, unescape
from faithful_search.errors import ConfigError

BITS = [
    ">", "/", "think", "answer", "</ Think >", "<\n/ANSWER\t>", "<|", "|>", "[E1]", "[E12]", "E", "1", ";", "amp;",
    "lt;", "&lt;amp;#60;", "&amp;lt;", "&#", "60", "#91;", "</s>", "<s>", "</", "s>", "aba", "ab", "b", "Doc 2(Title: ",
    "&#1114112;", "&#9999999;", "tool_response",
]  # fmt: skip
FENCE = Fence(tags("think", "answer", "tool_response") + r"|<\||\[E[0-9]+\]", ("</s>", "aba", "[INST]"))
MODELS = ("<|im_end|>", "</s>", "<unk>", "[PAD]", "<\uff5cUser\uff5c>")
FENCES = {"made": FENCE} | {name: load(name).fence.with_tokens(MODELS) for name in EVERY}
STRINGS = st.lists(st.sampled_from(BITS) | st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)


@pytest.mark.parametrize("name", FENCES)
@settings(deadline=None)
@given(text=STRINGS)
def test_unescape_undoes_escape_and_nothing_forbidden_is_left(name: str, text: str) -> None:
    fence = FENCES[name]
    once = fence.escape(text)
    assert unescape(once) == text and unescape(fence.escape(once)) == once
    assert re.search("|".join([fence.pattern, *map(re.escape, fence.tokens)]), once) is None


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<answer>no</ Answer >", "&lt;answer>no&lt;/ Answer >"),
        ("see [E12]", "see &#91;E12]"),
        ("&lt;", "&amp;lt;"),
        ("&amp;#60;", "&amp;amp;#60;"),
        ("&<think>", "&&lt;think>"),
        ("ababa", "&#97;b&#97;ba"),
        ("<|im_start|>", "&lt;|im_start|>"),
        # ordinary text stays as it is
        *((text, text) for text in ("AT&T", "a < b && c > d", "R&D; x", "[1] [E] E12", "&nbsp; &copy;", "")),
        *((text, text) for text in ("<thinking>", "<b>bold</b>")),
    ],
)
def test_what_is_written(text: str, escaped: str) -> None:
    assert FENCE.escape(text) == escaped


def test_unescape_leaves_what_escape_never_writes() -> None:
    assert unescape("AT&T &amp; &copy; &#9999999; &#; &#12345678;") == "AT&T &amp; &copy; &#9999999; &#; &#12345678;"


def test_with_tokens_adds_once_and_keeps_the_pattern() -> None:
    fence = Fence("x").with_tokens(["</s>", "</s>"]).with_tokens(["</s>", "[INST]"])
    assert fence == Fence("x", ("</s>", "[INST]"))
    assert fence.escape("x</s>[INST]") == "&#120;&lt;/s>&#91;INST]"


@pytest.mark.parametrize("token", ["", "&", "a;", "&lt", "lt", "t", "amp", "60", "#6", "#"])
def test_a_token_that_an_entity_could_contain_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="cannot be fenced"):
        Fence("x", (token,))
