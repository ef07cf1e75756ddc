"""Retrieved text is data: a `Fence` makes it harmless inside a dialect, reversibly.

The first character of everything forbidden becomes an entity: `&lt;` for `<`, else `&#NN;`. Text that already looks
like such an entity gets one more `amp;` behind its `&`, so that `unescape(escape(x)) == x` for every string.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ..errors import ConfigError

_ENTITY = "&(?:amp;)*+(?:lt|#[0-9]{1,7});"
_FENCED = re.compile("&((?:amp;)*+)(lt|#[0-9]{1,7});")
# Pieces of an entity: were one forbidden, it would stand in what escaping writes.
_UNSAFE = re.compile(r"|.*[&;].*|a?mp?|a|p|lt?|t|#?[0-9]*", re.DOTALL)
_NAMED = {"&": "&amp;", "<": "&lt;"}
_ROUNDS = 4  # what was escaped may read as something forbidden with its neighbours


def tags(*names: str) -> str:
    """A pattern of these names' opening and closing tags, in any case and with blanks inside: also `</ Think >`.

    A tag cut off by the text's end counts, too: the text behind it might complete it.

    Example:
        >>> Fence(tags("answer")).escape("<answer>no</ Answer >, a < b, AT&T, </answer")
        '&lt;answer>no&lt;/ Answer >, a < b, AT&T, &lt;/answer'
    """
    return rf"<(?i:\s*+/?\s*+(?:\Z|(?:{'|'.join(names)})\s*+(?:>|\Z)))"


def one_line(title: str) -> str:
    """A title without line breaks, reversibly for a fence."""
    return title.replace("\n", "&#10;").replace("\r", "&#13;")


def opening_line(text: str) -> str:
    """A fenced text that does not begin with a line break, reversibly: such a break would belong to its frame."""
    return f"&#10;{text[1:]}" if text.startswith("\n") else text


def spelled(text: str) -> str:
    """Every character as an entity."""
    return "".join(map(_number, text))


@dataclass(frozen=True)
class Fence:
    """What must not occur in retrieved text: the regex `pattern` and the literal `tokens` (a tokenizer's special ones).

    A match of `pattern` must contain neither `&` nor `;`, must not lie within an entity's letters or digits, and must
    not use look-arounds: then escaping one match can never create another. Raises `ConfigError` for a token that
    escaping could itself produce: `&`, `lt`, a bare number.

    `fold` is how a reader sees a text, and `fold.origins(text)` for each character read where in `text` it comes from:
    a tokenizer may read the fullwidth `\uff1c` as `<`. It must not change the characters of entities. With it nothing
    forbidden is left in what that reader makes of the text either, nor what it reads as it reads a token.

    Example:
        >>> fence = Fence(tags("answer")).with_tokens(["</s>"])
        >>> fence.escape("</s> <answer> &lt;"), unescape(fence.escape("</s> <answer> &lt;"))
        ('&lt;/s> &lt;answer> &amp;lt;', '</s> <answer> &lt;')
    """

    pattern: str
    tokens: tuple[str, ...] = ()
    fold: Any = None
    _written: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _read: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if unsafe := [token for token in self.tokens if _UNSAFE.fullmatch(token)]:
            raise ConfigError(
                f"{unsafe[0]!r} cannot be fenced: it could be part of the entity that would replace it"
            )
        pattern = _any_of(self.pattern, self.tokens)
        object.__setattr__(self, "_written", re.compile("|".join(filter(None, (pattern, _ENTITY)))))
        if (fold := self.fold) is not None:
            # Forbidden to be read: what must not be written, and what the reader takes for a token inside a text.
            images = fenceable(fold(f">{token}").partition(">")[2] for token in self.tokens)
            read = _any_of(self.pattern, dict.fromkeys([*self.tokens, *images])) or "(?!)"
            object.__setattr__(
                self, "_read", re.compile(read, re.IGNORECASE if fold("A") == fold("a") else 0)
            )

    def with_tokens(self, tokens: Iterable[str]) -> Self:
        """This fence, forbidding these literal strings too."""
        return replace(self, tokens=tuple(dict.fromkeys([*self.tokens, *tokens])))

    def escape(self, text: str) -> str:
        """`text` without anything forbidden, also to the reader; ordinary text comes back as it is."""
        written = {
            place: _NAMED.get(text[place]) or _number(text[place])
            for place in _places(self._written, text)
        }
        shown = _joined(text, written)
        if self.fold is None:
            return shown
        for _ in range(_ROUNDS):
            found = list(_places(self._read, self.fold(shown)))
            if not found and unescape(shown) == text:
                return shown
            origins = self.fold.origins(shown) if found else ()
            owners = [
                place for place, character in enumerate(text) for _ in written.get(place, character)
            ]
            written |= {
                owners[origins[place]]: _number(text[owners[origins[place]]]) for place in found
            }
            shown = _joined(text, written)
        return spelled(text)

    def reads_as_written(self, text: str) -> bool:
        """Whether the reader sees the markup that is written there, and no other."""
        if self.fold is None:
            return True
        written, read = (self._read.finditer(shown) for shown in (text, self.fold(text)))
        return [match[0].casefold() for match in written] == [match[0].casefold() for match in read]


def unescape(text: str) -> str:
    """The text that `escape` was given, whatever the fence forbids; never raises."""
    return _FENCED.sub(_character, text) if "&" in text else text


def fenceable(tokens: Iterable[str]) -> tuple[str, ...]:
    """`tokens` as a fence can forbid them, one with `&` or `;` by its longest part without; not blanks or `lt`."""
    parts = (max(re.split("[&;]", token), key=len) for token in tokens)
    return tuple(
        dict.fromkeys(part for part in parts if part.strip() and not _UNSAFE.fullmatch(part))
    )


def _any_of(pattern: str, tokens: Iterable[str]) -> str:
    literals = [re.escape(token) for token in sorted(tokens, key=len, reverse=True)]
    return "|".join([pattern, *literals] if pattern else literals)


def _places(forbidden: re.Pattern[str], text: str) -> Iterator[int]:
    """Where matches begin: from the next character on, since they may overlap."""
    match = forbidden.search(text)
    while match is not None:
        yield match.start()
        match = forbidden.search(text, match.start() + 1)


def _joined(text: str, written: Mapping[int, str]) -> str:
    """The text with what is written at some places instead of their character."""
    parts: list[str] = []
    done = 0
    for place in sorted(written):
        parts += (text[done:place], written[place])
        done = place + 1
    return "".join([*parts, text[done:]])


def _number(character: str) -> str:
    return f"&#{ord(character)};"


def _character(match: re.Match[str]) -> str:
    nested, name = match.groups()
    if nested:
        return f"&{nested[4:]}{name};"
    number = ord("<") if name == "lt" else int(name[1:])
    return chr(number) if number <= 0x10FFFF else match[0]
