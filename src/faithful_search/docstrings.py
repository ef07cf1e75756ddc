"""What a docstring says of its arguments: flags and tools say the same to whoever calls them."""

import re

_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Raises|Yields|Examples?|Notes?):[ ]*$", re.MULTILINE
)
# An argument is indented by four spaces, and what goes on with its description by more
_ARGUMENT = re.compile(r"^    (\w+)(?> \(.*?\)(?=:))?: *(.*(?:\n {5}.*)*+)", re.MULTILINE)


def summary_and_arguments(docstring: str) -> tuple[str, dict[str, str]]:
    """What stands before a docstring's sections, and what `Args:` or `Attributes:` say of each
    name, on one line. The docstring has no common indentation (`inspect.getdoc`).

    Example:
        >>> summary_and_arguments("Open a page.\\n\\nArgs:\\n    url: where\\n        it is.\\n")
        ('Open a page.', {'url': 'where it is.'})
    """
    # `split` keeps the titles that it splits at: summary, title, text, title, text, …
    summary, *sections = _SECTION.split(docstring)
    titles, texts = sections[::2], sections[1::2]
    arguments = {}
    for title, text in zip(titles, texts, strict=True):
        if title in ("Args", "Attributes"):
            for name, description in _ARGUMENT.findall(text):
                arguments[name] = " ".join(description.split())
    return summary.strip(), arguments
