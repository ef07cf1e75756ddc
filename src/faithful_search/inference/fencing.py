"""Fences for a tokenizer and its chat template: text from outside must not steer the model.

Tokenizers differ in how they read a text before they make tokens of it. To some a fullwidth `<` is
a `<`, capitals are small letters, or `▁` is a blank. Those for which no fence can hold are refused.
"""

import re
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..dialects.base import Dialect
from ..dialects.fence import Fence, fenceable
from ..errors import TemplateError
from ..text import well_formed
from ..trajectory import Evidence

_MARKER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")  # such as <|im_start|> or [INST]
_BLANK = "\u2581"  # which some tokenizers take for a blank, and have in its place
_CONTENT = "⟪content⟫"  # in the place of a message's text when a template is read
_ENTITIES = "&#0123456789;&lt;&amp;"  # what escaped text is written with
# What dialects are written with besides letters
_SIGNS = ("", " ", "  ", "\n", "\n\n", *string.digits, *string.punctuation)
# Characters that tokenizers may read as nothing, or all as one unknown token
_RARE = tuple("\x01\u00ad\u034f\u200b\ufeff\ue000\U0001f600")


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The tokens that steer a model, so that text from outside must never become one: all special
    tokens, named or only added, and added tokens that look like markup, such as `<tool_call>`.
    """
    steering = []
    for token in tokenizer.added_tokens_decoder.values():
        if token.special or _MARKER.fullmatch(token.content):
            steering.append(token.content)
    return tuple(dict.fromkeys([*tokenizer.all_special_tokens, *steering]))


def guarded(fence: Fence, tokenizer: Any) -> Fence:
    """`fence` for the model of this tokenizer: it also forbids the control tokens, what the chat
    template writes around messages, and whatever the tokenizer reads as something forbidden.
    """
    marks, _ = _marks_and_words(tokenizer)
    tokens = [*control_tokens(tokenizer), *marks]
    # To some tokenizers the text "<0x3C>" is the byte with that number, which is "<".
    if tokenizer.convert_tokens_to_ids("<0x3C>") in _ids(tokenizer, "<0x3C>"):
        tokens.append("<0x")
    return replace(fence.with_tokens(fenceable(tokens)), fold=_folding(tokenizer))


def check_reader(tokenizer: Any, dialect: Dialect) -> None:
    """Raise `TemplateError` for a tokenizer or chat template with which no fence can hold.

    To such a tokenizer a line break is a blank, a bracket something else, or a character nothing;
    such a template writes roles as bare words.
    """
    fold: Callable[[str], str] = _folding(tokenizer) or str
    # Texts that must be read as they are, each with what they are read as
    mistaken: list[tuple[str, str]] = []
    response = dialect.render_observation([Evidence("a", "a", "E1")] * 2)
    for text in [*(f"a{sign}a" for sign in _SIGNS), response]:
        if not _keeps(fold, text):
            mistaken.append((text, fold(text)))
    # Signs that become the same tokens, although the normalizer keeps them apart. Rare characters
    # may: they may all be one unknown token.
    first_with_tokens: dict[tuple[int, ...], str] = {}
    for sign in (*_SIGNS, *_RARE):
        text = f"a{sign}a"
        first = first_with_tokens.setdefault(tuple(_ids(tokenizer, text)), sign)
        if first not in _RARE and fold(text) != fold(f"a{first}a"):
            mistaken.append((text, f"a{first}a"))
    if mistaken:
        text, taken_for = mistaken[0]
        raise _unfit(
            tokenizer,
            f"reads {text!r} as {taken_for!r}: retrieved text could imitate a dialect's lines and "
            "tags",
        )
    _, words = _marks_and_words(tokenizer)
    if words:
        raise TemplateError(
            f"the chat template of {name_of(tokenizer)} writes roles as bare words "
            f"({', '.join(sorted(set(words)))}), which any retrieved text may contain; take a "
            "template that marks them with tokens or signs"
        )


def name_of(tokenizer: Any) -> str:
    """A tokenizer's name as messages show it."""
    return repr(getattr(tokenizer, "name_or_path", "") or "this model")


