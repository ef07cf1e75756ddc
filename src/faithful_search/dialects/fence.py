"""Retrieved text is data: a `Fence` makes it harmless inside a dialect, reversibly.

The first character of everything forbidden becomes an entity: `&lt;` for `<`, else `&#NN;`. Text
that already looks like such an entity gets one more `amp;` behind its `&`, so that
`unescape(escape(x)) == x` for every string.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from ..errors import ConfigError

# What looks like an entity; and the same with its `amp;` and its name as groups
_ENTITY = "&(?:amp;)*+(?:lt|#[0-9]{1,7});"
_ENTITY_PARTS = re.compile("&((?:amp;)*+)(lt|#[0-9]{1,7});")
# Pieces of an entity: were one forbidden, it would stand in what escaping writes.
_UNSAFE = re.compile(r"\A(?:|.*[&;].*|a?mp?|a|p|lt?|t|#?[0-9]*)\Z", re.DOTALL)
_NAMED = {"&": "&amp;", "<": "&lt;"}
_NEVER = "(?!)"  # a pattern that matches nothing
# How often a folded text is looked at again, since an entity may be seen as something forbidden
# together with its neighbours. After that the whole text is spelled out.
_ROUNDS = 4


def tags(*names: str) -> str:
    """A pattern of these names' opening and closing tags, in any case and with blanks inside: also
    `</ Think >`.

    A tag cut off by the text's end counts, too: the text behind it might complete it.

    Example:
        >>> Fence(tags("answer")).escape("<answer>no</ Answer >, a < b, AT&T, </answer")
        '&lt;answer>no&lt;/ Answer >, a < b, AT&T, &lt;/answer'
    """
    return rf"<(?i:\s*+/?\s*+(?:\Z|(?:{'|'.join(names)})\s*+(?:>|\Z)))"


def one_line(title: str) -> str:
    """An escaped title on one line; `unescape` brings its line breaks back. A title must be escaped
    before: the other way round its breaks would be lost.
    """
    return title.replace("\n", "&#10;").replace("\r", "&#13;")


def opening_line(text: str) -> str:
    """An escaped text with the line break that it begins with as an entity. As it is, the break
    would be taken for a part of the frame around the text.
    """
    return f"&#10;{text[1:]}" if text.startswith("\n") else text


def spelled(text: str) -> str:
    """Every character as an entity."""
    return "".join(map(_number, text))


class Fold(Protocol):
    """How a reader sees a text, for example after a tokenizer's normaliser."""

    def __call__(self, text: str) -> str:
        """The text as it is seen."""
        ...

    def origins(self, text: str) -> Sequence[int]:
        """For each character that is seen, the place in `text` that it comes from."""
        ...


