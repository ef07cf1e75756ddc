"""Retrieved text is data: a `Fence` makes it harmless inside a dialect, reversibly.

The first character of everything forbidden becomes an entity: `&lt;` for `<`, else `&#NN;`. What already looks like
such an entity gets one more `amp;` behind its `&`, so that `unescape(escape(x)) == x` for every string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError

_ENTITY = "&(?:amp;)*+(?:lt|#[0-9]{1,7});"
_FENCED = re.compile("&((?:amp;)*+)(lt|#[0-9]{1,7});")
_UNSAFE = re.compile(r"|.*[&;].*|a?mp?|a|p|lt?|t|#?[0-9]*", re.DOTALL)


def tags(*names: str) -> str:
    """A pattern of these names' opening and closing tags, in any case and with blanks inside: also `</ Think >`.

    One that the text breaks off in is a tag too: what is written behind it, a line break and the next title, might
    complete it.

    Example:
        >>> Fence(tags("answer")).escape("<answer>no</ Answer >, a < b, AT&T, </answer")
        '&lt;answer>no&lt;/ Answer >, a < b, AT&T, &lt;/answer'
    """
    return rf"<(?i:\s*+/?\s*+(?:\Z|(?:{'|'.join(names)})\s*+(?:>|\Z)))"


def one_line(title: str) -> str:
    """A title without line breaks, reversibly for a fence."""
    return title.replace("\n", "&#10;").replace("\r", "&#13;")


@dataclass(frozen=True)
class Fence:
    """What must not occur in retrieved text: the regex `pattern` and the literal `tokens` (a tokenizer's special ones).

    A match of `pattern` must contain neither `&` nor `;`, must not lie within an entity's letters or digits, and must
    not use look-arounds: then escaping one match can never create another. Tokens are checked for this.
    `fold` says what a reader makes of a character (a tokenizer that reads the fullwidth `\uff1c` as `<`): nothing
    forbidden is left in what it makes of the text either.

    Raises:
        ConfigError: for a token that escaping could itself produce, such as `&`, `lt` or a bare number.

    Example:
        >>> fence = Fence(tags("answer")).with_tokens(["</s>"])
        >>> fence.unescape(fence.escape("</s> <answer> &lt;")) == "</s> <answer> &lt;"
        True
    """

    pattern: str
    tokens: tuple[str, ...] = ()
    fold: Callable[[str], str] | None = None
    _search: Any = field(init=False, repr=False, compare=False)
    _forbidden: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for token in self.tokens:
            if _UNSAFE.fullmatch(token):
                raise ConfigError(
                    f"the token {token!r} cannot be fenced: it could be part of the entity that would replace it"
                )
        forbidden = [self.pattern] if self.pattern else []
        literals = [re.escape(token) for token in sorted(self.tokens, key=len, reverse=True)]
        object.__setattr__(self, "_search", re.compile("|".join([*forbidden, *literals, _ENTITY])).search)
        object.__setattr__(self, "_forbidden", re.compile("|".join([*forbidden, *literals]) or r"(?!)").search)

    def escape(self, text: str) -> str:
        """`text` without anything forbidden; ordinary text comes back as it is."""
        escaped = self._escape(text)
        return escaped if self.fold is None else self._escape_folded(escaped, self.fold)

    def _escape(self, text: str) -> str:
        match = self._search(text)
        if match is None:
            return text
        parts: list[str] = []
        done = 0
        while match is not None:
            start = match.start()
            parts += (text[done:start], _entity(text[start]))
            done = start + 1
            match = self._search(text, done)  # from the next character on: matches may overlap
        parts.append(text[done:])
        return "".join(parts)

    def unescape(self, text: str) -> str:
        """The text that `escape` was given. Does not depend on what the fence forbids."""
        return unescape(text)

    def with_tokens(self, tokens: Iterable[str]) -> Fence:
        """This fence, forbidding these literal strings too."""
        return Fence(self.pattern, tuple(dict.fromkeys([*self.tokens, *tokens])), self.fold)

    def with_fold(self, fold: Callable[[str], str] | None) -> Fence:
        """This fence, for a reader that makes something else of some characters."""
        return Fence(self.pattern, self.tokens, fold)

    def _escape_folded(self, text: str, fold: Callable[[str], str]) -> str:
        made = [fold(character) for character in text]
        folded = "".join(made)
        if folded == text:
            return text
        origin = [place for place, characters in enumerate(made) for _ in characters]
        characters = list(text)
        match = self._forbidden(folded)
        while match is not None:
            place = origin[match.start()]
            characters[place] = _entity(text[place])
            match = self._forbidden(folded, match.start() + 1)
        return "".join(characters)


def unescape(text: str) -> str:
    """Undo any fence's `escape`; never raises."""
    return _FENCED.sub(_character, text) if "&" in text else text


def _entity(character: str) -> str:
    if character == "&":
        return "&amp;"
    return "&lt;" if character == "<" else f"&#{ord(character)};"


def _character(match: re.Match[str]) -> str:
    nested, name = match.groups()
    if nested:
        return f"&{nested[4:]}{name};"
    if name == "lt":
        return "<"
    number = int(name[1:])
    return chr(number) if number <= 0x10FFFF else match[0]
