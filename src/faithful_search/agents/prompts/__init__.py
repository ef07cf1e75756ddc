"""The prompts of the agents, a file each: words of this project, for methods of the literature."""

import re
from importlib.resources import files

_PLACE = re.compile(r"\{([a-z_]+)\}")


def filled(name: str, **fields: str) -> str:
    """The text of `<name>.md` with the fields in their places. What a field holds is not looked
    through for places.

    Example:
        >>> filled("direct", question="Who {passages}?").splitlines()[-1]
        'Question: Who {passages}?'
    """
    text = (files(__package__) / f"{name}.md").read_text("utf-8").removesuffix("\n")
    return _PLACE.sub(lambda match: fields[match[1]], text)
