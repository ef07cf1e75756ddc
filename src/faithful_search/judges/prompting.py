"""The prompts in `judges/prompts`: read, filled with untrusted text, and named by their version."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

import msgspec

from ..errors import ConfigError, DataError
from ..text import well_formed
from .base import Pair

Messages = list[dict[str, str]]
_FOLDER = files(__package__) / "prompts"
_FORM = re.compile(r"---\n(?P<head>.*?)\n---\n+# System\n(?P<system>.*?)\n# User\n(?P<user>.*)", re.DOTALL)
_SLOT = re.compile(r"^\{\{(\w+): ([^}\n]+)\}\}$", re.MULTILINE)
_BLANKS = re.compile(r"\n{3,}")


class Prompt(msgspec.Struct, frozen=True):
    """A prompt file. `fields` are what it must be filled with, `optional` what may be missing or empty.

    `digest` is of the file's content: whatever is cached under it is asked anew once the file has been edited.
    """

    name: str
    version: str
    fields: tuple[str, ...]
    optional: tuple[str, ...]
    system: str
    user: str
    digest: str

    @property
    def id(self) -> str:
        """`name@version`, as results show it."""
        return f"{self.name}@{self.version}"

    def fill(self, values: Mapping[str, str]) -> Messages:
        """The messages to send.

        Every value is fenced by lines that carry a code. The code is a digest of all the values, so no text can hold
        its own, close its fence, and go on in our voice.

        Raises:
            ConfigError: when a field is missing, or there is one that the prompt does not have.
        """
        known = {*self.fields, *self.optional}
        if not set(self.fields) <= set(values) <= known:
            raise ConfigError(f"the prompt {self.id} takes {', '.join(sorted(known))}; got {', '.join(sorted(values))}")
        # a lone surrogate, as JSON may carry one, could be neither hashed nor sent
        clean = {name: well_formed(text) for name, text in values.items()}
        code = hashlib.sha256("\0".join(f"{name}\0{clean[name]}" for name in sorted(clean)).encode()).hexdigest()[:16]

        def block(slot: re.Match[str]) -> str:
            name, heading = slot[1], slot[2]
            text = clean.get(name, "")
            if name in self.optional and not text.strip():
                return ""
            return f"{heading}:\n<{name}-{code}>\n{text}\n</{name}-{code}>"

        # blank lines are closed up before the text goes in, which must arrive as it is
        template = _SLOT.sub(lambda slot: slot[0] if block(slot) else "", self.user.replace("{{code}}", code))
        user = _SLOT.sub(block, _BLANKS.sub("\n\n", template).strip())
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]


@lru_cache
def load(name: str) -> Prompt:
    """The prompt of that name.

    Raises:
        ConfigError: when there is none.

    Example:
        >>> load("support").id.split("@")[0]
        'support'
    """
    try:
        text = (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"there is no prompt {name!r}; there are: {', '.join(names())}") from error
    return read(name, text)


def names() -> list[str]:
    """The prompts there are."""
    return sorted(entry.name.removesuffix(".md") for entry in _FOLDER.iterdir() if entry.name.endswith(".md"))


def read(name: str, text: str) -> Prompt:
    """A prompt from its file's text: front matter (version, fields; `?` marks an optional one), System, User.

    `{{field: Heading}}` on a line of its own is where a field's text goes, `{{code}}` is the code of the
    fences. The system part is the same for all texts, so that servers which cache prefixes read it once.

    Raises:
        DataError: when the text does not have this form.
    """
    found = _FORM.fullmatch(text.replace("\r\n", "\n"))
    if found is None:
        raise DataError(f"prompt {name}: expected front matter between ---, then # System and # User")
    head = dict(line.split(": ", 1) for line in found["head"].splitlines() if ": " in line)
    if not {"version", "fields"} <= set(head):
        raise DataError(f"prompt {name}: the front matter needs version and fields")
    listed = [field.strip() for field in head["fields"].split(",")]
    slots = {slot[1] for slot in _SLOT.finditer(found["user"])}
    if slots != {field.rstrip("?") for field in listed}:
        raise DataError(f"prompt {name}: fields says {', '.join(listed)}, the text has {', '.join(sorted(slots))}")
    needed = tuple(field for field in listed if not field.endswith("?"))
    optional = tuple(field.rstrip("?") for field in listed if field.endswith("?"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Prompt(name, head["version"], needed, optional, found["system"].strip(), found["user"].strip(), digest)


def render(pair: Pair) -> Messages:
    """The messages that ask for the label of a pair: 1 or 0, by the prompt of its task.

    Example:
        >>> [message["role"] for message in render(Pair("The sky is blue.", "It is blue."))]
        ['system', 'user']
    """
    return load(pair.task).fill(fields_of(pair))


def fields_of(pair: Pair) -> dict[str, str]:
    """What a judging prompt is filled with."""
    return {"premise": pair.premise, "hypothesis": pair.hypothesis, "question": pair.question}