@dataclass(frozen=True)
class Fence:
    """What must not occur in retrieved text: the regex `pattern` and the literal `tokens` (a
    tokenizer's special ones).

    A match of `pattern` must contain neither `&` nor `;`, must not lie within an entity's letters
    or digits, and must not use look-arounds: then escaping one match can never create another.
    Raises `ConfigError` for a token that escaping could itself produce: `&`, `lt`, a bare number.

    With `fold`, the text is also safe for a reader that changes characters before it looks at them,
    as a tokenizer may read the fullwidth `\uff1c` as `<`: `fold(escape(text))` holds no match of
    `pattern`, no token, and nothing that the reader sees as it sees a token. Entities must come
    through `fold` unchanged.

    Example:
        >>> fence = Fence(tags("answer")).with_tokens(["</s>"])
        >>> fence.escape("</s> <answer> &lt;"), unescape(fence.escape("</s> <answer> &lt;"))
        ('&lt;/s> &lt;answer> &amp;lt;', '</s> <answer> &lt;')
    """

    pattern: str
    tokens: tuple[str, ...] = ()
    fold: Fold | None = None
    # What must not stand in the text, entities included; and what must not stand in the folded one.
    _forbidden: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _forbidden_folded: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if unsafe := [token for token in self.tokens if _UNSAFE.fullmatch(token)]:
            raise ConfigError(
                f"{unsafe[0]!r} cannot be fenced: it could be part of the entity that would "
                "replace it"
            )
        forbidden = _any_of(self.pattern, self.tokens)
        with_entities = f"{forbidden}|{_ENTITY}" if forbidden else _ENTITY
        object.__setattr__(self, "_forbidden", re.compile(with_entities))
        if self.fold is not None:
            object.__setattr__(self, "_forbidden_folded", self._folded_pattern(self.fold))

    def _folded_pattern(self, fold: Fold) -> re.Pattern[str]:
        """What the reader must not see: the same, and each token as it sees it inside a text."""
        # A reader may treat the beginning of a text in its own way: `>` stands before the token.
        seen = [fold(f">{token}").partition(">")[2] for token in self.tokens]
        tokens = dict.fromkeys([*self.tokens, *fenceable(seen)])
        ignores_case = fold("A") == fold("a")
        pattern = _any_of(self.pattern, tokens) or _NEVER
        return re.compile(pattern, re.IGNORECASE if ignores_case else 0)

    def with_tokens(self, tokens: Iterable[str]) -> Self:
        """This fence, forbidding these literal strings too."""
        return replace(self, tokens=tuple(dict.fromkeys([*self.tokens, *tokens])))

    def escape(self, text: str) -> str:
        """`text` without anything forbidden, also to the reader; ordinary text comes back as it
        is.
        """
        entities: dict[int, str] = {}  # by the place in `text` of the character that they replace
        for place in _places(self._forbidden, text):
            entities[place] = _NAMED.get(text[place]) or _number(text[place])
        escaped = _with_entities(text, entities)
        if self.fold is None:
            return escaped
        for _ in range(_ROUNDS):
            hits = list(_places(self._forbidden_folded, self.fold(escaped)))
            if not hits and unescape(escaped) == text:
                return escaped
            if hits:
                self._add_entities(entities, text, self.fold.origins(escaped), hits)
            escaped = _with_entities(text, entities)
        return spelled(text)

    def _add_entities(
        self, entities: dict[int, str], text: str, origins: Sequence[int], hits: Iterable[int]
    ) -> None:
        """Replace also the characters of `text` from which the `hits` in the folded text come."""
        # For each character of the escaped text, the place in `text` that it comes from.
        sources: list[int] = []
        for place, character in enumerate(text):
            escaped = entities.get(place, character)
            sources += [place] * len(escaped)
        for hit in hits:
            place = sources[origins[hit]]
            entities[place] = _number(text[place])

    def reads_as_written(self, text: str) -> bool:
        """Whether the reader sees the markup that is written there, and no other."""
        if self.fold is None:
            return True
        return self._markup(text) == self._markup(self.fold(text))

    def _markup(self, text: str) -> list[str]:
        return [match[0].casefold() for match in self._forbidden_folded.finditer(text)]


def unescape(text: str) -> str:
    """The text that `escape` was given, whatever the fence forbids; never raises."""
    return _ENTITY_PARTS.sub(_unescaped, text) if "&" in text else text


def fenceable(tokens: Iterable[str]) -> tuple[str, ...]:
    """The tokens in the form in which a fence can forbid them. Of a token with `&` or `;` that is
    the longest part without these. Blanks, and what could be part of an entity, are left out.
    """
    fenced: dict[str, None] = {}
    for token in tokens:
        part = max(re.split("[&;]", token), key=len)
        if part.strip() and not _UNSAFE.fullmatch(part):
            fenced[part] = None
    return tuple(fenced)


def _any_of(pattern: str, tokens: Iterable[str]) -> str:
    literals = [re.escape(token) for token in sorted(tokens, key=len, reverse=True)]
    return "|".join([pattern, *literals] if pattern else literals)


def _places(forbidden: re.Pattern[str], text: str) -> Iterator[int]:
    """Where matches begin: from the next character on, since they may overlap."""
    match = forbidden.search(text)
    while match is not None:
        yield match.start()
        match = forbidden.search(text, match.start() + 1)


def _with_entities(text: str, entities: Mapping[int, str]) -> str:
    """The text with the entities in the place of the characters at their places."""
    parts: list[str] = []
    done = 0
    for place in sorted(entities):
        parts += (text[done:place], entities[place])
        done = place + 1
    return "".join([*parts, text[done:]])


def _number(character: str) -> str:
    return f"&#{ord(character)};"


def _unescaped(match: re.Match[str]) -> str:
    """The character that an entity stands for; of one that stood in the text, without the `amp;`
    that was added.
    """
    added, name = match.groups()
    if added:
        return f"&{added.removeprefix('amp;')}{name};"
    number = ord("<") if name == "lt" else int(name[1:])
    return chr(number) if number <= 0x10FFFF else match[0]
