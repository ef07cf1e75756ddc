"""How a tokenizer reads text before it makes tokens of it, and which tokenizers a fence cannot serve."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from ..dialects.base import Dialect
from ..errors import TemplateError
from ..text import well_formed
from ..trajectory import Evidence

_BLANK = "\u2581"
_ENTITIES = "&#0123456789;&lt;&amp;"
_SIGNS = ("", " ", "  ", "\n", "\n\n", *string.digits, *string.punctuation)
"""What dialects are written with besides letters."""
# tokenizers may read these as nothing, or all as one unknown token
_RARE = tuple("\x01\u00ad\u034f\u200b\ufeff\ue000\U0001f600")


class Folding:
    """How a tokenizer reads a whole text: what its normalizer makes of it, with a blank where it knows none."""

    def __init__(self, normalizer: Any, blank: str = " ") -> None:
        self.normalizer, self.blank = normalizer, blank

    def __call__(self, text: str) -> str:
        read = well_formed(text)
        if self.normalizer is not None:
            read = self.normalizer.normalize_str(read)
        return read.replace(self.blank, " ")

    def origins(self, text: str) -> list[int]:
        """For each character read, where in `text` it comes from."""
        if self.normalizer is None:
            return list(range(len(text)))
        from tokenizers import PreTokenizedString, Regex
        from tokenizers.pre_tokenizers import Split

        read = PreTokenizedString(well_formed(text))
        read.normalize(self.normalizer.normalize)
        Split(Regex("(?m:.)"), "isolated").pre_tokenize(read)
        return [start for _, (start, _), _ in read.get_splits("original", "char")]


def folding(tokenizer: Any) -> Folding | None:
    """For a fence: there are tokenizers to which a fullwidth `<` is a `<`, capitals are small letters, or `▁` a blank.

    Raises `TemplateError` for one that reads entities as something else, and for one that does not say how it reads,
    and does not read characters as they are: nothing could be kept out of their text.
    """

    def alike(sign: str, other: str) -> bool:
        return _ids(tokenizer, f"a{sign}a") == _ids(tokenizer, f"a{other}a")

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        if any(alike(*signs) for signs in (_BLANK + " ", "\uff1c<", "Aa")):
            raise TemplateError(
                f"the tokenizer of {name_of(tokenizer)} reads characters as others and does not say which: retrieved "
                "text could imitate markup; take its fast form or another tokenizer"
            )
        return None
    blank = _BLANK if alike(_BLANK, " ") else " "
    if backend.normalizer is None and blank == " ":
        return None
    fold = Folding(backend.normalizer, blank)
    if not _keeps(fold, _ENTITIES):
        raise TemplateError(
            f"the tokenizer of {name_of(tokenizer)} reads {_ENTITIES!r} as {fold(_ENTITIES)!r}: nothing can be written "
            "so that it is not read as markup; take another tokenizer"
        )
    return fold


def require_lines(tokenizer: Any, dialect: Dialect) -> None:
    """Raises `TemplateError` for a tokenizer that does not tell apart what a dialect is written with.

    To such a one a line break is a blank, a bracket something else, or a character nothing.
    """
    fold: Callable[[str], str] = folding(tokenizer) or str
    shown = dialect.render_observation([Evidence("a", "a", "E1")] * 2)
    texts = (*(f"a{sign}a" for sign in _SIGNS), shown)
    mistaken = [(text, fold(text)) for text in texts if not _keeps(fold, text)]
    known: dict[tuple[int, ...], str] = {}
    for sign in (*_SIGNS, *_RARE):
        text = f"a{sign}a"
        other = known.setdefault(tuple(_ids(tokenizer, text)), sign)
        # the same tokens, though the normalizer tells them apart; rare characters may all be one unknown token
        if other not in _RARE and fold(text) != fold(f"a{other}a"):
            mistaken.append((text, f"a{other}a"))
    if mistaken:
        text, read = mistaken[0]
        raise TemplateError(
            f"the tokenizer of {name_of(tokenizer)} reads {text!r} as {read!r}: to it a dialect's lines and tags are "
            "not what they are, and retrieved text could imitate them; take another tokenizer"
        )


def pieces_of_bytes(tokenizer: Any) -> list[str]:
    """How pieces begin that stand for single bytes, if such a piece written out in a text is read as its byte."""
    return ["<0x"] if tokenizer.convert_tokens_to_ids("<0x3C>") in _ids(tokenizer, "<0x3C>") else []


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _keeps(fold: Callable[[str], str], text: str) -> bool:
    """Whether this text is read as it is, but for capitals."""
    return fold(f">{text}<").casefold().endswith(f">{text}<".casefold())


def name_of(tokenizer: Any) -> str:
    """A tokenizer as messages name it."""
    return repr(getattr(tokenizer, "name_or_path", "") or "this model")
