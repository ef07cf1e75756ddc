"""The prompts in `judges/prompts`: read, filled with untrusted text, and named by their version."""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

import msgspec

from ..dialects.fence import Fence, tags
from ..errors import ConfigError
from ..text import well_formed
from .base import Pair

Messages = list[dict[str, str]]
_FOLDER = files(__package__) / "prompts"
_PARTS = re.compile(r"\n---\n+# System\n|\n# User\n")
_SLOT = re.compile(r"^\{\{(\w+): ([^}\n]+)\}\}$", re.MULTILINE)
_INLINE = re.compile(r"\{\{(\w+)\}\}")
_BLANKS = re.compile(r"\n{3,}")
_BLOCKS = Fence(tags("information", "think", "search"))
"""The blocks of prompts that papers print, which no text may open or close."""
OURS, PAPER = "ours", "paper"


class Prompt(msgspec.Struct, frozen=True):
    """A prompt file. `fields` are what it must be filled with, `optional` what may be missing or
    empty, and `digest` is of the file's content: whatever is cached under it is asked anew once the
    file has been edited.
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
        return f"{self.name}@{self.version}"

    def fill(self, values: Mapping[str, str]) -> Messages:
        """The messages to send. Raises `ConfigError` when a field is missing, or there is one that
        the prompt does not have.

        A prompt that a paper prints has its texts where the paper has them, in tags that are
        escaped within them. In ours every value is fenced by lines that carry a code. The code is a
        digest of all the values, so no text can hold its own, close its fence, and go on in our
        voice.
        """
        placeholders = {*self.fields, *self.optional}
        if not set(self.fields) <= set(values) <= placeholders:
            raise ConfigError(
                f"the prompt {self.id} takes {', '.join(sorted(placeholders))}; got "
                f"{', '.join(sorted(values))}"
            )
        # a lone surrogate, as JSON may carry one, could be neither hashed nor sent
        clean = {name: well_formed(text) for name, text in values.items()}
        if self.version == PAPER:
            text = _INLINE.sub(lambda slot: _BLOCKS.escape(clean[slot[1]]), self.user)
            return [{"role": "user", "content": text}]
        named_texts = "\0".join(f"{name}\0{clean[name]}" for name in sorted(clean))
        code = hashlib.sha256(named_texts.encode()).hexdigest()[:16]

        def block(slot: re.Match[str]) -> str:
            name, heading = slot[1], slot[2]
            text = clean.get(name, "")
            if name in self.optional and not text.strip():
                return ""
            return f"{heading}:\n<{name}-{code}>\n{text}\n</{name}-{code}>"

        # Slots that stay empty are taken out and the lines around them closed up before the texts
        # go in, which must arrive as they are.
        template = self.user.replace("{{code}}", code)
        template = _SLOT.sub(lambda slot: slot[0] if block(slot) else "", template)
        template = _BLANKS.sub("\n\n", template).strip()
        user = _SLOT.sub(block, template)
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]


def named(task: str, wording: str = OURS) -> str:
    """The name of the prompt about a task: the paper's where there is one and `wording` asks for it.
    Raises `ConfigError` for another wording.

    Example:
        >>> named("info_think", "paper"), named("support", "paper")
        ('info_think@paper', 'support')
    """
    if wording not in (OURS, PAPER):
        raise ConfigError(f"judge_prompts is '{OURS}' or '{PAPER}', not {wording!r}")
    of_paper = f"{task}@{PAPER}"
    if wording == PAPER and of_paper in _files():
        return of_paper
    return task


@lru_cache
def load(name: str) -> Prompt:
    """The prompt of that name. Raises `ConfigError` when there is none."""
    if name not in _files():
        raise ConfigError(f"there is no prompt {name!r}; there are: {', '.join(names())}")
    return read(name, (_FOLDER / f"{name}.md").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Our own prompts."""
    return [name for name in _files() if "@" not in name]


def _files() -> list[str]:
    """The prompts there are, with those of papers."""
    return sorted(
        entry.name.removesuffix(".md") for entry in _FOLDER.iterdir() if entry.name.endswith(".md")
    )


def read(name: str, text: str) -> Prompt:
    """A prompt from its file's text: front matter (version, fields; `?` marks an optional one),
    System, User.

    `{{field: Heading}}` on a line of its own is where a field's text goes, `{{code}}` is the code
    of the fences. The system part is the same for all texts, so that servers which cache prefixes
    read it once.
    """
    head, system, user = _PARTS.split(text.replace("\r\n", "\n"))
    header = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    fields = header["fields"].split(", ")
    needed = tuple(field for field in fields if not field.endswith("?"))
    optional = tuple(field.rstrip("?") for field in fields if field.endswith("?"))
    return Prompt(
        name.partition("@")[0],
        header["version"],
        needed,
        optional,
        system.strip(),
        user.strip(),
        hashlib.sha256(text.encode()).hexdigest(),
    )


def fields_of(pair: Pair) -> dict[str, str]:
    """What a judging prompt is filled with."""
    return {"premise": pair.premise, "hypothesis": pair.hypothesis, "question": pair.question}
