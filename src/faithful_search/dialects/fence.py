"""Retrieved text is data: a `Fence` makes it harmless inside a dialect, reversibly.

The first character of everything forbidden becomes an entity: `&lt;` for `<`, else `&#NN;`. Text
that already looks like such an entity gets one more `amp;` after its `&`, so that
`unescape(escape(x)) == x` for every string.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from ..errors import ConfigError

# What escaping writes, and text that looks like it; then the same with its two parts as groups
_ENTITY = "&(?:amp;)*+(?:lt|#[0-9]{1,7});"
_ENTITY_PARTS = re.compile("&((?:amp;)*+)(lt|#[0-9]{1,7});")
# Tokens that are pieces of an entity: if one were forbidden, escaping would itself write it.
_UNSAFE = re.compile(r"\A(?:|.*[&;].*|a?mp?|a|p|lt?|t|#?[0-9]*)\Z", re.DOTALL)
_NAMED = {"&": "&amp;", "<": "&lt;"}
_NEVER = "(?!)"  # a pattern that matches nothing
# How often a folded text is looked at again, since an entity may be seen as something forbidden
# together with its neighbours. After that the whole text is spelled out.
_ROUNDS = 4


def tags(*names: str) -> str:
    """A pattern of these names' opening and closing tags, in any case and with blanks inside: also
    `</ Think >`.

    A tag that is cut off by the end of the text counts, too: what follows might complete it.

    Example:
        >>> Fence(tags("answer")).escape("<answer>no</ Answer >, a < b, AT&T, </answer")
        '&lt;answer>no&lt;/ Answer >, a < b, AT&T, &lt;/answer'
    """
    return rf"<(?i:\s*+/?\s*+(?:\Z|(?:{'|'.join(names)})\s*+(?:>|\Z)))"


def one_line(title: str) -> str:
    """An escaped title on one line; `unescape` restores its line breaks.

    Call it after `escape`: the other order loses text.
    """
    return title.replace("\n", "&#10;").replace("\r", "&#13;")


def opening_line(text: str) -> str:
    """An escaped text that does not begin with a line break, which would be taken for one of the
    frame around it; `unescape` restores it.
    """
    return f"&#10;{text[1:]}" if text.startswith("\n") else text


def spelled(text: str) -> str:
    """A text with every character as an entity."""
    return "".join(map(_numbered, text))


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
    """What must not occur in retrieved text.

    Args:
        pattern: a regex. A match must contain neither `&` nor `;`, must not lie within an entity's
            letters or digits, and must not use look-arounds: then escaping one match can never
            create another.
        tokens: literal strings, such as a tokenizer's special tokens.
        fold: how a reader sees a text that changes characters before it looks at them, as a
            tokenizer may read the fullwidth `\uff1c` as `<`. `fold(escape(text))` then holds no
            match of `pattern`, no token, and nothing that the reader sees as it sees a token.
            Entities must come through `fold` unchanged.

    Raises:
        ConfigError: for a token that escaping could itself produce: `&`, `lt`, a bare number.

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
        for token in self.tokens:
            if _UNSAFE.fullmatch(token):
                raise ConfigError(
                    f"{token!r} cannot be fenced: it could be part of the entity that would "
                    "replace it"
                )
        forbidden = _any_of(self.pattern, self.tokens)
        with_entities = f"{forbidden}|{_ENTITY}" if forbidden else _ENTITY
        object.__setattr__(self, "_forbidden", re.compile(with_entities))
        if self.fold is not None:
            object.__setattr__(self, "_forbidden_folded", self._folded_pattern(self.fold))

    def _folded_pattern(self, fold: Fold) -> re.Pattern[str]:
        """What the reader must not see: the same, and each token as it sees it inside a text."""
        tokens_as_seen = []
        for token in self.tokens:
            # Behind `>`, since a reader may treat the beginning of a text in its own way.
            _, _, as_seen = fold(f">{token}").partition(">")
            tokens_as_seen.append(as_seen)
        tokens = dict.fromkeys([*self.tokens, *fenceable(tokens_as_seen)])
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
            entities[place] = _NAMED.get(text[place]) or _numbered(text[place])
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
        """Replace also the characters of `text` from which the `hits` in the folded text come.

        Args:
            entities: as in `escape`; gets the new ones.
            origins: for each character of the folded text, its place in the escaped text.
        """
        # For each character of the escaped text, the place in `text` that it stands for.
        owners: list[int] = []
        for place, character in enumerate(text):
            owners += [place] * len(entities.get(place, character))
        for hit in hits:
            culprit = owners[origins[hit]]
            entities[culprit] = _numbered(text[culprit])

    def reads_as_written(self, text: str) -> bool:
        """Whether the reader sees the markup that is in the text, and no other."""
        if self.fold is None:
            return True
        return self._markup(text) == self._markup(self.fold(text))

    def _markup(self, text: str) -> list[str]:
        """What is forbidden in a text, in its order."""
        return [match[0].casefold() for match in self._forbidden_folded.finditer(text)]


def unescape(text: str) -> str:
    """The text that `escape` was given, whatever the fence forbids; never raises."""
    return _ENTITY_PARTS.sub(_unescaped, text) if "&" in text else text


def fenceable(tokens: Iterable[str]) -> tuple[str, ...]:
    """`tokens` as a fence can forbid them: of one with `&` or `;` the longest part without these.
    Blank tokens, and pieces of an entity such as `lt`, are left out.
    """
    parts: dict[str, None] = {}
    for token in tokens:
        part = max(re.split("[&;]", token), key=len)
        if part.strip() and not _UNSAFE.fullmatch(part):
            parts[part] = None
    return tuple(parts)


def _any_of(pattern: str, tokens: Iterable[str]) -> str:
    """A pattern that matches `pattern` or any of the tokens, the longest first."""
    literals = [re.escape(token) for token in sorted(tokens, key=len, reverse=True)]
    return "|".join([pattern, *literals] if pattern else literals)


def _places(forbidden: re.Pattern[str], text: str) -> Iterator[int]:
    """Where matches begin, also those that overlap."""
    match = forbidden.search(text)
    while match is not None:
        yield match.start()
        match = forbidden.search(text, match.start() + 1)


def _with_entities(text: str, entities: Mapping[int, str]) -> str:
    """The text with entities in the places of some characters."""
    parts: list[str] = []
    copied_until = 0
    for place in sorted(entities):
        parts += (text[copied_until:place], entities[place])
        copied_until = place + 1
    parts.append(text[copied_until:])
    return "".join(parts)


def _numbered(character: str) -> str:
    """A character as an entity by its number."""
    return f"&#{ord(character)};"


def _unescaped(match: re.Match[str]) -> str:
    """What an entity stands for: with `amp;` in it, a text that looked like an entity."""
    nested, name = match.groups()
    if nested:
        return f"&{nested.removeprefix('amp;')}{name};"
    number = ord("<") if name == "lt" else int(name[1:])
    return chr(number) if number <= 0x10FFFF else match[0]
