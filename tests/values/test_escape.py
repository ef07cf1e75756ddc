"""Text from outside in each medium: it is shown as it is, and is never markup or another line."""

import ast
import unicodedata

import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

from faithful_search.escape import (
    Written,
    as_block,
    as_code,
    as_line,
    as_literal,
    as_markdown,
    finalizer,
    printable,
)

MARKUP = [
    "# heading", "a\n# heading", "[x](http://e.org)", "![x](http://e.org/p.png)", "<b>x</b>", "<!-- x",
    "`x`", "```\nx\n```", "~~~\nx", "a | b", "a\n|---|\n| b |", "http://e.org/x", "<http://e.org>",
    "www.e.org", "_x_", "__x__", "*x*", "~~x~~", "- x", "+ x", "1. x", "12) x", "> x", "=", "&lt;b&gt;",
    "$$x$$", "[^1]: x", "\\[x](y)", "a\r\nb", "![", "a_b", "x\u2028# y",
]  # fmt: skip
CONTROLS = ["\x1b[2J", "\x9b31m", "\x07", "\r", "\u202e", "\u2066", "\u200f", "\u061c", "\udc80",
            "\U000e0041", "\x00", "\u2029"]  # fmt: skip


def tokens(text: str) -> list[str]:
    """The kinds of a Markdown text's blocks and of what stands in them."""
    parsed = MarkdownIt("commonmark", {"linkify": False}).enable("table").enable("strikethrough")
    kinds: list[str] = []
    for token in parsed.parse(text):
        kinds.append(token.type)
        kinds += [child.type for child in token.children or () if child.type != "text_special"]
    return kinds


def plain(text: str) -> str:
    """What a Markdown line shows."""
    inline = next(token for token in MarkdownIt().parse(text) if token.type == "inline")
    return "".join(child.content for child in inline.children or ())


@pytest.mark.parametrize("text", MARKUP)
@pytest.mark.parametrize("frame", ["{}", "- {}", "# {}", "a {} b", "| a |\n|---|\n| {} |"])
@pytest.mark.parametrize("escape", [as_markdown, as_code])
def test_markdown_of_strangers_is_no_markup(escape, frame: str, text: str) -> None:
    kinds = [kind for kind in tokens(frame.format(escape(text))) if kind != "text"]
    assert kinds == [kind for kind in tokens(frame.format(escape("x"))) if kind != "text"]


@pytest.mark.parametrize("text", MARKUP)
def test_markdown_shows_the_text_as_it_is(text: str) -> None:
    assert plain(as_markdown(f"a {text}")) == printable(" ".join(f"a {text}".split()))


@given(st.text(alphabet="`~\n ab|", min_size=1))
def test_a_block_of_code_has_one_end(text: str) -> None:
    blocks = MarkdownIt().parse(f"{as_block(text)}\n\nbehind")
    assert [block.type for block in blocks][:2] == ["fence", "paragraph_open"]
    assert blocks[0].content.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("escape", [printable, as_line, as_markdown, as_code, as_block, as_literal])
def test_nothing_is_obeyed_by_a_terminal(escape, control: str) -> None:
    shown = escape(f"a{control}b")
    assert control not in shown
    shown.encode()


@given(st.text())
def test_a_line_is_one_line(text: str) -> None:
    shown = as_line(text)
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in shown)


def test_a_line_tells_names_apart_that_look_alike() -> None:
    assert as_line("search_r1\u200b") != as_line("search_r1")
    assert as_line("👩\u200d🔬 Zoë") == "👩\u200d🔬 Zoë"


@given(st.text(st.characters(exclude_categories=("Cs", "Cf", "Zl", "Zp"))))
def test_a_string_of_python_is_the_text(text: str) -> None:
    assert ast.literal_eval(as_literal(text)) == text


@pytest.mark.parametrize("name", ["card.md.j2", "audit.txt.j2", "snippet.py.j2"])
def test_templates_escape_unless_told_otherwise(name: str) -> None:
    shown = finalizer(name)("a\n# [b](c)")
    assert "\n" not in shown
    assert finalizer(name)(Written("a\n# b")) == "a\n# b"


def test_a_template_of_another_medium_is_refused() -> None:
    with pytest.raises(KeyError):
        finalizer("page.html")