def _unfit(tokenizer: Any, fault: str) -> TemplateError:
    return TemplateError(f"the tokenizer of {name_of(tokenizer)} {fault}; take another tokenizer")


@dataclass(frozen=True)
class Folding:
    """How a tokenizer reads a text before it makes tokens of it.

    Attributes:
        normalizer: the tokenizer's own; `None` where it has none.
        blank: the character that it takes for a blank besides the blank itself.
    """

    normalizer: Any
    blank: str = " "

    def __call__(self, text: str) -> str:
        folded = well_formed(text)
        if self.normalizer is not None:
            folded = self.normalizer.normalize_str(folded)
        return folded.replace(self.blank, " ")

    def origins(self, text: str) -> list[int]:
        """For each character that is read, where in `text` it comes from."""
        if self.normalizer is None:
            return list(range(len(text)))
        from tokenizers import PreTokenizedString, Regex
        from tokenizers.pre_tokenizers import Split

        characters = PreTokenizedString(well_formed(text))
        characters.normalize(self.normalizer.normalize)
        # Into single characters, line breaks included
        Split(Regex("(?m:.)"), "isolated").pre_tokenize(characters)
        return [start for _, (start, _), _ in characters.get_splits("original", "char")]


def _folding(tokenizer: Any) -> Folding | None:
    """How a tokenizer reads texts; `None` where it reads them as they are.

    Raises `TemplateError` where nothing could be kept out of its text.
    """

    def alike(first: str, second: str) -> bool:
        return _ids(tokenizer, f"a{first}a") == _ids(tokenizer, f"a{second}a")

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        if any(alike(*signs) for signs in (_BLANK + " ", "\uff1c<", "Aa")):
            raise _unfit(
                tokenizer, "is not a fast one, reads characters as others, and does not say which"
            )
        return None
    fold = Folding(backend.normalizer, _BLANK if alike(_BLANK, " ") else " ")
    if not _keeps(fold, _ENTITIES):
        raise _unfit(
            tokenizer,
            f"reads {_ENTITIES!r} as {fold(_ENTITIES)!r}: nothing can be written so that it is not "
            "read as markup",
        )
    return None if fold.normalizer is None and fold.blank == " " else fold


def _keeps(fold: Callable[[str], str], text: str) -> bool:
    """Whether a text is read as it is, but for capitals. It is looked at between `>` and `<`, since
    some tokenizers put a blank at the beginning of a text.
    """
    return fold(f">{text}<").casefold().endswith(f">{text}<".casefold())


def _ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, without special ones around it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _marks_and_words(tokenizer: Any) -> tuple[list[str], list[str]]:
    """What a chat template writes around messages: marks, which are markers and phrases such as
    `USER:`, and words that stand alone on their lines.
    """
    visible = [token for token in control_tokens(tokenizer) if token.strip()]
    # The longest first: a pattern takes the first that fits, and one token may begin like another.
    visible.sort(key=len, reverse=True)
    marker = re.compile("|".join([_MARKER.pattern, *map(re.escape, visible)]))
    marks: list[str] = []
    words: list[str] = []
    for text in _around(tokenizer):
        for line in text.splitlines():
            marks += _MARKER.findall(line)
            pieces = [piece.strip() for piece in marker.split(line)]
            # Single letters and signs stand in any text, and words could be forbidden only where
            # they stand alone.
            marks += [piece for piece in pieces if len(piece) > 1 and not piece.isalnum()]
            if len(pieces) == 1 and pieces[0].isalnum():
                words.append(pieces[0])
    return marks, words


def _around(tokenizer: Any) -> list[str]:
    """What the chat template writes before, between and after messages; empty without a template.

    The messages are the longest conversation that the template takes: some refuse roles, or the
    same role twice.
    """
    if not getattr(tokenizer, "chat_template", None):
        return []
    for roles in (
        ("system", "user", "assistant", "tool", "user"),
        ("system", "user", "assistant", "user"),
        ("user", "assistant", "user"),
        ("user",),
    ):
        messages = [{"role": role, "content": _CONTENT} for role in roles]
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, tool_names=[]
            )
        except Exception:  # templates raise errors of any class
            continue
        return text.split(_CONTENT)
    return []  # `ChatFormat.of` refuses a template that takes not even a question
