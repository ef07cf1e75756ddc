"""Keeping text from outside from steering a model: what its tokenizer and its chat template give a
meaning to.

Tokenizers differ in how they read a text before they make tokens of it. To some a fullwidth `<` is
a `<`, capitals are small letters, or `▁` is a blank; those that no fence can serve are refused.
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
_BLANK, _CONTENT = "\u2581", "⟪content⟫"
_ENTITIES = "&#0123456789;&lt;&amp;"
_SIGNS = ("", " ", "  ", "\n", "\n\n", *string.digits, *string.punctuation)
"""What dialects are written with besides letters."""
# tokenizers may read these as nothing, or all as one unknown token
_RARE = tuple("\x01\u00ad\u034f\u200b\ufeff\ue000\U0001f600")


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The tokens that steer a model, so that text from outside must never become one: all special
    tokens, named or only added, and added tokens that look like markup, such as `<tool_call>`.
    """
    tokens = list(tokenizer.all_special_tokens)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special or _MARKER.fullmatch(token.content):
            tokens.append(token.content)
    return tuple(dict.fromkeys(tokens))


def guarded(fence: Fence, tokenizer: Any) -> Fence:
    """`fence` for the model of this tokenizer: it also forbids the control tokens, what the chat
    template writes around messages, and whatever the tokenizer reads as something forbidden.
    """
    marks, _ = _marks_and_words(tokenizer)
    tokens = [*control_tokens(tokenizer), *marks]
    # some read a byte's piece that is written out in a text as this byte
    if tokenizer.convert_tokens_to_ids("<0x3C>") in _ids(tokenizer, "<0x3C>"):
        tokens.append("<0x")
    return replace(fence.with_tokens(fenceable(tokens)), fold=_folding(tokenizer))


def check_reader(tokenizer: Any, dialect: Dialect) -> None:
    """Raise `TemplateError` for a tokenizer or chat template with which no fence can hold: to it a
    line break is a blank, a bracket something else, or a character nothing; or it writes roles as
    bare words.
    """
    fold: Callable[[str], str] = _folding(tokenizer) or str
    response = dialect.render_observation([Evidence("a", "a", "E1")] * 2)
    texts = [*(f"a{sign}a" for sign in _SIGNS), response]
    # each text that is read as another one, with the other one
    mistaken = [(text, fold(text)) for text in texts if not _keeps(fold, text)]
    by_tokens: dict[tuple[int, ...], str] = {}
    for sign in (*_SIGNS, *_RARE):
        text = f"a{sign}a"
        earlier = by_tokens.setdefault(tuple(_ids(tokenizer, text)), sign)
        # the same tokens, though the normalizer tells them apart; rare characters may all be one
        # unknown token
        if earlier not in _RARE and fold(text) != fold(f"a{earlier}a"):
            mistaken.append((text, f"a{earlier}a"))
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
    return repr(getattr(tokenizer, "name_or_path", "") or "this model")


def _unfit(tokenizer: Any, fault: str) -> TemplateError:
    return TemplateError(f"the tokenizer of {name_of(tokenizer)} {fault}; take another tokenizer")


@dataclass(frozen=True)
class Folding:
    """How a tokenizer reads a whole text: what its normalizer makes of it, with a blank where it
    knows none.
    """

    normalizer: Any
    blank: str = " "

    def __call__(self, text: str) -> str:
        folded = well_formed(text)
        if self.normalizer is not None:
            folded = self.normalizer.normalize_str(folded)
        return folded.replace(self.blank, " ")

    def origins(self, text: str) -> list[int]:
        """For each character read, where in `text` it comes from."""
        if self.normalizer is None:
            return list(range(len(text)))
        from tokenizers import PreTokenizedString, Regex
        from tokenizers.pre_tokenizers import Split

        characters = PreTokenizedString(well_formed(text))
        characters.normalize(self.normalizer.normalize)
        Split(Regex("(?m:.)"), "isolated").pre_tokenize(characters)
        return [start for _, (start, _), _ in characters.get_splits("original", "char")]


def _folding(tokenizer: Any) -> Folding | None:
    """How this one reads texts, if not as they are; `TemplateError` where nothing could be kept out
    of its text.
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
    blank = _BLANK if alike(_BLANK, " ") else " "
    fold = Folding(backend.normalizer, blank)
    if not _keeps(fold, _ENTITIES):
        raise _unfit(
            tokenizer,
            f"reads {_ENTITIES!r} as {fold(_ENTITIES)!r}: nothing can be written so that it is not "
            "read as markup",
        )
    reads_as_it_is = fold.normalizer is None and fold.blank == " "
    return None if reads_as_it_is else fold


def _keeps(fold: Callable[[str], str], text: str) -> bool:
    """Whether this text is read as it is, but for capitals."""
    return fold(f">{text}<").casefold().endswith(f">{text}<".casefold())


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _marks_and_words(tokenizer: Any) -> tuple[list[str], list[str]]:
    """What a chat template writes around messages: markers and phrases such as `USER:`; words alone
    on their lines.
    """
    tokens = [token for token in control_tokens(tokenizer) if token.strip()]
    # the longest first: a pattern takes the first that fits, and one token may begin like another
    tokens.sort(key=len, reverse=True)
    separator = re.compile("|".join([_MARKER.pattern, *map(re.escape, tokens)]))
    lines: list[str] = []
    for text in _around(tokenizer):
        lines += text.splitlines()
    marks: list[str] = []
    words: list[str] = []
    for line in lines:
        marks += _MARKER.findall(line)
        pieces = [piece.strip() for piece in separator.split(line)]
        for piece in pieces:
            # single letters and signs stand in any text; a word could be forbidden only where it
            # stands alone
            if piece.isalnum():
                if len(pieces) == 1:
                    words.append(piece)
            elif len(piece) > 1:
                marks.append(piece)
    return marks, words


def _around(tokenizer: Any) -> list[str]:
    if not getattr(tokenizer, "chat_template", None):
        return []
    # the longest conversation that the template takes: some refuse roles, or the same one twice
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
        except Exception:
            # a template raises what it likes; one that refuses even a question is refused elsewhere
            continue
        return text.split(_CONTENT)
    return []
